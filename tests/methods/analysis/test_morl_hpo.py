"""Areas and utilities by hand, and tables that know the way."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.methods.analysis.morl_hpo.front_gap import (
    COLUMNS,
    DEPTHS,
    ROWS,
    WEIGHTS,
    FrontGap,
    list_best,
    measure_fronts,
    play,
    train,
)


def sum_boxes(front: list[list[float]]) -> float:
    """The area of the union of the boxes below points (x, y), from the right: what each adds above those before it."""
    total = height = 0.0
    for x, y in sorted(front, reverse=True):
        total += max(x, 0.0) * max(y - height, 0.0)
        height = max(height, y)
    return total


def test_the_area_by_hand_and_by_sweeping_over_the_points() -> None:
    front = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    assert measure_fronts(np.stack([front, front[[2, 0, 1]]])).tolist() == [6, 6]
    assert measure_fronts(np.vstack([front, [1.0, 1.0]])[None]).tolist() == [6]
    points = np.random.default_rng(0).normal(0.5, 0.5, (20, 7, 2))
    assert measure_fronts(points) == pytest.approx([sum_boxes(one) for one in points.tolist()])


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
    assert measure_fronts(front[None]) <= measure_fronts(list_best()[None])


def test_the_numbers_belong_together() -> None:
    found = FrontGap(trials=2, tuning=1, tests=2, episodes=20)(0)
    assert found["gain"] == pytest.approx(found["tuned"] - found["default"])
    assert found["gap"] == pytest.approx(found["tuning"] - found["tuned"])
    assert 0 <= found["default"] <= found["largest"] and found["tuned"] <= found["largest"]
