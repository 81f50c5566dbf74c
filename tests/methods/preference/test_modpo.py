"""MODPO's margins: its logit by hand, DPO at weight 1, and the optimum of the weighted sum by enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.methods.preference.modpo.other_margins import OtherMargins
from shuhari.needs import Need
from shuhari.objectives.preference import Preference
from shuhari.testing import context

LIVE, FIRST = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")
VALUE = Need(("other",), "value")


def make_batch(new: Tensor, first: Tensor, value: Tensor, index: Tensor, **columns: Tensor) -> Batch:
    mask = torch.ones(len(new), 1, dtype=torch.bool)
    found: dict[Any, Any] = {"mask": mask, LIVE.key: new[:, None], FIRST.key: first[:, None], VALUE.key: value[:, None]}
    return Batch(found).link("pairs", index, columns)


def lose(batch: Batch, beta: float, share: float) -> Tensor:
    """The loss of each pair: the margins, then DPO at beta / share."""
    loss, _ = Preference(beta=beta / share)(OtherMargins(share=share)(batch, context()), context(count=1))
    return loss


def test_the_loss_of_a_pair_by_hand() -> None:
    """beta 0.1, log-ratios 4 apart, weight 0.5, rewards 0.4 apart: logit 0.4, loss 0.51302."""
    new, zero = torch.tensor([4.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    batch = make_batch(new, zero, torch.tensor([1.4, 1.0], dtype=torch.float64), torch.tensor([[0, 1]]))
    assert float(lose(batch, 0.1, 0.5)) == pytest.approx(0.51302, abs=1e-5)


def test_weight_1_is_dpo_and_a_margin_of_the_data_stays() -> None:
    g = torch.Generator().manual_seed(0)
    new, first, value = torch.randn(3, 4, generator=g, dtype=torch.float64)
    index, margin = torch.tensor([[0, 1], [2, 3]]), torch.tensor([0.3, float("nan")], dtype=torch.float64)
    batch = make_batch(new, first, value, index, margin=margin)
    plain, _ = Preference(beta=0.1)(batch, context(count=1))
    torch.testing.assert_close(lose(batch, 0.1, 1.0), plain)
    shifted = make_batch(new, first, value + 5.0, index, margin=margin)  # by a number of the prompt
    torch.testing.assert_close(lose(shifted, 0.1, 0.4), lose(batch, 0.1, 0.4))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_the_optimum_is_the_policy_of_the_weighted_sum(share: float) -> None:
    """All pairs, as often as the own reward prefers one: no gradient is left at pi ~ first exp(sum of w r / beta)."""
    g = torch.Generator().manual_seed(1)
    first = torch.randn(4, generator=g, dtype=torch.float64).log_softmax(0)
    own, other = torch.randn(2, 4, generator=g, dtype=torch.float64)
    beta = 0.7
    theta = (first + (share * own + (1 - share) * other) / beta).requires_grad_()
    index = torch.tensor([[i, j] for i in range(4) for j in range(4) if i != j])
    often = torch.sigmoid(own[index[:, 0]] - own[index[:, 1]])
    loss = lose(make_batch(theta.log_softmax(0), first, other, index), beta, share)
    (gradient,) = torch.autograd.grad((often * loss).sum(), theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_a_value_that_is_not_finite_is_refused() -> None:
    new, zero = torch.tensor([4.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    batch = make_batch(new, zero, torch.tensor([float("nan"), 1.0], dtype=torch.float64), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="NaN"):
        OtherMargins()(batch, context())


def test_the_recipe_has_these_settings() -> None:
    *_, stage = (build_stage(table, {}) for table in load("preference/modpo").stages)
    [margins] = stage.learners["main"].transforms.values()
    terms = stage.learners["main"].parts["policy"].terms
    assert (margins.role, margins.share) == ("other", 0.5) and terms["preference"].objective.beta == 0.1 / margins.share
    assert dict(stage.learners["main"].buffer.where) == {"user": 0}
