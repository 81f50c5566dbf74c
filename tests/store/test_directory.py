"""Runs from outside: found by name, listed, read while they are written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from shuhari.store import Run, Store, StoreError, directory, find_checkpoint, list_runs, metrics, resolve
from shuhari.store.directory import NoRunError


def make(path: Path, steps: int = 2, **facts: object) -> Path:
    with Store.open(path) as store:
        for step in range(steps):
            store.commit(step, metrics={"reward": step / 10}, tree={"n": step})
        store.set(**facts)
    return path


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoRunError, match="no run is in runs/ yet"):
        resolve("latest")
    first, second = make(Path("runs/first")), make(Path("runs/family/second"))
    os.utime(first / "run.sqlite", (1, 1))
    assert resolve("first") == first and resolve("runs/first") == first and resolve(first.absolute()).samefile(first)
    assert resolve("family/second") == second and resolve("latest") == second
    os.utime(second / "run.sqlite", (0, 0))
    assert resolve("latest") == first
    with pytest.raises(NoRunError, match=r"no run 'frist'.*did you mean 'first'"):
        resolve("frist")
    holds = r"runs is not a run: it has no run.sqlite, and holds 2 that are: .* such as runs/first"
    within = r"lies in the run \S+/runs/first: expected that, or \S+/runs/first@STEP"
    for wrong, told in {
        "runs": holds,
        "runs/first/checkpoints": f"it has no run.sqlite; it {within}",
        "runs/first/run.sqlite": f"is a file; it {within}",
        "runs/firts": "did you mean 'first'",
        "firstt": r"firstt is not a run: it has no run.sqlite; did you mean 'first'",
    }.items():
        Path("firstt").mkdir(exist_ok=True)
        with pytest.raises(NoRunError, match=told):
            resolve(wrong)
    assert metrics("first")["reward"] == [0.0, 0.1]


def test_a_checkpoint_is_named_by_its_step_or_as_the_best(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a@b", keep=9, best="score") as store:
        for step, score in enumerate((0.1, 0.7, 0.2, 0.7)):
            store.commit(step, metrics={"score": score}, tree={"n": step})
        store.commit(4, metrics={}, tree={"n": 4})
    at = tmp_path / "a@b"
    run = Run(at)
    assert [(c["step"], c["score"]) for c in run.checkpoints()] == [(0, 0.1), (1, 0.7), (2, 0.2), (3, 0.7), (4, None)]
    assert find_checkpoint(str(at)) == (at, None)  # a name may have an @ itself
    assert find_checkpoint(f"{at}@2") == (at, 2)
    assert find_checkpoint("a@b@best", tmp_path) == (at, 1)  # the first of equals
    for wrong in ("7", "-1", "x"):
        with pytest.raises(
            StoreError, match=f"no checkpoint of step {wrong}; checkpoints there: steps 0, 1, 2, 3, 4, or"
        ):
            find_checkpoint(f"{at}@{wrong}")
    with pytest.raises(NoRunError, match="no run 'ab'"):
        find_checkpoint("ab@3", tmp_path)
    with pytest.raises(StoreError, match="no best checkpoint: none of steps 0, 1 was evaluated"):
        find_checkpoint(f"{make(tmp_path / 'c')}@best")
    with pytest.raises(StoreError, match="has no checkpoint yet"):
        find_checkpoint(f"{make(tmp_path / 'd', 0)}@best")


def test_list_runs(tmp_path: Path) -> None:
    make(tmp_path / "a", 3, total=3, complete=True)
    make(tmp_path / "b", 2, total=5)
    with Store.open(make(tmp_path / "c")) as running:
        running.write_text("recipe.toml", "steps = 7\n")
        running.commit(2, metrics={"reward": 0.7, "evaluate/greedy": 0.25})
        running.commit(3, metrics={"reward": 0.8})
        make(tmp_path / "d")
        (tmp_path / "d" / "summary.json").write_text('{"after": {"greedy": 1}}')
        (tmp_path / "e").mkdir()
        (tmp_path / "e" / "run.sqlite").write_bytes(b"nonsense" * 200)
        found = {s.name: s for s in list_runs(tmp_path)}
    assert [(n, s.status, s.step, s.total) for n, s in found.items()] == [
        ("a", "complete", 2, 3),
        ("b", "stopped", 1, 5),
        ("c", "running", 3, 7),
        ("d", "complete", 1, None),
        ("e", "unreadable", -1, None),
    ]
    assert (found["c"].score_name, found["c"].score) == ("evaluate/greedy", 0.25)
    assert (found["a"].score_name, found["a"].score) == ("reward", 0.2)
    assert "not the database of a run" in found["e"].note
    assert Run(tmp_path / "d").summary == {"after": {"greedy": 1}} and Run(tmp_path / "a").summary is None
    assert list_runs(tmp_path / "nowhere") == []


def test_metrics_are_columns_with_gaps(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.commit(0, stage="warm", wall=1.0, metrics={"a": 1})
        store.commit(1, stage="main", wall=2.5, metrics={"a": 2, "b": 3})
    run = Run(tmp_path)
    assert run.metrics() == {"step": [0, 1], "stage": ["warm", "main"], "wall": [1.0, 2.5], "a": [1, 2], "b": [None, 3]}
    assert run.metrics(after=0)["a"] == [2]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is not a run: it has no run.sqlite"):
        Run(tmp_path)
    run = Run(make(tmp_path / "a", 0))
    with pytest.raises(StoreError, match="has no checkpoint"):
        run.load()
    with pytest.raises(StoreError, match=r"recipe.toml"):
        _ = run.recipe
    assert run.rollouts() == [] and run.step == -1
    (run.path / "recipe.toml").write_text("steps = [")
    with pytest.raises(StoreError, match=r"recipe.toml"):
        _ = run.recipe


def test_reading_while_a_run_writes_and_prunes(tmp_path: Path) -> None:
    """A reader that finds its checkpoint gone takes the next one; it never sees a mixture."""
    with Store.open(tmp_path, keep=1) as store:
        store.commit(0, metrics={"n": 0}, tree={"n": 0, "w": torch.zeros(500)})
        stop, seen, errors = threading.Event(), [], []

        def read() -> None:
            while not stop.is_set():
                try:
                    tree, columns = Run(tmp_path).load(), Run(tmp_path).metrics()
                    assert tree["w"][0] == tree["w"][-1] == tree["n"] and columns["n"] == columns["step"]
                    seen.append(tree["n"])
                except BaseException as error:
                    errors.append(error)
                    return

        thread = threading.Thread(target=read)
        thread.start()
        for step in range(1, 150):
            store.commit(step, metrics={"n": step}, tree={"n": step, "w": torch.full((500,), float(step))})
        stop.set()
        thread.join()
    assert not errors and len(set(seen)) > 1 and seen == sorted(seen)


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    make(tmp_path / "a")
    script = "import sys; from shuhari.store import list_runs as l; print(len(l(sys.argv[1])), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_of_many_runs_the_newest_are_named_and_none_inside_of_another(tmp_path: Path) -> None:
    for i in range(directory.NEWEST + 2):
        for name in (f"r{i}", f"r{i}/children/c"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "run.sqlite").touch()
            os.utime(tmp_path / name / "run.sqlite", (i, i))
    with pytest.raises(NoRunError) as told:
        resolve("nope", tmp_path)
    newest = ", ".join(f"r{i}" for i in range(9, 1, -1))
    assert str(told.value).endswith(f"the newest: {newest} (`shuhari runs` lists all)")
