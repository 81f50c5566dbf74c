"""Fifty ways to damage a run's folder: each is told before anything is changed, and what is whole is saved."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.store import DamageError, Ring, Run, Store, StoreError, inspect_run, list_runs, repair_run
from shuhari.store.rows import write_rows
from shuhari.testing.compare import to_plain

STEPS, KILLED, LOGGED = 24, 17, 6  # steps in all; the last before the kill; the last that is not in the log alone
RECIPE = "steps = 24\n"
LAST = "checkpoints/step-00000016"


def go(path: Path, until: int = STEPS, copy: Path | None = None) -> None:
    """A run whose every row follows from its state, with a checkpoint at each even step. copy: where its folder is
    copied to after the last step, as a kill would leave it."""
    with Store.open(path, keep=3, best="score") as store:
        if store.cursor is None:
            store.write_text("recipe.toml", RECIPE)
            store.set(total=STEPS, recipe=RECIPE, init="")
        ring = Ring.zeros(8, {"x": torch.zeros(1)}, block=2)
        tree = store.load() or {"sum": 0, "w": torch.zeros(3), "ring": ring}
        for step in range(store.step + 1, until + 1):
            tree["sum"] += step
            tree["w"] = tree["w"] * 0.5 + step
            tree["ring"].append({"x": torch.tensor([float(step)])})
            rollouts = [{"group": f"g{step}", "task": "t", "problem": f"p{step % 3}", "n": tree["sum"]}]
            metrics = {"sum": tree["sum"], "score": 1 / (1 + abs(step - 4))}
            store.commit(step, stage="main", wall=step / 2, metrics=metrics, tree=tree if step % 2 == 0 else None,
                         rollouts=rollouts, problems=[("t", f"p{step % 3}", 4, step % 5)],
                         events=[("told", step)])  # fmt: skip
            if copy is not None and step == LOGGED:
                store._db.execute("pragma wal_checkpoint(truncate)")
        if until == STEPS:
            store.write_text("summary.json", json.dumps({"sum": tree["sum"]}))
            store.set(complete=True)
        if copy is not None:
            shutil.copytree(path, copy)


def read(path: Path) -> dict[str, Any]:
    run = Run(path)
    rollouts = {s: [g["n"] for g in run.rollouts(s)] for s in run.metrics()["step"]}
    return {"tree": to_plain(run.load()), "metrics": run.metrics(), "events": run.events(), "rollouts": rollouts,
            "problems": run.problems(), "checkpoints": run.checkpoints(),
            "facts": [run.get("total"), run.status]}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed, and `whole`: the same one, undisturbed."""
    root = tmp_path_factory.mktemp("base")
    go(root / "first", KILLED, copy=root / "killed")
    go(root / "whole")
    return root


def bytes_of(path: Path) -> dict[str, Any]:
    """All that is there, but what SQLite makes for its readers and the lock's empty file."""
    paths = [p for p in path.rglob("*") if not p.name.endswith("-shm") and p.name != "run.lock"]
    found = {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in paths}
    return {name: data for name, data in found.items() if data or not name.endswith("-wal")}


