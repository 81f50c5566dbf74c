"""Rows that are gone are damage: a run counts the rows of each table, and keeps a digest of them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from older import make_older

from shuhari.desk.cli import main
from shuhari.store import DamageError, Run, Store, inspect_run, repair_run, schema, sets
from shuhari.store.rows import COUNTED, compute_checksum, sum_rows, write_rows
from shuhari.testing.compare import to_plain


def go(run: Path, until: int = 12, every: int = 2) -> None:
    """A run whose every row follows from its state."""
    with Store.open(run, keep=2, best="score") as store:
        if store.cursor is None:
            store.write_text("recipe.toml", "a = 1\n")
            store.set(recipe="a = 1\n", total=12)
        tree = store.load() or {"sum": 0}
        for step in range(store.step + 1, until):
            tree["sum"] += step
            store.commit(step, metrics={"score": -abs(step - 3)}, tree=tree if step % every == 0 else None,
                         rollouts=[{"group": f"g{step}{i}", "n": i} for i in range(2)],
                         events=[("told", step), ("told", "b")],
                         problems=[("t", f"p{i}", 4, 1) for i in range(3)])  # fmt: skip
        store.note("ended", until)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("base")
    go(root / "run")
    go(root / "whole", 20)
    return root


def change(run: Path, *queries: str) -> None:
    with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
        for query in queries:
            assert db.execute(query).rowcount


def read_sums(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is stored, what is there)."""
    with closing(schema.connect(run)) as db:
        return sets.read_sums(Run(run).get(sets.FACT)), {t: sum_rows(db, t, {}) for t in COUNTED}


