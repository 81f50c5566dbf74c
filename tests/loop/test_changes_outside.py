"""A run knows the data and the code that it was made with: it says when they change, and keeps copies."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shuhari.api import load as load_policy
from shuhari.api import read_trained, train
from shuhari.config.overlay import BUDGETS
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.loop import outside
from shuhari.loop.outside import compute_digests, find_outside
from shuhari.loop.study import train as steps
from shuhari.store import Run, StoreError
from shuhari.testing.compare import contents, differences
from small_runs import POLICY, recipe

RECIPE = """
steps = 3
[task]
name = "file/{data}"
{policy}[rollout]
n = 2
sampling.max_new = 2
[buffer]
size = 2
[collect.advantage]
[reward.own]
use = "{code}:score"
[part.policy]
terms.clip = {{}}
optimiser.lr = 1e-2
"""
CODE = "def score(completions):\n    return [float(len(c)) for c in completions]  # longer is better\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(8)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "own.py").write_text(CODE)
    names = {"data": tmp_path / "sums.jsonl", "code": tmp_path / "own.py"}
    (tmp_path / "tiny.toml").write_text(RECIPE.format(policy=POLICY, **names))
    return tmp_path


def test_what_is_outside_is_found_by_its_name_in_the_recipe(made: Path) -> None:
    found = find_outside(load(made / "tiny.toml"))
    assert sorted(p.name for p in found.values()) == ["own.py", "sums.jsonl"]
    before = compute_digests(found)
    (made / "own.py").write_text(CODE.replace("  # longer is better", ""))  # says the same
    assert compute_digests(found) == before
    (made / "own.py").write_text(CODE.replace("float(len(", "-float(len("))
    changed = [Path(n).name for n, d in compute_digests(found).items() if d != before[n]]
    assert changed == ["own.py:score"]
    assert find_outside(load("baselines/bandit")) == {}


@pytest.mark.parametrize("name", ["sums.jsonl", "own.py"])
def test_a_run_that_goes_on_with_something_else_asks_first(made: Path, name: str) -> None:
    tiny, run = load(made / "tiny.toml"), made / "run"

    def stop(report: Any) -> None:
        if report["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny, run, progress=stop)
    before = Run(run).step
    text = (made / name).read_text()
    (made / name).write_text(text.replace("float(len", "2 * float(len").replace('"8"', '"9"'))
    with pytest.raises(RecipeError, match=rf"was made with another '.*{name}.*--accept-changes"):
        train(tiny, run)
    assert Run(run).step == before and not Run(run).events("changed")
    train(tiny, run, accept_changes=True)
    (event,) = Run(run).events("changed")
    assert [Path(key).name.startswith(name) for key in event["data"]] == [True] and Run(run).status == "complete"
    train(tiny, run)  # what was accepted is what it is made with now


def test_a_run_is_loaded_where_its_data_and_code_are_not(made: Path) -> None:
    train(load(made / "tiny.toml"), made / "run")
    said = load_policy(made / "run").generate(["1+1=", "2+1="])
    for name in ("sums.jsonl", "own.py", "tiny.toml"):
        (made / name).unlink()
    shutil.move(made / "run", made / "elsewhere")
    assert load_policy(made / "elsewhere").generate(["1+1=", "2+1="]) == said
    kept = json.loads((made / "elsewhere" / "needs" / "needs.json").read_text())
    assert {Path(k).name: v["bytes"] > 0 for k, v in kept.items()} == {"sums.jsonl": True, "own.py:score": True}


def test_a_complete_run_is_extended_to_the_run_that_it_would_have_been(tmp_path: Path) -> None:
    short = train("baselines/bandit", tmp_path / "run", steps=6, **{"evaluate.every": 2})
    long = train("baselines/bandit", tmp_path / "long", steps=10, **{"evaluate.every": 2})
    with pytest.raises(RecipeError, match=r"another recipe .steps: 6 there, 5 here"):
        short.extend(steps=5)
    with pytest.raises(RecipeError, match=r"another recipe .seed"):
        short.extend(seed=3)
    made = []
    longer = short.extend(progress=lambda r: made.append(r["step"]), steps=10)
    assert made == [7, 8, 9, 10] and longer.summary["steps"] == 10 and Run(tmp_path / "run").status == "complete"
    theirs, ours = contents(long.path), contents(longer.path)
    for tree in (theirs, ours):
        tree.pop("summary")
    assert not differences(theirs, ours)
    run = Run(tmp_path / "run")
    (event,) = run.events("extended")
    assert event == {"step": 6, "kind": "extended", "data": {"steps": [6, 10]}} and run.get("total") == 10
    assert read_trained(tmp_path / "run").metrics["step"] == [*range(1, 11)]
    assert train("baselines/bandit", tmp_path / "run", steps=10, **{"evaluate.every": 2}).summary["steps"] == 10


def test_only_the_last_stage_is_extended(tmp_path: Path) -> None:
    made = recipe("stages", tmp_path)
    longer = [{"stage": {s["name"]: {u: s[u] + 1 for u in BUDGETS if u in s}}} for s in made.stages]
    path = tmp_path / "run"
    train(made, path)
    with pytest.raises(RecipeError, match="another recipe"):
        list(steps(made.with_settings(longer[0]), path))
    assert len(list(steps(made.with_settings(longer[-1]), path))) == 1


def test_the_code_of_an_environment_is_outside_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("halls.py").write_text("class Hall: ...\n")
    paths = ({"name": "gym", "path": f"world/{path}"} for path in ("halls.Hall", "halls.py:Hall"))
    names = ({"name": f"gym/{name}"} for name in ("halls.py:Hall", "world/halls.Hall", "halls:Hall-v0"))
    for table in (*paths, *names):
        found = find_outside(Recipe("own", {"task": table}))
        assert [p.name for p in found.values()] == ["halls.py"], table
    assert not find_outside(Recipe("own", {"task": {"name": "gym", "path": "world/given/Hall-ab12"}}))


def test_a_copy_that_is_not_what_was_kept_is_refused_where_the_original_is_gone(made: Path) -> None:
    path = train(made / "tiny.toml", made / "run").path
    (copy,) = (path / "needs").glob("*own.py")
    copy.write_text(CODE.replace("len(c)", "-len(c)"))
    load_policy(path)  # the original is there
    (made / "own.py").unlink()
    with pytest.raises(RecipeError, match=r"own.py:score' is not there, and its copy .*own.py is not what was kept"):
        load_policy(path)
    copy.write_text(CODE)
    load_policy(path)
    (path / "recipe.toml").unlink()
    with pytest.raises(RecipeError, match=r"a run whose recipe.toml is missing, or no file: `shuhari doctor"):
        load_policy(path)


def test_a_disk_without_room_for_the_copies_is_told_and_nothing_is_left(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outside.shutil, "copyfile", refuse)
    with pytest.raises(StoreError, match=r"copy .* to .*needs/.*: the disk is full: free some space"):
        list(steps(load(made / "tiny.toml"), made / "full"))
    assert not (made / "full").exists()
