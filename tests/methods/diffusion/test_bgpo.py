"""BGPO's bound by hand, its gradient where nothing has moved, and that it is a sum over draws."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from built import built
from shuhari.batch import Batch
from shuhari.methods.diffusion.bgpo.boundary import Boundary
from shuhari.needs import Need
from shuhari.testing import check_objective, context, groups
from shuhari.transforms.masks import Masks

LIVE, OLD = Need(("policy",), "draws", live=True), Need(("policy",), "draws")
K = 4


def row(d: tuple[float, ...], advantage: float) -> Batch:
    """One answer of four tokens, the bound of which has moved by K · d_j on draw j, all of it at one token."""
    n = len(d)
    old = torch.full((1, K, n), -3.0)
    moved = torch.zeros(1, K, n)
    moved[0, 1] = K * torch.tensor(d) / n  # draws weigh 1 / n
    return groups([[0.0]], K, columns={
        "advantage": torch.full((1, K), advantage), "mask_weight": torch.full((1, n), 1 / n),
        OLD.key: old, LIVE.key: old + moved,
    })  # fmt: skip


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 0.9), (-1.0, -0.945861)])
def test_the_objective_bounds_the_exponential_of_the_mean_from_below(advantage: float, expected: float) -> None:
    d = (0.2, -0.4)
    loss, info = check_objective(Boundary(), row(d, advantage), context())
    assert (-loss).flatten().tolist() == pytest.approx([expected] * K, abs=1e-6)
    assert -float(loss.mean()) <= advantage * exp(sum(d) / 2)
    assert info["log_ratio"].flatten().tolist() == pytest.approx([-0.1] * K)
    assert info["loose"].tolist() == [[1.0] * K]  # exp(-0.1) is 0.905, so 0.005 and 0.041 lie between
    assert not Boundary()(row(d, 0.0), context())[1]["loose"].any()
    assert not Boundary()(row((0.01, 0.01), advantage), context())[1]["loose"].any()  # exp(0.01) - 1.01 is 0.00005


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_where_nothing_has_moved_value_and_gradient_are_those_of_the_target(advantage: float) -> None:
    batch = row((0.0, 0.0, 0.0), advantage)
    live = batch[LIVE].clone().requires_grad_()
    loss, _ = Boundary()(batch.put({LIVE.key: live}), context())
    target = -advantage * ((live - batch[OLD]).sum() / K).exp()
    assert float(loss.detach().mean()) == pytest.approx(float(target.detach()), abs=1e-6)
    mine, theirs = (torch.autograd.grad(x, live)[0] for x in (loss.mean(), target))
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_a_draw_at_a_time_gives_the_same_gradient(advantage: float) -> None:
    d = (0.3, -0.2, 0.1, 0.0)
    batch = row(d, advantage)

    def gradient(part: Batch) -> Tensor:
        live = part[LIVE].clone().requires_grad_()
        loss, _ = Boundary()(part.put({LIVE.key: live}), context())
        return torch.autograd.grad(loss.mean(), live)[0]

    n = len(d)
    single = [
        gradient(batch.put({
            LIVE.key: n * batch[LIVE][..., j : j + 1], OLD.key: n * batch[OLD][..., j : j + 1],
            "mask_weight": torch.ones(1, 1),
        }))
        for j in range(n)
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(single, -1), gradient(batch), atol=1e-6, rtol=1e-5)


def test_positions_without_decisions_do_not_count() -> None:
    batch = row((0.2, -0.4), 1.0)
    mask = torch.tensor([[True, True, False, False]])
    moved = batch[LIVE].clone()
    moved[0, 2:] = 99.0
    half = batch.put({"mask": mask, LIVE.key: moved})
    loss, _ = Boundary()(half, context())
    assert -float(loss[0, 0]) == pytest.approx(1 + 2 * -0.1, abs=1e-6)  # over two tokens, so twice as far


def test_it_samples_and_scores_as_its_paper_does() -> None:
    stage: Any = built("diffusion/bgpo", usual=True)
    assert stage.rollout.role == "any"
    (term,) = stage.learners["main"].parts["policy"].terms.values()
    assert {need.name for need in term.objective.needs} == {"draws"}
    masks = [t for t in stage.collect.values() if isinstance(t, Masks)]
    assert [(m.n, m.law) for m in masks] == [(16, "random")]
