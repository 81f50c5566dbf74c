"""Clip and Delta by algebra: what an answer can earn, and what its tokens are credited with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.rewards.steps import Form, credit_steps
from shuhari.testing import context, groups
from shuhari.transforms.returns import Returns

PROBABILITIES = st.lists(st.floats(0, 1), min_size=2, max_size=12)


def earn(r: list[float], form: Form) -> float:
    return sum(credit_steps(r, form, 0.5))


@settings(deadline=None)
@given(PROBABILITIES)
def test_the_sum_of_an_answer_is_bounded_whatever_its_length(r: list[float]) -> None:
    """Between -eta and 0, so that with a weight below 1 / eta no wrong answer earns more than a right one."""
    assert -0.5 - 1e-9 <= earn(r, "clip_delta") <= 1e-9
    assert earn(r, "clip_delta") == pytest.approx(min(r[0] - 0.5, 0), abs=1e-9)
    assert earn(r, "delta") == pytest.approx(r[0], abs=1e-9)


@pytest.mark.parametrize("n", [1, 4, 100])
def test_a_right_step_that_is_repeated_pays_as_it_is_and_nothing_when_clipped_and_differenced(n: int) -> None:
    """Steps .9, n more like it, and the answer, .9."""
    r = [0.9] * (n + 2)
    assert earn(r, "raw") == pytest.approx(0.9 * (n + 2))
    assert (earn(r, "clip"), earn(r, "clip_delta")) == (0, 0) and earn(r, "delta") == pytest.approx(0.9)


def test_clip_alone_charges_each_further_wrong_step_and_delta_once() -> None:
    for n in (1, 5, 20):
        r = [0.2] * n + [0.2]
        assert earn(r, "clip") == pytest.approx(-0.3 * (n + 1))
        assert earn(r, "clip_delta") == pytest.approx(-0.3)


@settings(deadline=None)
@given(PROBABILITIES)
def test_a_token_is_credited_with_its_step_and_with_success(r: list[float]) -> None:
    """Steps of two tokens, the reward of each on the second; success on the last. Return of step k: c_k + success."""
    rewards = torch.zeros(1, 2 * len(r), dtype=torch.float64)
    rewards[0, 1::2] = torch.tensor(credit_steps(r, "clip_delta", 0.5), dtype=torch.float64)
    rewards[0, -1] += 1.0
    batch = groups([[1.0]], lengths=2 * len(r)).put({"reward": rewards})
    found = Returns()(batch, context())["return"][0]
    expected = [min(x - 0.5, 0) + 1 for x in r[:-1]] + [1.0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).repeat_interleave(2))


def test_the_recipe_keeps_the_sums_and_trains_the_model_beforehand() -> None:
    stages: Any = {s["name"]: build_stage(s, {}) for s in load("reward/clip_delta").stages}
    assert list(stages) == ["warm-up", "prm", "rl"]
    stage = stages["rl"]
    prm = stage.rewards["prm"]
    assert (prm.form, prm.threshold, prm.level, prm.separator) == ("clip_delta", 0.5, "step", ",")
    assert prm.separator == stages["prm"].learners["main"].buffer.separator
    assert stage.learners["main"].transforms["gae"].gamma == 1.0
    assert "prm" not in {role for part in stage.learners["main"].parts.values() for role in part.trains}
