"""Support of a policy by counts from the paper, by hand, and by policies whose chances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from known_policies import Known
from shuhari.kernel.findings import Answers
from shuhari.methods.analysis.invisible_leash.support import (
    Support,
    compute_balance,
    compute_change,
    compute_discovery,
    compute_entropies,
    compute_retention,
)


def test_the_numbers_of_eighty_kept_fifteen_lost_and_five_gained() -> None:
    of = {"kept": 80, "lost": 15, "gained": 5, "unsolved": 9}
    assert compute_retention(of) == pytest.approx(0.8421, abs=1e-4)
    assert compute_discovery(of) == pytest.approx(0.0588, abs=1e-4)
    assert compute_change(of) == -0.1
    assert compute_balance(of) == pytest.approx(2 * 0.84211 * 0.058824 / (0.84211 + 0.058824), abs=1e-4)


def test_a_policy_that_solves_nothing_has_no_discovery() -> None:
    nothing = {"kept": 0, "lost": 0, "gained": 0, "unsolved": 3}
    assert all(math.isnan(of(nothing)) for of in (compute_retention, compute_discovery, compute_change))


def test_the_entropy_of_answers_by_hand() -> None:
    texts = [["a"] * 4, ["a", "a", "b", "b"], ["a", "b", "c", "d"]]
    found = compute_entropies(Answers("x", ["1", "2", "3"], [""] * 3, texts, np.ones((3, 4)), np.ones((3, 4))))
    assert found == pytest.approx([0, math.log(2), math.log(4)])


def test_a_policy_gradient_never_moves_an_answer_that_has_no_chance() -> None:
    """The gradient of the expected reward is p * (r - mean): 0 where p is 0, whatever that answer would earn."""
    p, r = np.array([0.6, 0.4, 0.0]), np.array([0.0, 0.0, 1.0])
    assert (p * (r - p @ r)).tolist() == [0, 0, 0]


def test_rl_that_gives_up_rare_answers_shrinks_its_support() -> None:
    chances = {"start": [0.15] * 80, "rl": [0.9] * 40 + [0.0] * 36 + [0.5] * 4}

    def write(name: str, problem: int, right: bool, x: float) -> str:
        return str(int(x * (16 if name == "start" else 2)))

    found = Support(n=80, samples=32)(Known(chances, write)).numbers
    assert found["retention"].low < 44 / 80 < found["retention"].high < found["retention"].null
    assert found["change"].value == pytest.approx(-0.45, abs=0.02) and abs(found["change"].null) < 0.05
    assert found["answer entropy"].value == pytest.approx(math.log(2) - math.log(16), abs=0.35)
    assert abs(found["answer entropy"].null) < 0.05
