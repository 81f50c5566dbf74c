"""Readings of a curve, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shuhari.lab.claims.curve import Reading, find_crossing, read_curve

COLUMNS = {
    "evaluate/mean": [None, 0.4, None, 0.8],
    "length": [10.0, 8.0, 6.0, 4.0],
    "nan": [math.nan, 1.0, math.nan, 3.0],
    "broken": [1.0, 2.0, math.nan, math.nan],
}
SPENT = [100.0, 200.0, 300.0, 400.0]
START = {"mean": 0.2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("length:final", 4.0),
        ("length", 4.0),
        ("length:first", 10.0),
        ("length:best", 10.0),
        ("length:worst", 4.0),
        ("length:mean", 7.0),
        ("length:last=2", 5.0),
        ("length:area", 7.0),
        ("length:over=7", (200 + 50) / 300),  # of 3, 1, 0, 0
        ("length:over=10", 0.0),
        ("broken:over=0", math.nan),
        ("nan:mean", 2.0),
        ("evaluate/mean:first", 0.2),  # the score before the first step
        ("evaluate/mean:area", (0.3 * 200 + 0.6 * 200) / 400),
        ("evaluate/mean:to=0.6", 300.0),  # half-way between 200 and 400
        ("evaluate/mean:to=0.2", 0.0),
        ("evaluate/mean:to=0.9", 500.0),  # never: the whole budget
        ("broken:final", math.nan),  # not its last good value
        ("broken:last=3", math.nan),
        ("broken:best", 2.0),
        ("broken:worst", 1.0),
        ("length:at=evaluate/mean>=0.4", 8.0),
        ("length:at=evaluate/mean>=0.8", 4.0),
        ("evaluate/mean:at=length<=8", 0.4),
    ],
)
def test_readings(text: str, value: float) -> None:
    assert Reading.of(text)(COLUMNS, SPENT, START, 500.0) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [("length:final", 5.0), ("evaluate/mean:final", 0.7), ("evaluate/mean:to=0.75", 350.0), ("length:last=2", 5.5)],
)
def test_curves_are_read_up_to_where_the_budget_is_spent(text: str, value: float) -> None:
    """The last step went over: 300, then 400, of 350. What comes later comes too late."""
    assert Reading.of(text)(COLUMNS, SPENT, START, 350.0) == pytest.approx(value)


def test_a_value_that_is_never_reached_has_no_reading() -> None:
    assert math.isnan(Reading.of("length:at=evaluate/mean>=0.9")(COLUMNS, SPENT, START, 500.0))


def test_names_of_a_reading_are_the_metrics_that_it_reads() -> None:
    assert Reading.of("length:at=evaluate/mean>=0.9").names == ("length", "evaluate/mean")
    assert Reading.of("reward/mean@sums:final").names == ("reward/mean@sums",)


def test_a_crossing_at_a_jump_and_between_equals() -> None:
    x = np.array([0.0, 1.0, 2.0])
    assert find_crossing(x, np.array([0.0, 0.0, 1.0]), 0.5, 9.0) == 1.5
    assert find_crossing(x, np.array([0.5, 0.5, 1.0]), 0.5, 9.0) == 0.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("length:fnal", "did you mean 'final'"),
        ("length:lst=3", "did you mean 'last'"),
        ("length:last=x", "'x' is not a number"),
        ("length:last=0", "at least 1"),
        ("length:last=2.5", "whole number"),
        ("length:at=0.5", "metric:at=other>=value"),
    ],
)
def test_mistakes_are_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Reading.of(text)


def test_a_metric_that_is_not_there_gives_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'length'"):
        Reading.of("lenght:final")(COLUMNS, SPENT, START, 500.0)


def test_a_curve_of_several_stages_has_the_last_ones_start_where_it_began() -> None:
    columns = {"evaluate/mean": [None, 0.2, None, 0.8]}
    x, y = read_curve(columns, "evaluate/mean", [1.0, 2.0, 3.0, 4.0], {"mean": 0.1}, 1.0)
    assert (x.tolist(), y.tolist()) == ([1.0, 2.0, 4.0], [0.1, 0.2, 0.8])
    x, y = read_curve(
        columns, "evaluate/mean", [1.0, 2.0, 3.0, 4.0], {"mean": 0.1}, 2.0
    )  # where the stage before ended
    assert (x.tolist(), y.tolist()) == ([2.0, 4.0], [0.2, 0.8])
