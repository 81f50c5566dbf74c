"""The store: one transaction a step, and whatever happens the cursor names a whole checkpoint of its own step."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.store import (
    CheckpointError,
    LockedError,
    Ring,
    Run,
    Store,
    StoreError,
    files,
    finding,
    kept,
    list_runs,
    rollouts,
    rows,
    schema,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "run") as opened:
        yield opened


def names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def commit(store: Store, step: int, *, save: bool = True, **more: Any) -> None:
    tree = {"n": step, "w": torch.full((200,), float(step))} if save else None
    store.commit(step, stage="main", wall=step / 2, metrics={"reward": float(step)}, tree=tree, **more)


def test_a_new_run(store: Store) -> None:
    assert store.cursor is None and store.load() is None and store.step == -1


def test_commit_and_resume(store: Store) -> None:
    for step in range(3):
        commit(store, step)
    store.close()
    with Store.open(store.path) as again:
        assert again.cursor == {"step": 2, "checkpoint": "step-00000002", "stage": "main", "wall": 1.0}
        assert again.load()["n"] == 2 and again.step == 2
        commit(again, 3)
        assert again.load()["n"] == 3


def test_what_is_newer_than_the_cursor_is_dropped(store: Store) -> None:
    commit(store, 0, events=[("started", {"seed": 0})], rollouts=[{"group": "a"}])
    commit(store, 1, save=False, events=[("later", None)], rollouts=[{"group": "b"}])
    assert Run(store.path).metrics()["step"] == [0, 1]  # seen until the run goes on
    assert store.cursor is not None and store.cursor["step"] == 0
    store.close()
    (store.path / "checkpoints" / "step-00000005").mkdir()
    (store.path / "checkpoints" / ".tmp-step-00000006").mkdir()
    with Store.open(store.path) as again:
        run = Run(store.path)
        assert again.step == 0 and run.metrics()["step"] == [0, 1] and len(names(store.path)) == 3
        again.set(total=3)  # the first that is written
        assert again.step == 0 and run.metrics()["step"] == [0] and names(store.path) == ["step-00000000"]
        assert [e["kind"] for e in run.events()] == ["started"] and run.rollouts()[0]["group"] == "a"
        commit(again, 1)


def test_before_the_first_checkpoint_everything_is_redone(store: Store) -> None:
    commit(store, 0, save=False)
    store.close()
    with Store.open(store.path) as again:
        assert again.step == -1 and again.load() is None


def test_the_last_n_the_best_and_the_pinned_are_kept(tmp_path: Path) -> None:
    scores = [0.1, 0.9, float("nan"), 0.9, 0.5, 0.2, 0.3]
    with Store.open(tmp_path, keep=2, best="score") as store:
        for step, score in enumerate(scores):
            store.commit(step, metrics={"score": score}, tree={"n": step}, pin=step == 2)
        assert names(tmp_path) == [f"step-{i:08d}" for i in (1, 2, 5, 6)]
    with Store.open(tmp_path, keep=1, best="score") as store:
        store.commit(7, metrics={"score": 1.0}, tree={"n": 7})
        assert names(tmp_path) == [f"step-{i:08d}" for i in (2, 7)]
        assert store.load(2) == {"n": 2}
        with pytest.raises(StoreError, match="no checkpoint of step 6; checkpoints there: steps 2, 7"):
            store.load(6)


def test_rings_cost_what_is_new_and_are_collected(tmp_path: Path) -> None:
    ring = Ring.zeros(64, {"x": torch.zeros(1, 3)}, block=8)
    with Store.open(tmp_path, keep=1) as store:
        for step in range(30):
            ring.append({"x": torch.full((5, 3), float(step))})
            store.commit(step, metrics={}, tree={"buffer": {"ring": ring}})
        blocks = list((tmp_path / "checkpoints" / "rings").glob("*/*"))
        assert len(blocks) == 8  # 64 / 8: none that no checkpoint needs
        assert sum("step-00000029" in b.name for b in blocks) == 1  # rows 145..149 of a ring of 64: 17..21
    with Store.open(tmp_path) as store:
        assert torch.equal(store.load()["buffer"]["ring"].columns["x"], ring.columns["x"])


def test_the_same_step_again_replaces_it(store: Store) -> None:
    commit(store, 4)
    store.commit(4, metrics={"reward": 9.0}, tree={"n": 44})
    assert store.load() == {"n": 44} and Run(store.path).metrics()["reward"] == [9.0]
    with pytest.raises(ValueError, match="step 3 after step 4"):
        commit(store, 3)


def test_rollouts_and_events(store: Store) -> None:
    tokens = np.arange(300, dtype=np.int32)
    group = {"group": "7#0", "why": "best", "rewards": [1.0, 0.0], "tokens": tokens, "reasons": ("ok", None)}
    store.commit(0, metrics={}, rollouts=[group], events=[("evaluated", {"greedy": np.float32(0.5)})])
    (back,) = Run(store.path).rollouts()
    assert back["reasons"] == ("ok", None) and np.array_equal(back["tokens"], tokens) and back["step"] == 0
    assert Run(store.path).events("evaluated") == [{"step": 0, "kind": "evaluated", "data": {"greedy": 0.5}}]


def test_metrics_of_any_number_type_and_nothing_else(store: Store) -> None:
    store.commit(0, metrics={"a": np.float32(0.5), "b": torch.tensor(2), "c": float("nan"), "d": 1})
    m = Run(store.path).metrics()
    assert (m["a"], m["b"], m["d"]) == ([0.5], [2], [1]) and np.isnan(m["c"][0])
    with pytest.raises(TypeError, match="metrics holds a object"):
        store.commit(1, metrics={"a": object()})
    commit(store, 1)


# ---------------------------------------------------------------- what may go wrong


@pytest.mark.parametrize("nth", range(7))
def test_a_full_disk_keeps_what_was_stored(store: Store, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Each flush fails once: a ring block and its two directories, the checkpoint's two files, its directory, the
    directory above after the rename."""
    ring = Ring.zeros(16, {"x": torch.zeros(1)}, block=4)
    ring.append({"x": torch.arange(5.0)})
    store.commit(0, metrics={}, tree={"n": 0, "ring": ring})
    ring.append({"x": torch.arange(2.0)})
    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == nth + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"commit step 1 of .*disk is full.*intact"):
        store.commit(1, metrics={}, tree={"n": 1, "ring": ring})
    monkeypatch.undo()
    assert Run(store.path).load()["n"] == 0 and names(store.path) == ["rings", "step-00000000"]
    store.commit(1, metrics={}, tree={"n": 1, "ring": ring})  # there is room again: the same store goes on
    back = Run(store.path).load()
    assert back["n"] == 1 and torch.equal(back["ring"].columns["x"], ring.columns["x"])