def query(text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
            db.executescript(text)

    return change


def flip(name: str, at: float = 0.5) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        file = min(run.glob(name))
        data = bytearray(file.read_bytes())
        data[int(len(data) * at)] ^= 0x10
        file.write_bytes(data)

    return change


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(data) and None  # type: ignore[func-returns-value]


def cut(name: str) -> Callable[[Path], None]:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size // 2)


def remove(*names: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        for path in [p for name in names for p in run.glob(name)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def fold(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """With the log folded into the database first, so that damage to this is not healed by that."""

    def folded(run: Path) -> None:
        with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
            db.execute("pragma wal_checkpoint(truncate)")
        for name in ("run.sqlite-wal", "run.sqlite-shm"):
            (run / name).unlink(missing_ok=True)
        change(run)

    return folded


def pipe(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


def folder(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name / "in it").mkdir(parents=True)

    return change


def page(run: Path) -> None:
    """The middle page of the rollouts' table is overwritten."""
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        (number,) = db.execute("select rootpage from sqlite_master where name = 'rollouts'").fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
    with open(run / "run.sqlite", "r+b") as file:
        file.seek((number - 1) * size)
        file.write(b"\x07" * size)


SAME, LESS, GONE = "the same", "less", "gone"  # in the end, after a repair where it is refused
# name -> what is done, how it ends, what an error or the doctor says, what a repair says
DAMAGE: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "nothing": (lambda run: None, SAME, "", ""),
    "no shared memory": (remove("run.sqlite-shm"), SAME, "", ""),
    "no lock": (remove("run.lock"), SAME, "", ""),
    "half a checkpoint": (lambda run: (run / "checkpoints/.tmp-step-00000018").mkdir(), SAME, "", ""),
    "a checkpoint that is not named": (
        lambda run: shutil.copytree(run / LAST, run / "checkpoints/step-00000018") and None, SAME, "", ""),
    "the end of the log": (lambda run: os.truncate(run / "run.sqlite-wal", os.path.getsize(run / "run.sqlite-wal") - 9),
                           SAME, "", ""),
    "no log": (remove("run.sqlite-*"), LESS, "step 6 was stored last, whose checkpoint is gone; there are those of",
               "lost: the metrics and rollouts of steps 7 to 16"),
    "half a log": (cut("run.sqlite-wal"), LESS, "whose checkpoint is gone", "lost: the metrics and rollouts of steps"),
    "a bit of the log": (flip("run.sqlite-wal", 0.4), LESS, "whose checkpoint is gone", "goes on from step 16"),
    "another log": (write("run.sqlite-wal", os.urandom(4000)), LESS, "step 6 was stored last", "goes on from step 16"),
    "no database": (remove("run.sqlite*"), LESS, "run.sqlite is gone, though checkpoints of steps 4, 12, 14, 16",
                    "lost: every row"),
    "an empty database": (fold(write("run.sqlite", b"")), LESS, "run.sqlite is empty, though checkpoints",
                          "lost: the metrics and rollouts of steps 0 to 16"),
    "an empty database with a log": (write("run.sqlite", b""), LESS, "run.sqlite is empty, though", "every row"),
    "no database at all": (fold(write("run.sqlite", b"nonsense" * 900)), LESS, "not the database", "every row"),
    "a page": (fold(page), LESS, "SQLite says", "lost: rows of rollouts on a damaged page"),
    "a view": (fold(query("drop table problems; create view problems as with recursive c(x) as (select 1 union all "
                          "select x from c) select x as step from c")), LESS, "it has a view 'problems'", "every row"),
    "a trigger": (query("create trigger t after insert on steps begin delete from steps; end"), LESS,
                  "it has a trigger 't'", "every row"),
    "no table of steps": (query("drop table steps"), LESS, "no such table: steps", "every row"),
    "metrics": (query("update steps set metrics = replace(metrics, '3', '4') where step = 2"), LESS,
                "step 2 is damaged", "lost: 1 row of steps"),
    "a wall": (query("update steps set wall = 0 where step > 14"), LESS, "step 15 is damaged", "lost: 3 rows of steps"),
    "a rollout": (query("update rollouts set payload = x'00' where step = 3"), LESS, "rollout of step 3", "1 row of r"),
    "what finds a group": (query("delete from groups where step = 2"), SAME, "group 3 of step 2 is missing from what",
                           "goes on from step 16"),
    "words": (query("delete from words where step = 2"), SAME, "words of the group 3 are missing", "from step 16"),
    "a row of rollouts": (query("delete from rollouts where step = 3"), LESS,
                          "group 4 of step 3 is not kept", "step 16"),
    "counts": (query("update problems set solved = 4 where step = 0"), LESS, "problems of step 0", "1 row of problems"),
    "a fact": (query("update meta set value = '7' where key = 'total'"), LESS, "the fact total", "1 row of meta"),
    "the cursor": (query("update cursor set step = 12"), SAME, "the cursor at step 12 is damaged", "goes on from step"),
    "an entry of a checkpoint": (query("update checkpoints set score = 9 where step = 4"), LESS,
                                 "checkpoint of step 4 is damaged", "goes on from step 16"),
    "tensors": (flip(f"{LAST}/tensors.safetensors", 0.95), SAME, "step-00000016/tensors.safetensors: its content",
                "goes on from step 14, whose checkpoint is whole; steps 15 to 17 are made again"),
    "half of the tensors": (cut(f"{LAST}/tensors.safetensors"), SAME, "bytes, of .* written", "from step 14"),
    "no tensors": (remove(f"{LAST}/tensors*"), SAME, "tensors.safetensors: the file is missing", "from step 14"),
    "a tree": (flip(f"{LAST}/tree.json", 0.9), SAME, "tree.json: its content is not what was", "from step 14"),
    "the head of a tree": (flip(f"{LAST}/tree.json", 0.0), SAME, "tree.json: not a checkpoint", "from step 14"),
    "the list of blocks": (flip(f"{LAST}/tree.json", 0.1), SAME, "", ""),
    "a pipe for a tree": (pipe(f"{LAST}/tree.json"), SAME, "it is a named pipe, no plain file", "from step 14"),
    "a block of a ring": (flip("checkpoints/rings/*/*-step-00000016.*", 0.95), SAME, "its content", "from step 14"),
    "no block of a ring": (remove("checkpoints/rings/*/*-step-00000016.*"), SAME, "file is missing", "from step 14"),
    "the last checkpoint": (remove(LAST), SAME, "step 16 was stored last, whose checkpoint is gone; there are those of "
                            "steps 4, 12, 14", "from step 14"),
    "every checkpoint": (remove("checkpoints"), GONE, "step 16 was stored last, whose checkpoint is gone", "no check"),
    "an older checkpoint": (flip("checkpoints/step-00000014/tree.json"), SAME, "", ""),
    "no recipe": (remove("recipe.toml"), SAME, "", ""),
    "half a recipe": (cut("recipe.toml"), SAME, "", ""),
    "another recipe": (write("recipe.toml", b"steps = 25\n"), SAME, "", ""),
    "a pipe for a recipe": (pipe("recipe.toml"), SAME, "recipe.toml is a named pipe: expected a file", "set aside"),
    "a folder for a recipe": (folder("recipe.toml"), SAME, "recipe.toml is a folder: expected a file", "from step 16"),
    "a pipe for a summary": (pipe("summary.json"), SAME, "summary.json is a named pipe: expected a file", "set aside"),
    "a folder for a summary": (folder("summary.json"), SAME, "summary.json is a folder: expected a file", "set aside"),
    "a folder in a summary's way": (folder(".tmp-summary.json"), SAME, "summary.json is written there", "set aside"),
    "a folder for a picture": (folder("curves.png"), SAME, "curves.png is a folder: expected a file", "set aside"),
    "a pipe for a list of copies": (lambda run: (run / "needs").mkdir() or pipe("needs/needs.json")(run), SAME,  # type: ignore[func-returns-value]
                                    "needs.json is a named pipe: expected a file", "set aside"),
    "a file for copies": (write("needs", b""), SAME, "needs is a file: expected a folder", "set aside"),
    "a file for runs": (write("children", b""), SAME, "children is a file: expected a folder", "set aside"),
    "a file for checkpoints": (lambda run: remove("checkpoints")(run) or write("checkpoints", b"")(run), GONE,  # type: ignore[func-returns-value]
                               "checkpoints is a file: expected a folder", "no check"),
    "a pipe for a database": (pipe("run.sqlite"), LESS, "run.sqlite is a named pipe: expected a file", "every row"),
    "a folder for a log": (fold(folder("run.sqlite-wal")), SAME, "run.sqlite-wal is a folder: expected a", "set aside"),
    "a folder for the log": (folder("run.sqlite-wal"), LESS, "run.sqlite-wal is a folder: expected a", "from step 16"),
    "a pipe for the log": (pipe("run.sqlite-wal"), LESS, "run.sqlite-wal is a named pipe", "goes on from step 16"),
    "rows without a checksum": (query("update steps set checksum = null, wall = 0 where step = 2"), LESS,
                                "step 2 is damaged .its checksum is missing", "1 row of steps"),
    "a format without a checksum": (query("update meta set checksum = null where key = 'format'"), SAME,
                                    "the fact format is damaged .its checksum is missing", "goes on from step 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_and_what_is_whole_is_saved(base: Path, tmp_path: Path, name: str) -> None:
    damage, end, told, said = DAMAGE[name]
    run = tmp_path / "run"
    shutil.copytree(base / "killed", run)
    damage(run)
    before = bytes_of(run)
    assert len(list_runs(tmp_path)) == (run / "run.sqlite").exists()  # one that is damaged breaks no list
    report = inspect_run(run)
    if told:
        assert len(list(filter(None, report.faults))) >= 1
        with pytest.raises(StoreError, match=told) as error:
            go(run)
        assert "shuhari doctor" in str(error.value) or "move it away" in str(error.value)
        assert bytes_of(run) == before, "a run that was refused has been changed"
    if end == GONE:
        with pytest.raises(DamageError, match=said):
            repair_run(run)
        assert bytes_of(run) == before and Run(run).metrics()["step"] == [*range(KILLED + 1)]
        return
    if report.faults:
        lines = repair_run(run)
        assert said in "\n".join(lines) and inspect_run(run).faults == [] and repair_run(run) == []
    assert (run / "recipe.toml").read_text() == RECIPE
    go(run)
    theirs, ours = read(base / "whole"), read(run)
    assert ours["tree"] == theirs["tree"] and inspect_run(run).faults == []
    if end == SAME:
        assert ours == theirs
    else:  # what is left is what was written
        rows = dict(zip(theirs["metrics"]["step"], theirs["metrics"]["sum"], strict=True))
        assert all(rows[s] == x for s, x in zip(ours["metrics"]["step"], ours["metrics"]["sum"], strict=True))
        assert {k: v for k, v in ours["rollouts"].items() if v}.items() <= theirs["rollouts"].items()
        assert len(ours["metrics"]["step"]) >= STEPS - 16


def test_a_run_that_is_whole_is_told_so_and_left_alone(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "whole", run := tmp_path / "run")
    before = bytes_of(run)
    report = inspect_run(run)
    assert report.faults == [] and report.rows["steps"] == STEPS + 1 and report.rows["events"] == STEPS + 1
    assert [(c.step, c.fault, c.named) for c in report.checkpoints] == [(s, "", True) for s in (4, 20, 22, 24)]
    assert repair_run(run) == [] and bytes_of(run) == before
    with pytest.raises(StoreError, match="is not a run"):
        inspect_run(tmp_path)


def test_a_bit_anywhere_in_the_database_changes_nothing_unnoticed(base: Path, tmp_path: Path) -> None:
    """Either it is refused, or the run ends as one that was never touched."""
    whole, seen = read(base / "whole"), {"refused": 0, "same": 0}
    shutil.copytree(base / "killed", run := tmp_path / "run")
    fold(lambda _: None)(run)
    data, rng = (run / "run.sqlite").read_bytes(), random.Random(0)
    said = [i for i, byte in enumerate(data) if byte]  # most of a small database is empty pages
    for place in rng.sample(said, 40):
        bit = bytes([data[place] ^ 1 << rng.randrange(8)])
        (run / "run.sqlite").write_bytes(data[:place] + bit + data[place + 1 :])
        try:
            Store.open(run).close()
        except StoreError:
            seen["refused"] += 1
            continue
        shutil.copytree(run, run.with_name(str(place)))
        go(run.with_name(str(place)))
        assert read(run.with_name(str(place))) == whole, place
        seen["same"] += 1
    assert seen["refused"] >= 30, seen


def test_a_complete_run_without_its_last_checkpoint_ends_again(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "whole", run := tmp_path / "run")
    remove("checkpoints/step-00000024")(run)
    write("summary.json", b"{")(run)
    assert "goes on from step 22" in "\n".join(repair_run(run)) and Run(run).status == "stopped"
    go(run)
    assert read(run) == read(base / "whole") and Run(run).summary == {"sum": sum(range(STEPS + 1))}


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal", "run.lock", "checkpoints"])
@pytest.mark.parametrize("put", [False, True])
def test_a_writer_sees_that_its_files_are_gone(tmp_path: Path, name: str, put: bool) -> None:
    with Store.open(tmp_path / "run") as store:
        store.commit(0, metrics={}, tree={"n": 0})
        os.rename(store.path / name, tmp_path / name)
        if put and name == "checkpoints":
            shutil.copytree(tmp_path / name, store.path / name)
        elif put:
            shutil.copy(tmp_path / name, store.path / name)
        what = "replaced" if put else "removed"
        with pytest.raises(StoreError, match=f"{name} has been {what} while the run was being written"):
            store.commit(1, metrics={})


def test_facts_that_are_no_json_name_their_file(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "whole", run := tmp_path / "run")
    with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
        write_rows(db, "meta", [("total", "[}")])
        write_rows(db, "steps", [(24, "main", 12.0, "[1, 2]")])
    with pytest.raises(StoreError, match=r"run.sqlite: the fact total is damaged"):
        Run(run).get("total")
    with pytest.raises(StoreError, match=r"run.sqlite: step 24 is damaged .it is a list"):
        Run(run).metrics()
    (found,) = list_runs(tmp_path)
    assert found.status == "unreadable" and "run.sqlite" in found.note


def test_only_checkpoints_that_can_be_read_are_offered(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "whole", run := tmp_path / "run")
    remove("checkpoints/step-00000020")(run)
    cut("checkpoints/step-00000022/tree.json")(run)
    assert [c["step"] for c in Run(run).checkpoints()] == [4, 24]
    with pytest.raises(StoreError, match="no checkpoint of step 20; checkpoints there: steps 4, 24"):
        Run(run).find_step("20")
    remove("checkpoints/*")(run)
    with pytest.raises(StoreError, match="no checkpoint that can be read: `shuhari doctor`"):
        Run(run).find_step("4")
