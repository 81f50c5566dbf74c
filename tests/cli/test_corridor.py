"""The environment of docs/environments.md, as a new user has it: named by its module, or handed over, run, read again
and extended, from its folder and where it is not."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from shuhari.desk.api import load, train

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
SMALL = {"steps": 1, "buffer.size": 64, "evaluate.n": 2, "task.kwargs.max_episode_steps": 50}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `corridor.py` alone, which nothing has imported."""
    code = PAGE.read_text().partition("`corridor.py`")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "corridor.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield tmp_path
    _forget()


def _forget() -> None:
    """As in another process."""
    sys.modules.pop("corridor", None)
    gymnasium.registry.pop("Corridor-v0", None)
    importlib.invalidate_caches()


def _leave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go where no corridor.py is."""
    _forget()
    (folder / "away").mkdir()
    monkeypatch.chdir(folder / "away")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "corridor.py").exists()])


@pytest.mark.parametrize(
    "name", ["gym/corridor:Corridor-v0", "gym/world/corridor.Corridor", "gym/corridor.py:Corridor"]
)
def test_a_run_of_the_corridor_is_read_and_extended(
    shuhari: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = shuhari("train", "baselines/ppo_cartpole", "--set", f"task.name={name}", "--run", "runs/corridor", *sets)
    assert done.code == 0, done.err
    stated = (folder / "runs/corridor/recipe.toml").read_text()
    (scored,) = [shuhari("eval", "corridor")]
    assert scored.code == 0 and "greedy" in scored.out, scored.err
    assert "-> " in shuhari("show", "corridor", "--rollouts").out
    assert shuhari("export", "corridor", "exported").code == 0
    longer = shuhari("train", "runs/corridor", "--set", "steps=2")
    assert longer.code == 0, longer.err
    _leave(folder, monkeypatch)
    again = shuhari("train", "../runs/corridor", "--set", "steps=3")
    assert again.code == 0, again.err
    assert json.loads((folder / "runs/corridor/summary.json").read_text())["steps"] == 3
    assert (folder / "runs/corridor/recipe.toml").read_text() == stated.replace("steps = 1\n", "steps = 3\n", 1)
    assert load("../runs/corridor").act([1.0, 0, 0, 0, 0, 0, 0]) in (0, 1)


def test_a_corridor_that_is_handed_over_is_loaded_and_extended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    run = train("baselines/ppo_cartpole", "runs/corridor", env=importlib.import_module("corridor").Corridor, **SMALL)
    assert run.policy.act([1.0, 0, 0, 0, 0, 0, 0]) in (0, 1) and load(run.path).actions == gymnasium.spaces.Discrete(2)
    assert "greedy" in run.evaluate(2)
    assert run.extend(steps=2).summary["steps"] == 2
    assert run.video("corridor.gif").is_file()


def test_a_copy_of_a_module_that_is_not_what_was_kept_is_refused(
    shuhari: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "task.name": "gym/corridor:Corridor-v0"}
    run = train("baselines/ppo_cartpole", folder / "runs" / "corridor", **settings)
    _leave(folder, monkeypatch)
    copy = run.path / "needs" / "modules" / "corridor.py"
    copy.write_text(copy.read_text().replace("0.01", "0.02"))
    refused = shuhari("eval", str(run.path))
    assert refused.code != 0 and "not what was kept" in " ".join(refused.err.split())
