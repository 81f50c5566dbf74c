"""Groups that no run keeps are told, in the terminal and on the board, whatever their bytes say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.rollouts import open_group
from shuhari.desk.cli.rollouts import _shorten
from shuhari.desk.episodes import read_group
from shuhari.store import Run, Store, StoreError

STEP = Step(np.array([1]), np.array([2]), np.array([True]), np.array([0]), info={"text": "two"})
GOOD = Trajectory(Request(Problem("sums", "1", "1 + 1"), 1), (STEP,), Status.FINISHED)
ODD: dict[str, dict[str, Any]] = {
    "none": {"trajectories": ()},
    "texts": {"trajectories": ("a", "b")},
    "no score": {"score": "1"},
    "no why": {"why": 3},
    "no pieces": {"pieces": 3},
    "no weights": {"weights": [1]},
    "numbers of others": {"decisions": [[{}], [{}]]},
    "numbers of more steps": {"decisions": [[{}, {}]]},
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_group_of_episodes_is_told(tmp_path: Path, name: str) -> None:
    group = {"group": "g", "trajectories": (GOOD,), "score": 1.0, "why": "best"}
    with Store.open(tmp_path / "runs" / "a") as store:
        store.commit(1, metrics={}, tree={}, rollouts=[group])
        numbers = {**group, **ODD[name]}
        numbers["score"] = 1.0 if name == "no score" else numbers["score"]
        store.commit(2, metrics={}, tree={}, rollouts=[numbers])
    run = Run(tmp_path / "runs" / "a")
    good, bad = run.rollouts(1)[0], {**run.rollouts(2)[0], **({"score": "1"} if name == "no score" else {})}
    assert read_group(good)["episodes"][0]["steps"] == ["two"]
    with pytest.raises(StoreError, match=r"a group of step 2 (is damaged|has numbers of 2 steps, of 1)"):
        read_group(bad)
    if name != "no score":
        with pytest.raises(StoreError, match="a group of step 2"):
            open_group(Catalogue(tmp_path / "runs"), "a", 2)


def test_an_observation_without_numbers_has_a_shape() -> None:
    assert _shorten([[], [], []]) == "picture 3 x 0" and _shorten([]) == "()"
