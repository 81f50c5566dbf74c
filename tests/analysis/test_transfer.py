"""Replays of rules that choose contexts: by hand, against the study on the same returns, and the stored file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.analysis import transfer
from shuhari.analysis.transfer import STORED, Transfer, read
from shuhari.config.recipe import load
from shuhari.studies.surrogate import Mbtl

HAND = [[0.9, 0.1, 0.1], [0.5, 0.8, 0.5], [0.0, 0.2, 0.7]]


def stored(folder: Path, choose: Any, held: Any = None, seeds: tuple[int, ...] = (7,)) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    both = {"choose": np.array(choose), "held": np.array(choose if held is None else held)}
    path.write_text(json.dumps({"seeds": seeds, **{k: v.tolist() for k, v in both.items()}}))
    return str(path)


class Known:
    """Runs of a study whose returns are known: J in the episodes that choose, `held` in the others."""

    seed = 7

    def __init__(self, J: np.ndarray, held: np.ndarray) -> None:
        self.J, self.held = J, held

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        return iter(())

    def evaluate(self, name: str, settings: Mapping[str, Any]) -> dict[str, float]:
        returns = self.J if "evaluate.split" in settings else self.held
        return {"greedy": float(returns[int(name.removeprefix("context-")), int(settings["x"])])}


def test_one_training_by_hand(tmp_path: Path) -> None:
    """The middle serves .5 .8 .5, a mean of .6; the others .3667 and .3, so random ones have .4222."""
    file = stored(tmp_path, [HAND])
    found = Transfer(trainings=1, draws=4000, file=file)(7)
    assert found["coverage"] == pytest.approx(0.6)
    assert found["gain"] == pytest.approx(0.6 - 3.8 / 9, abs=0.01)
    assert Transfer("equidistant", "best", trainings=1, file=file)(7) == pytest.approx({"coverage": 0.6, "gain": 0.0})


def test_who_serves_a_context_is_chosen_by_some_episodes_and_scored_by_others(tmp_path: Path) -> None:
    """By J the first and the last are best (.9 .2 .7); each context goes to the better of the two there, and `held` has
    .3 for the first in the first, .6 and .2 for the last in the others."""
    held = [[0.3, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.6, 0.2]]
    J = [[0.9, 0.1, 0.1], [0.5, 0.1, 0.1], [0.0, 0.2, 0.7]]
    found = Transfer("best", trainings=2, file=stored(tmp_path, [J], [held]))(7)
    assert found["coverage"] == pytest.approx(1.1 / 3)


@pytest.mark.parametrize("pick", ["mbtl", "equidistant"])
@pytest.mark.parametrize("slope", [0.1, "fitted"])
def test_a_replay_is_the_study_on_the_same_returns(tmp_path: Path, pick: Any, slope: Any) -> None:
    rng = np.random.default_rng(3)
    J, held = rng.random((2, 6, 6))
    runs: Any = Known(J, held)
    *_, row = Mbtl({"x": tuple(map(float, range(6)))}, 3, pick, slope=slope)(runs)
    found = Transfer(pick, trainings=3, slope=slope, file=stored(tmp_path, [J], [held]))(7)
    assert found["coverage"] == pytest.approx(row["study/coverage"], abs=1e-12)


def test_the_best_are_those_of_all_sets_and_all_contexts_leave_nothing_to_choose(tmp_path: Path) -> None:
    J = np.random.default_rng(5).random((5, 5))
    file = stored(tmp_path, [J])
    most = max(np.mean([max(J[a, b] for a in some) for b in range(5)]) for some in combinations(range(5), 2))
    assert Transfer("best", trainings=2, file=file)(7)["coverage"] == pytest.approx(most)
    assert Transfer("best", trainings=2, file=file)(7)["gain"] > 0
    assert Transfer("mbtl", trainings=5, draws=3, file=file)(7)["gain"] == pytest.approx(0, abs=1e-12)


def test_wrong_settings_and_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(tmp_path, [HAND])
    with pytest.raises(ValueError, match="expected two rules"):
        Transfer("random")
    with pytest.raises(ValueError, match="not there; did you mean 'cartpole'"):
        Transfer(file="cartpol")(7)
    with pytest.raises(ValueError, match="trainings is 4: expected 1 to 3"):
        Transfer(file=file)(7)
    with pytest.raises(KeyError, match="no trainings of seed 8"):
        Transfer(trainings=2, file=file)(8)
    with pytest.raises(ValueError, match=r"expected \[S, n, n\]"):
        read(stored(tmp_path, [HAND], seeds=(1, 2)))
    monkeypatch.setitem(transfer.STORED, "cartpole", "other")
    read.cache_clear()
    with pytest.raises(ValueError, match="has changed"):
        read("cartpole")
    read.cache_clear()


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_is_whole(name: str) -> None:
    """Returns are shares, a policy does the same in both halves of the episodes, contexts are those of the recipe."""
    seeds, J, held = read(name)
    (n,) = {len(values) for values in load("curriculum/mbtl").tree["study"]["contexts"].values()}
    assert len(set(seeds)) == len(seeds) and J.shape == held.shape == (len(seeds), n, n)
    assert all(((x >= 0) & (x <= 1)).all() for x in (J, held)) and np.abs(J - held).mean() < 0.05