GONE = {
    "the cursor": ["delete from cursor"],
    "a step": ["delete from steps where step = 5"],
    "the last step": ["delete from steps where step = 11"],
    "all steps": ["delete from steps"],
    "facts": ["delete from meta"],
    "a fact": ["delete from meta where key = 'total'"],
    "the sums": ["delete from meta where key = 'sets'"],
    "the format": ["delete from meta where key = 'format'"],
    "checkpoints": ["delete from checkpoints"],
    "a checkpoint": ["delete from checkpoints where step = 8"],
    "a problem": ["delete from problems where step = 3 and problem = 'p1'"],
    "an event": ["delete from events where id = 7"],
    "the last event": ["delete from events where id = (select max(id) from events)"],
    "a rollout, and what finds it": ["delete from rollouts where id = 4", "delete from groups where rollout = 4"],
    "two events changed places": ["update events set id = 100 where id = 3", "update events set id = 3 where id = 4",
                                  "update events set id = 4 where id = 100"],
    "an event at another place": ["update events set id = 100 where id = 3"],
    "one more step": [f"insert into steps values (40, '', 0, '{{}}', {compute_checksum((40, '', 0, '{}'))})"],
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_told_refused_and_repaired(name: str, base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    change(run, *GONE[name])
    report = inspect_run(run)
    assert report.faults and not report.notes
    with pytest.raises(DamageError, match="shuhari doctor"):
        go(run, 20)
    assert inspect_run(run).faults == report.faults  # nothing was changed
    assert repair_run(run)
    assert inspect_run(run).faults == []
    go(run, 20)
    assert inspect_run(run).faults == []
    assert to_plain(Run(run).load()) == to_plain(Run(base / "whole").load())
    stored, there = read_sums(run)
    assert stored == there


def test_gaps_of_steps_are_named(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    change(run, "delete from steps where step = 5")
    (fault,) = inspect_run(run).faults
    assert fault.endswith("steps has 11 rows, of 12 that were written, none of step 5")
    assert "lost: 1 row of steps that is gone" in repair_run(run)


def test_the_sums_are_those_of_the_rows_whatever_is_written(tmp_path: Path) -> None:
    rng, run = random.Random(0), tmp_path / "run"
    for opening in range(6):
        with Store.open(run, keep=1 + opening % 3, best="score") as store:
            for _ in range(rng.randrange(6)):
                step = store.step + rng.randrange(2) if store.step >= 0 else 0  # often the last once more
                store.commit(step, metrics={"score": rng.random()}, tree={"n": step} if rng.random() < 0.5 else None,
                             rollouts=[{"group": str(i)} for i in range(rng.randrange(3))],
                             problems=[("t", str(rng.randrange(2)), 1, 1)], events=[("a", 1)] * rng.randrange(3),
                             pin=rng.random() < 0.2)  # fmt: skip
            store.set(total=opening, **{f"fact{opening}": opening})
            store.note("note", opening)
        stored, there = read_sums(run)
        assert stored == there and inspect_run(run).faults == [f"{run / 'recipe.toml'}: the file is missing"]


def test_a_commit_that_fails_leaves_the_sums_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    go(run, 6)
    with Store.open(run) as store:
        store.set(total=7)
        before, real = read_sums(run)[0], store._write_step
        with pytest.raises(TypeError):
            store.commit(5, metrics={}, events=[("odd", object())])

        def stop(*args: Any) -> None:
            write = schema.write_sums

            def interrupt(db: sqlite3.Connection) -> None:
                write(db)
                raise KeyboardInterrupt

            monkeypatch.setattr(schema, "write_sums", interrupt)
            real(*args)

        monkeypatch.setattr(store, "_write_step", stop)
        with pytest.raises(KeyboardInterrupt):
            store.commit(5, metrics={}, tree={"n": 1}, events=[("x", 1)] * 3, problems=[("t", "p9", 1, 0)])
        monkeypatch.undo()
        assert read_sums(run) == (before, before)
        store.commit(5, metrics={}, tree={"n": 1}, events=[("x", 1)] * 3, problems=[("t", "p9", 1, 0)])
    stored, there = read_sums(run)
    assert stored == there != before and inspect_run(run).faults == []


def test_a_run_of_before_is_no_damage_and_is_counted_as_it_goes_on(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    make_older(run)
    report = inspect_run(run)
    assert report.faults == [] and "before sets of rows had checksums" in report.notes[0]
    with pytest.raises(SystemExit) as end:
        main(["doctor", str(run)])
    assert end.value.code in (0, None)
    said = capsys.readouterr().out
    assert "written before sets of rows had checksums" in said and "damaged" not in said
    assert Run(run).get("format") == 5 and repair_run(run) == []
    go(run, 20)
    report = inspect_run(run)
    assert report.faults == [] and report.notes == [] and Run(run).get("format") == schema.FORMAT
    stored, there = read_sums(run)
    assert stored == there
    assert to_plain(Run(run).load()) == to_plain(Run(base / "whole").load())


@pytest.mark.parametrize("table", ["cursor", "checkpoints"])
def test_of_a_run_of_before_too_a_checkpoint_without_a_cursor_is_damage(table: str, base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    change(make_older(run), f"delete from {table}")
    assert inspect_run(run).faults
    with pytest.raises(DamageError, match="shuhari doctor"):
        go(run, 20)
    repair_run(run)
    assert inspect_run(run).faults == []


def test_while_a_run_is_written_the_doctor_raises_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks the run goes on by some steps: its checkpoints come, and go."""
    from shuhari.store import damage

    run = tmp_path / "run"
    with Store.open(run, keep=1) as store:
        store.write_text("recipe.toml", "")

        def step() -> None:
            store.commit(store.step + 1, metrics={}, tree={"n": store.step}, events=[("a", 1)])

        step()
        for name in ("find_faults", "find_disagreement", "_read_found", "list_folders", "read_rows"):
            monkeypatch.setattr(damage, name, _then(getattr(damage, name), step))
        report = inspect_run(run)
        monkeypatch.undo()
        assert report.running and report.faults == [] and all(not c.fault for c in report.checkpoints)
        change(run, "update events set data = '2' where id = 1")
        assert len(inspect_run(run).faults) >= 1  # what stays is told
        (run / "recipe.toml").unlink()
        assert any("recipe.toml" in fault for fault in inspect_run(run).faults)
        with pytest.raises(SystemExit):
            main(["doctor", str(run)])
    assert not inspect_run(run).running


def _then(real: Callable[..., Any], step: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        step()
        found = real(*args)
        step()
        return found

    return call


def test_a_row_with_a_right_checksum_that_the_run_did_not_write_is_told(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
        write_rows(db, "steps", [(5, "main", 1.0, '{"score":9}')])
    assert any("steps are not the rows that were written" in fault for fault in inspect_run(run).faults)
