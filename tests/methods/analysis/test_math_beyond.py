"""The expansion rate by solve tables, by hand, and the chance of a second draw."""

from __future__ import annotations

import numpy as np
import pytest

from known_policies import Known
from shuhari.kernel.findings import AnalysisError
from shuhari.methods.analysis.math_beyond.expansion import Expansion, find_solved


def test_a_problem_is_solved_by_one_right_answer() -> None:
    right = np.array([[0.0, 0.0], [0.0, 1.0], [np.nan, 0.0], [np.nan, 1.0]])
    assert find_solved(right).tolist() == [False, True, False, True]


def test_a_policy_that_solves_a_third_of_what_the_start_cannot() -> None:
    chances = {"start": [0.0] * 60 + [0.9] * 20, "rl": [0.9] * 20 + [0.0] * 40 + [0.9] * 15 + [0.0] * 5}
    found = Expansion(n=80, samples=16)(Known(chances)).numbers
    assert found["unsolved"].value == 60
    assert found["expansion"].value == pytest.approx(1 / 3) and found["expansion"].null == 0
    assert found["beyond chance"].low > 0.1
    assert found["loss"].value == 0.25 and found["loss"].null == 0


def test_the_start_again_expands_by_chance_alone() -> None:
    """Each problem is solved in 16 tries with chance .28; in a second 16 tries too, so the null is near that."""
    chances = {"start": [0.02] * 400, "same": [0.02] * 400}
    found = Expansion(n=400, samples=16)(Known(chances)).numbers
    assert found["expansion"].value == pytest.approx(1 - 0.98**16, abs=0.07)
    assert found["expansion"].null == pytest.approx(1 - 0.98**16, abs=0.07)
    assert found["beyond chance"].low < 0 < found["beyond chance"].high


def test_the_bound_of_a_problem_without_a_right_answer() -> None:
    chances = {"start": [0.0], "rl": [0.0]}
    assert "at most 0.00292 (95 %)" in Expansion(n=1, samples=1024)(Known(chances)).notes[0]


def test_a_start_that_solves_everything_leaves_nothing() -> None:
    with pytest.raises(AnalysisError, match="solves each of 9 problems in 4 tries: expected harder problems"):
        Expansion(n=9, samples=4)(Known({"start": [1.0] * 9, "rl": [1.0] * 9}))
