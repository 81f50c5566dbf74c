"""A run knows the data and the code that it was made with: it says when they change, and keeps copies."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import BUDGETS
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.desk.api import load as load_policy
from shuhari.desk.api import read_trained, train
from shuhari.desk.cli import main
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
terms.loss = {{use = "clip"}}
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


def test_a_run_whose_originals_are_not_there_is_extended_as_the_same(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = RECIPE.format(policy=POLICY, data="sums.jsonl", code="own.py").replace("steps = 3", "", 1)
    (made / "tiny.toml").write_text(f"{staged}\n[[stage]]\nname = 'rl'\nsteps = 3\n")
    settings = {"task.name": "file/sums.jsonl", "reward.own.use": "own.py:score"}
    path = train(made / "tiny.toml", made / "a" / "run", **settings).path
    text = (path / "recipe.toml").read_text()
    (made / "other").mkdir()
    monkeypatch.chdir(made / "other")
    run = Path("../a/run")
    assert train(run).summary["steps"] == 3
    longer = train(run, **{"stage.rl.steps": 5})  # the folder of a run is that run, as of the command line
    assert longer.path == run and longer.summary["steps"] == 5 and longer.extend(steps=6).summary["steps"] == 6
    assert (path / "recipe.toml").read_text() == text.replace("steps = 3", "steps = 6")
    (event, _) = Run(path).events("extended")
    assert event["data"] == {"stage.rl.steps": [3, 5]} and not Run(path).events("changed")
    assert sorted(Run(path).get("outside")) == ["file/sums.jsonl", "own.py:score"]
    with pytest.raises(RecipeError, match=r"another recipe .seed: not set there, 3 here"):
        train(run, seed=3)


@pytest.mark.parametrize("name", ["sums.jsonl", "own.py"])
def test_a_complete_run_says_what_has_changed_since(
    made: Path, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    train(made / "tiny.toml", made / "run")
    train(made / "tiny.toml", made / "run")
    assert "changed since" not in caplog.text
    text = (made / name).read_text()
    (made / name).write_text(text.replace("float(len", "2 * float(len").replace('"8"', '"9"'))
    train(made / "tiny.toml", made / "run")
    (message,) = [r.getMessage() for r in caplog.records if "changed since" in r.getMessage()]
    assert message.startswith(f"{made / 'run'} is complete, and ") and name in message and "another --run" in message
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["train", str(made / "tiny.toml"), "--run", str(made / "run")])
    flat = " ".join("".join(capfd.readouterr()).split())
    assert "is complete: nothing to do (" in flat and "has changed since it was made: another --run trains" in flat


def test_a_disk_without_room_for_the_copies_is_told_and_nothing_is_left(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outside.shutil, "copyfile", refuse)
    with pytest.raises(StoreError, match=r"copy .* to .*needs/.*: the disk is full: free some space"):
        list(steps(load(made / "tiny.toml"), made / "full"))
    assert not (made / "full").exists()


def test_whoever_looks_at_a_run_hears_that_its_code_is_another(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    list(steps(load(made / "tiny.toml"), made / "run"))
    caplog.clear()
    load_policy(made / "run")
    assert "changed" not in caplog.text
    (made / "own.py").write_text(CODE.replace("float(len(", "-float(len("))
    load_policy(made / "run")
    assert "own.py:score' has changed since it was made, and what is there now is used" in caplog.text


def test_what_a_recipe_names_is_looked_for_beside_it_and_then_where_one_stands(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = made / "tiny.toml"
    near.write_text(RECIPE.format(policy=POLICY, data="sums.jsonl", code="own.py"))
    assert load(near).tree["task"]["name"] == "file/sums.jsonl"  # as it is written where one stands there
    away = made / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    for _ in range(2):
        tree = load(near).tree
        assert tree["task"]["name"] == f"file/{made / 'sums.jsonl'}"
        assert tree["reward"]["own"]["use"] == f"{made / 'own.py'}:score"
        for name in ("sums.jsonl", "own.py"):
            shutil.copy(made / name, away)  # those beside the recipe come first
    for name in ("sums.jsonl", "own.py"):
        (made / name).unlink()
    assert {p.resolve().parent.name for p in find_outside(load(near)).values()} == {"away"}
    (away / "sums.jsonl").unlink()
    with pytest.raises(RecipeError, match=r"looked in .*away; of a recipe file beside that first"):
        next(steps(load(near)))
