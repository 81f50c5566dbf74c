"""Pass@k and where the start catches up, by policies whose chance of a right answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from known_policies import Known
from shuhari.kernel.coverage import bootstrap, compute_pass, count_solved, find_crossing, list_budgets
from shuhari.methods.analysis.limit_of_rlvr.pass_at_k import PassAtK

SAMPLES = 16


def test_the_crossing_by_hand() -> None:
    """Four problems. The start solves each with one of 8 samples; RL solves two always, two never."""
    budgets = list_budgets(8)
    start = np.zeros((4, 8))
    start[:, 3] = 1
    later = np.repeat([[1.0], [1.0], [0.0], [0.0]], 8, axis=1)
    assert budgets == (1, 2, 4, 8)
    assert compute_pass(start, budgets).mean(0).tolist() == [1 / 8, 2 / 8, 4 / 8, 1.0]
    assert find_crossing(compute_pass(start, budgets), compute_pass(later, budgets), budgets) == 4
    assert count_solved(start, later) == {"kept": 2, "lost": 2, "gained": 0, "unsolved": 0}


def test_a_policy_that_is_better_throughout_is_never_caught() -> None:
    budgets = list_budgets(4)
    start, later = np.zeros((3, 4)), np.ones((3, 4))
    assert math.isnan(find_crossing(compute_pass(start, budgets), compute_pass(later, budgets), budgets))


def test_rl_that_gives_up_half_of_the_problems_is_caught() -> None:
    chances = {"start": [0.2] * 60, "rl": [0.9] * 30 + [0.0] * 30}
    found = PassAtK(n=60, samples=SAMPLES)(Known(chances)).numbers
    exact = {k: np.mean([1 - (1 - p) ** k for p in chances["rl"]]) - (1 - 0.8**k) for k in (1, SAMPLES)}
    for k, gap in exact.items():
        assert found[f"pass@{k}"].low - 0.05 < gap < found[f"pass@{k}"].high + 0.05
        assert abs(found[f"pass@{k}"].null) < 0.1
    assert found["crossing"].value == 4  # 1 - .8^4 = .59 against .5, 1 - .8^2 = .36
    assert math.isnan(found["crossing"].null)  # two draws of one policy cross anywhere
    assert found["gained"].value == 0 < found["lost"].value
    assert found["lost"].null < 5 < found["lost"].value


def test_the_interval_of_a_mean_is_near_students() -> None:
    x = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap(lambda i: float(x[i].mean()), 400, np.random.default_rng(0))
    assert (high - low) / 2 == pytest.approx(1.96 * x.std() / 20, rel=0.1)
