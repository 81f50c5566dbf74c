"""Backtracks of policies that write known answers: counts, gains and the best run, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from known_policies import Known
from shuhari.kernel.run_names import find_starts, shorten
from shuhari.methods.analysis.backtracking.backtracks import Backtracks

TAUGHT = {"runs/none-s1": 0, "runs/two-s1": 2}


def write(name: str, problem: int, right: bool, x: float) -> str:
    return "a step" + " <again" * TAUGHT[name.removesuffix("@start")] + f" {int(right)}"


def make() -> Known:
    chances = {"runs/none-s1@start": 0.2, "runs/none-s1": 0.4, "runs/two-s1@start": 0.2, "runs/two-s1": 0.7}
    return Known({name: [p] * 64 for name, p in chances.items()}, write)


def test_the_numbers_of_policies_with_known_chances() -> None:
    found = Backtracks(marker="<", samples=16)(make())
    n = found.numbers
    assert n["backtracks of none"].value == 0 and n["backtracks of two"].value == 2 == n["best"].value
    assert n["right of two"].low < 0.7 < n["right of two"].high
    assert n["gain of none"].low < 0.2 < n["gain of none"].high
    assert n["gain of two"].low < 0.5 < n["gain of two"].high
    assert n["better of two"].low < 0.3 < n["better of two"].high and abs(n["better of two"].null) < 0.08
    assert "better of none" not in n  # the run that others are compared with
    assert [row[0] for row in found.rows] == ["none", "two"]


def test_matches_are_counted_in_each_answer() -> None:
    (one,) = Known({"p": [1.0]}, lambda *_: "Wait, no. Let me try 3. wait").sample(1, 2)
    assert Backtracks().count(one).tolist() == [[3, 3]]


def test_one_policy_has_its_own_numbers_alone() -> None:
    found = Backtracks(marker="<")(Known({"two": [0.5] * 32}, lambda *_: "<<"))
    assert set(found.numbers) == {"right", "backtracks", "tokens"}
    assert found.numbers["backtracks"].value == 2


def test_names_lose_folders_and_seeds_unless_two_would_be_the_same() -> None:
    assert shorten(["runs/a/long-s1000@start", "runs/a/long-s1000", "b_seed3"]) == ["long@start", "long", "b"]
    assert shorten(["x/a-s1", "y/a-s2"]) == ["x/a-s1", "y/a-s2"]
    assert find_starts(["a@start", "a", "b"]) == {1: 0}


def test_a_marker_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"marker '\('.*expected a regular expression"):
        Backtracks(marker="(")


def test_the_picture_is_in_order_of_backtracks() -> None:
    (panel,) = Backtracks(marker="<")(make()).panels.values()
    x, y = panel.lines["end"]
    assert x.tolist() == [0, 2] and np.all(np.diff(y) > 0)
