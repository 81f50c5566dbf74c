"""The held-out curve of a controller: where its points are, by hand; and that training does not see it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari.data import Count
from shuhari.loop.curve import EPISODES, SPENT, is_due, is_open
from shuhari.loop.run import loop, open_run
from shuhari.loop.study import train
from shuhari.store import Run
from small_runs import recipe


def due(began: float, now: float, **ledger: float) -> bool:
    """A step of a stage of 1,000 env_steps, after `began` of them and before `now`."""
    at = SimpleNamespace(count=lambda: Count(1, now, 1000, in_steps=False))
    return is_due(at, Count(0, began, 1000, in_steps=False), {k.replace("__", "/"): v for k, v in ledger.items()})


def test_a_point_at_each_twentieth_of_the_budget() -> None:
    assert due(0, 50) and due(40, 60) and due(90, 260) and not due(0, 49) and not due(50, 99)


def test_points_cost_a_share_of_training() -> None:
    """1,000 decisions and 250 updates, of 4 each: 2,000, of which 3 % is 60."""
    spent = {"decisions": 1000, "updates": 250, "evaluate__decisions": 10**6}
    assert due(0, 50, **spent, **{SPENT: 60}) and not due(0, 50, **spent, **{SPENT: 61})


def weights(path: Path) -> dict[str, Any]:
    return Run(path).load()["models"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


SETTINGS = {"steps": 6, "evaluate__n": 7, "evaluate__settings": {"max_steps": 3}}


def test_training_does_not_see_its_curve(tmp_path: Path) -> None:
    """The same weights and the same reports, but for the points; a resumed run makes the same points."""
    made = recipe("ppo", tmp_path, **SETTINGS)
    bare = list(train(made, tmp_path / "bare", rehearsal=False))
    drawn = list(train(made, tmp_path / "drawn", rehearsal=False, curve=True))
    assert same(weights(tmp_path / "bare"), weights(tmp_path / "drawn"))
    points = [r["step"] for r in drawn if "evaluate/episodes" in r]
    assert points and points[-1] < 6  # the end is an evaluation like any other
    assert all(r["evaluate/episodes"] == EPISODES for r in drawn if "evaluate/episodes" in r)
    for a, b in zip(bare, drawn, strict=True):
        own = {k for k in b if k.startswith(("evaluate/", "spent/curve", "measure")) and b["step"] != 6} | {"seconds"}
        own |= {k for k in b if k.startswith("spent/curve")}
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k not in own}
    steps = loop(open_run(made, tmp_path / "half", curve=True))
    for _ in range(points[0]):
        next(steps)
    steps.close()
    rest = list(train(made, tmp_path / "half", rehearsal=False, curve=True))
    values = {r["step"]: r.get("evaluate/greedy") for r in drawn}
    assert [r.get("evaluate/greedy") for r in rest] == [values[r["step"]] for r in rest]


@pytest.mark.parametrize(
    ("name", "settings", "found"),
    [
        ("ppo", {"evaluate__n": 4}, True),
        ("ppo", {"evaluate__n": 4, "evaluate__every": 0}, False),  # the recipe says it
        ("ppo", {}, False),  # nothing is evaluated
        ("ppo", {"evaluate__n": 4, "evaluate__watch": 2}, False),
        ("text", {"evaluate__n": 4}, False),
    ],
)
def test_the_recipe_must_leave_it_open(tmp_path: Path, name: str, settings: dict[str, Any], found: bool) -> None:
    with open_run(recipe(name, tmp_path, **settings)) as run:
        assert is_open(run.progress) is found