def test_a_full_database_keeps_what_was_stored(store: Store) -> None:
    commit(store, 0)
    pages = store._db.execute("pragma page_count").fetchone()[0]
    store._db.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(StoreError, match="disk is full"):
        commit(store, 1, rollouts=[{"group": "a", "raw": os.urandom(50_000)}])
    assert store.cursor is not None and store.cursor["step"] == 0 and store.step == 0
    assert Run(store.path).load()["n"] == 0 and names(store.path) == ["step-00000000"]
    store._db.execute("pragma max_page_count = 100000")
    commit(store, 1)
    assert Run(store.path).load()["n"] == 1


@pytest.mark.parametrize("where", ["encode", "before", "after"])
def test_ctrl_c_inside_a_commit(store: Store, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    commit(store, 0)
    real = Store._write_step

    def interrupted(self: Store, *args: Any) -> None:
        if where == "after":
            real(self, *args)
        raise KeyboardInterrupt

    target, name = (kept.checkpoint, "write") if where == "encode" else (Store, "_write_step")
    monkeypatch.setattr(target, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        commit(store, 1)
    monkeypatch.undo()
    done = 1 if where == "after" else 0
    assert store.step == done and store.load()["n"] == done
    assert Run(store.path).load()["n"] == done
    commit(store, 1)
    commit(store, 2)
    assert store.load()["n"] == 2 and len(names(store.path)) == 2


def test_a_damaged_checkpoint_names_the_way_back(store: Store) -> None:
    commit(store, 0)
    commit(store, 1)
    store.close()
    (store.path / "checkpoints" / "step-00000001" / "tree.json").write_text("{")
    with Store.open(store.path) as again:
        with pytest.raises(CheckpointError, match=r"step-00000001/tree.json.*there: steps 0; .*--init .*@STEP"):
            again.load()
        assert again.load(0)["n"] == 0


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"what is this" * 1000)
    with pytest.raises(StoreError, match=r"run.sqlite.*move it away"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match=r"run.sqlite.*move it away"):
        Run(tmp_path)
    (tmp_path / "other").mkdir()
    sqlite3.connect(tmp_path / "other" / "run.sqlite").execute("create table a (b)").connection.close()
    with pytest.raises(StoreError, match="not the database of a run"):
        Store.open(tmp_path / "other")


OLD = """
create table meta (key text primary key, value text not null) without rowid;
create table steps (step integer primary key, stage text not null, wall real not null, metrics text not null);
create table rollouts (id integer primary key, step integer not null, name text not null, payload blob not null);
create table events (id integer primary key, step integer not null, kind text not null, data text not null);
create table checkpoints (name text primary key, step integer not null, pinned integer not null, score real);
create table cursor (id integer primary key check (id = 1), step integer not null, checkpoint text not null,
  stage text not null, wall real not null);
insert into meta values ('format', '1');
insert into steps values (0, 'main', 1.5, '{"n":7}');
insert into events values (1, 0, 'problem', '"slow"');
"""


def test_a_run_of_the_first_format_is_read_as_it_is_and_written_in_this_one(tmp_path: Path) -> None:
    run = tmp_path / "old"
    run.mkdir()
    with sqlite3.connect(run / "run.sqlite") as db:
        db.executescript(OLD)
        db.execute("insert into rollouts values (1, 0, 'a', ?)", (rollouts.pack({"group": "a", "n": 3}),))
    db.close()
    read = Run(run)
    assert read.metrics() == {"step": [0], "stage": ["main"], "wall": [1.5], "n": [7]}
    assert read.events() == [{"step": 0, "kind": "problem", "data": "slow"}] and read.problems() == []
    assert read.rollouts() == [{"group": "a", "n": 3, "step": 0}] and read.get("format") == 1
    with pytest.raises(StoreError, match="does not say whose a group is"):
        read.rollouts(problem="b")
    with Store.open(run) as store:
        store.set(total=9)
        assert store.get("format") == schema.FORMAT
        assert store._db.execute("select count(*) from meta where checksum is null").fetchone() == (0,)
        store.commit(5, metrics={"n": 8}, rollouts=[{"group": "b", "problem": "p"}])
    assert read.metrics()["n"] == [8]  # what no checkpoint holds is done again


@pytest.mark.parametrize(("change", "what"), [
    ("update steps set metrics = replace(metrics, '1', '2')", "step 0 is damaged"),
    ("update events set data = '\"slow\"'", "an event of step 0 is damaged"),
    ("update rollouts set payload = x'00'", "a rollout of step 0 is damaged"),
    ("update steps set metrics = substr(metrics, 1, 4)", "step 0 is damaged"),
    ("update steps set stage = 'rl'", "step 0 is damaged"),
    ("update steps set wall = 2.0", "step 0 is damaged"),
    ("update steps set stage = 'm', metrics = 'ain' || metrics", "step 0 is damaged"),  # what is moved to its neighbour
    ("update rollouts set score = 1.0", "a rollout of step 0 is damaged"),
    ("update rollouts set problem = 'q', task = null", "a rollout of step 0 is damaged"),
    ("update problems set solved = 3", "a count of problems of step 0 is damaged"),
    ("update checkpoints set score = 0.0", "the entry of the checkpoint of step 0 is damaged"),
    ("update cursor set wall = 9.0", "the cursor at step 0 is damaged"),
    ("update meta set value = '4' where key = 'total'", "the fact total is damaged"),
])  # fmt: skip
def test_a_damaged_row_is_found_and_does_not_break_the_list(tmp_path: Path, change: str, what: str) -> None:
    path = tmp_path / "r"
    with Store.open(path, best="n") as store:
        group = {"group": "a", "problem": "p"}
        store.commit(0, stage="main", wall=1, metrics={"n": 1}, events=[("problem", "lost")], rollouts=[group],
                     problems=[("t", "p", 4, 1)], tree={}, pin=True)  # fmt: skip
        store.set(total=3)
    run = Run(path)
    look = lambda: (run.metrics(), run.events(), run.rollouts(), run.problems(), run.checkpoints(), run.cursor)  # noqa: E731
    assert look() and run.get("total") == 3
    with sqlite3.connect(path / "run.sqlite") as db:
        db.execute(change)
    db.close()
    with pytest.raises(StoreError, match=f"run.sqlite: {what}"):
        look(), run.get("total")
    assert [r.name for r in list_runs(tmp_path)] == ["r"]


def test_every_column_of_every_table_is_in_the_checksum(store: Store) -> None:
    with sqlite3.connect(store.path / "run.sqlite") as db:
        tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
        assert tables == rows.COLUMNS.keys()
        for table in tables:
            assert rows.list_columns(db, table) - {"id", "checksum"} == {*rows.COLUMNS[table]}
    db.close()


def test_a_run_of_the_second_format_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """Its tables had a checksum `crc` of some columns; what is written now stands beside it."""
    run = tmp_path / "old"
    run.mkdir()
    old = OLD.replace("'1')", "'2')").replace("metrics text not null)", "metrics text not null, crc integer)")
    old = old.replace("""'{"n":7}')""", """'{"n":7}', 5)""")
    old += "insert into cursor values (1, 0, 'step-00000000', 'main', 1.5);"
    old += "insert into checkpoints values ('step-00000000', 0, 0, null);"
    (run / "checkpoints" / "step-00000000").mkdir(parents=True)
    with sqlite3.connect(run / "run.sqlite") as db:
        db.executescript(old)
    db.close()
    assert Run(run).metrics()["n"] == [7] and Run(run).cursor["wall"] == 1.5
    with Store.open(run) as store:
        store.commit(1, metrics={"n": 8}, tree={})
        assert Run(run).metrics()["n"] == [7, 8] and store.cursor == Run(run).cursor and store.cursor["step"] == 1
    with sqlite3.connect(run / "run.sqlite") as db:
        db.execute("update steps set wall = 7.0 where step = 1")
    db.close()
    with pytest.raises(StoreError, match="step 1 is damaged"):
        Run(run).metrics()


def test_rows_that_older_formats_left_without_a_checksum_get_one(tmp_path: Path) -> None:
    """A run that was of format 2 and written on in 3 has both kinds; from format 4 on a row without one is damaged."""
    with Store.open(tmp_path / "r") as store:
        commit(store, 0, problems=[("t", "p", 4, 1)], rollouts=[{"group": "a"}])
        for table in rows.COLUMNS:
            store._db.execute(f"update {table} set checksum = null")
        with pytest.raises(StoreError, match=r"the fact format is damaged .its checksum is missing"):
            Run(store.path).get("format")
        store._db.execute("update meta set value = '3'")
    with Store.open(store.path) as again:
        commit(again, 1)
        for table in rows.COLUMNS:
            assert again._db.execute(f"select count(*) from {table} where checksum is null").fetchone() == (0,)
        assert len(Run(store.path).problems()) == 1 and Run(store.path).get("format") == schema.FORMAT


def test_problems_are_counted_for_ever_and_their_rollouts_found(store: Store) -> None:
    assert math.isnan(store.rate("sums", "1+1"))
    kept = {"group": "k", "task": "sums", "problem": "1+1", "why": "best", "score": 0.5}
    store.commit(0, metrics={}, problems=[("sums", "1+1", 8, 2), ("sums", "2+2", 8, 8)], tree={}, rollouts=[kept])
    store.commit(1, metrics={}, problems=[("sums", "1+1", 8, 6)], rollouts=[{**kept, "group": "l"}])
    assert store.rate("sums", "1+1") == 0.75
    store.commit(2, metrics={}, problems=[("sums", "1+1", 0, 0), ("sums", "3+3", 0, 0)])  # nothing of it was graded
    assert store.rate("sums", "1+1") == 0.75 and math.isnan(store.rate("sums", "3+3"))
    run = Run(store.path)
    assert run.problems() == [
        {"task": "sums", "problem": "1+1", "asked": 16, "solved": 8, "first": 0, "last": 2},
        {"task": "sums", "problem": "2+2", "asked": 8, "solved": 8, "first": 0, "last": 0},
        {"task": "sums", "problem": "3+3", "asked": 0, "solved": 0, "first": 2, "last": 2},
    ]
    assert [(g["step"], g["group"]) for g in run.rollouts(problem="sums/1+1")] == [(0, "k"), (1, "l")]
    assert [g["group"] for g in run.rollouts(problem="1+1", step=1)] == ["l"]
    assert run.rollouts(problem="sums/2+2") == run.rollouts(problem="1+1", step=2) == []
    with sqlite3.connect(store.path / "run.sqlite") as db:
        where, args = finding.name_condition("a/sums/1+1")
        (*plan,) = db.execute(f"explain query plan select id from rollouts where {where}", args)
    db.close()
    assert len(args) == 5 and not [told for *_, told in plan if told.startswith("SCAN")]
    store.close()
    with Store.open(store.path) as again:  # what no checkpoint holds is done again, and counted once
        assert again.rate("sums", "1+1") == 0.25
        again.set(total=2)
        assert run.problems()[0]["asked"] == 8


def test_a_score_of_few_graded_chooses_no_checkpoint(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", best="evaluate/greedy") as store:
        for step, greedy, ungraded in ((0, 0.4, 0.0), (1, 1.0, 0.9), (2, 0.3, 0.05)):
            store.commit(step, metrics={"evaluate/greedy": greedy, "evaluate/ungraded": ungraded}, tree={})
        assert Run(store.path).find_step("best") == 0


def test_a_newer_format_is_refused_and_left_alone(store: Store) -> None:
    newer = schema.FORMAT + 1
    store.set(format=newer)
    store.close()
    for opening in (Store.open, Run):
        with pytest.raises(StoreError, match=f"has format {newer}; this version reads up to {schema.FORMAT}: upgrade"):
            opening(store.path)
    assert Store.open(store.path, format=newer).get("format") == newer


def test_killed_before_the_first_table(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"")
    assert Run(tmp_path).cursor is None
    with Store.open(tmp_path) as store:
        commit(store, 0)


def test_texts_are_replaced_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_text("recipe.toml", "steps = 3\n")
    monkeypatch.setattr(files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(StoreError, match=r"recipe.toml: the disk is full"):
        store.write_text("recipe.toml", "steps = 4\n")
    assert (store.path / "recipe.toml").read_text() == "steps = 3\n" and not list(store.path.glob(".tmp*"))


# ---------------------------------------------------------------- other processes


def test_one_writer_many_readers(store: Store) -> None:
    commit(store, 0)
    with pytest.raises(LockedError, match=rf"written by process {os.getpid()} on .*wait for it or stop it"):
        Store.open(store.path)
    script = (
        "import sys; from shuhari.store import Store, Run, LockedError\n"
        "run = Run(sys.argv[1]); print(run.status, run.step, run.load()['n'])\n"
        "try: Store.open(sys.argv[1])\n"
        "except LockedError: print('locked')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(store.path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["running", "0", "0", "locked"]
    commit(store, 1)  # the reader took nothing
    store.close()
    Store.open(store.path).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_hold_the_lock(store: Store) -> None:
    """A grader that outlives its killed trainer must not keep the run locked."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(30,))
    child.start()
    try:
        store.close()
        Store.open(store.path).close()
    finally:
        child.kill()
        child.join()


_CHILD = """
import sys, torch
from shuhari.store import Ring, Store
torch.set_num_threads(1)
with Store.open(sys.argv[1], keep=2) as store:
    tree = store.load()
    n, ring = (0, Ring.zeros(40, {"x": torch.zeros(1)}, block=8)) if tree is None else (tree["n"], tree["ring"])
    step = store.step + 1
    while True:
        n += step
        ring.append({"x": torch.tensor([float(step), -float(step)])})
        tree = {"n": n, "ring": ring, "w": torch.full((3000,), n)} if step % 3 == 0 else None
        store.commit(step, metrics={"n": n}, tree=tree, rollouts=[{"group": "g", "n": n}], events=[("step", n)])
        print(step, flush=True)
        step += 1
"""


def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """A chain of killed processes: each finds the sum 0 + 1 + … + step that the last transaction says."""
    last = -1
    for i in range(5):
        child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert int(child.stdout.readline()) == last + 1
        time.sleep(0.08 + 0.037 * i)
        child.send_signal(signal.SIGKILL)
        told = [last + 1, *map(int, child.stdout.read().split("\n")[:-1])]  # a step that was told is stored
        child.wait()
        child.stdout.close()
        assert told[-1] <= Run(tmp_path).step <= told[-1] + 1
        seen = Run(tmp_path)
        assert seen.status == "stopped" and seen.metrics()["n"] == [s * (s + 1) // 2 for s in range(seen.step + 1)]
        with Store.open(tmp_path, keep=2) as store:
            assert store.cursor is not None and store.cursor["step"] == store.step >= last
            last = store.step
            tree = store.load()
            assert last % 3 == 0 and tree["n"] == last * (last + 1) // 2 == tree["w"][0] == tree["w"][-1]
            written = [x for s in range(last + 1) for x in (s, -s)]
            ring = tree["ring"]
            assert ring.written == len(written)
            rows = [written[j] for j in sorted(range(max(0, len(written) - 40), len(written)), key=lambda j: j % 40)]
            assert ring.columns["x"][: len(rows)].tolist() == rows
            store.set(total=9)  # what is left of writing goes with the first that is written
            assert len([n for n in names(tmp_path) if n != "rings"]) <= 2
            run = Run(tmp_path)
            assert [e["data"] for e in run.events("step")] == run.metrics()["n"]
            assert len(run.metrics()["n"]) == last + 1 and run.rollouts(last)[0]["n"] == tree["n"]
    assert last > 0


def fail(path: Path, during: Callable[[Store], Any]) -> None:
    def work() -> None:
        with Store.open(path) as store:
            during(store)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()


def test_a_new_run_that_fails_before_its_first_step_leaves_nothing_behind(tmp_path: Path) -> None:
    fail(tmp_path / "runs" / "family" / "x", lambda store: store.write_text("recipe.toml", "steps = 1"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes").write_text("mine")
    fail(tmp_path, lambda store: store.set(total=1))
    assert [p.name for p in tmp_path.iterdir()] == ["notes"]  # of its owner's files none goes


def test_a_run_that_made_a_step_or_was_there_stays(tmp_path: Path) -> None:
    fail(tmp_path / "a", lambda store: store.commit(0, metrics={}, tree={}))
    fail(tmp_path / "b", lambda store: (store.path / "children").mkdir())  # of a study, stopped in its first piece
    Store.open(tmp_path / "c").close()
    fail(tmp_path / "c", lambda store: None)
    assert all((tmp_path / name / "run.sqlite").is_file() for name in "abc")


def test_a_path_that_can_be_no_folder_is_told_without_a_word_of_what_was_stored(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("")
    for path in ("p.jsonl", "p.jsonl/run"):
        with pytest.raises(StoreError, match=r"no run can be made at .*: .*p\.jsonl is a file; expected .* a folder$"):
            Store.open(tmp_path / path)
    if Path("/proc").is_dir():
        told = r"no run can be made at /proc/nope/run: in /proc no folder .* another path$"
        with pytest.raises(StoreError, match=told):
            Store.open("/proc/nope/run")


def test_a_point_of_a_few_episodes_is_no_best(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run", keep=3, best="evaluate/greedy") as store:
        store.commit(1, metrics={"evaluate/greedy": 9.0, "evaluate/episodes": 4.0}, tree={})
        store.commit(2, metrics={"evaluate/greedy": 5.0}, tree={})
        store.commit(3, metrics={"evaluate/greedy": 4.0}, tree={})
    assert [c["score"] for c in Run(tmp_path / "run").checkpoints()] == [None, 5.0, 4.0]
    assert Run(tmp_path / "run").find_step("best") == 2
