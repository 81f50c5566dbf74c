"""Areas and utilities by hand, and tables that know the way."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.lab.sweeps.pareto import compute_hypervolume
from shuhari.methods.analysis.morl_hpo.front_gap import (
    COLUMNS,
    DEPTHS,
    ROWS,
    WEIGHTS,
    FrontGap,
    compute_area,
    list_best,
    play,
    train,
)


def test_the_area_by_hand_and_as_sweeps_compute_it() -> None:
    front = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    assert compute_area(front) == 6 == compute_area(front[[2, 0, 1]])
    assert compute_area(np.vstack([front, [1.0, 1.0]])) == 6
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = rng.normal(0.5, 0.5, (7, 2))
        assert compute_area(points) == pytest.approx(compute_hypervolume(points, np.zeros(2)))


def test_a_table_that_knows_the_way_gets_the_best_return_of_each_column() -> None:
    """Right to a column, then down: the returns are those of the list."""
    q = np.zeros((COLUMNS, ROWS * COLUMNS, 4))
    for column in range(COLUMNS):
        q[column, :column, 3] = 1
        q[column, column::COLUMNS, 1] = 1
    found = play(q, np.zeros(COLUMNS), np.zeros(COLUMNS), np.random.default_rng(0))
    assert np.allclose(found, list_best())
    assert (np.arange(10) + DEPTHS).tolist() == [1, 3, 5, 7, 8, 9, 13, 14, 17, 19]  # as mo-gymnasium has the front


def test_either_end_of_the_weights_finds_the_most_treasure_or_the_shortest_way() -> None:
    """Values that begin too high explore by themselves, in a world without noise."""
    settings = {"rate": np.ones(1), "epsilon": np.full(1, 0.3), "discount": np.full(1, 0.99), "start": np.ones(1)}
    (front,) = train(settings, 600, np.random.default_rng(0))
    assert len(front) == WEIGHTS
    assert np.allclose(front[0], list_best()[0]) and front[-1, 0] == 1
    assert compute_area(front) <= compute_area(list_best())


def test_the_numbers_belong_together() -> None:
    found = FrontGap(trials=2, tuning=1, tests=2, episodes=20)(0)
    assert found["gain"] == pytest.approx(found["tuned"] - found["default"])
    assert found["gap"] == pytest.approx(found["tuning"] - found["tuned"])
    assert 0 <= found["default"] <= found["largest"] and found["tuned"] <= found["largest"]
