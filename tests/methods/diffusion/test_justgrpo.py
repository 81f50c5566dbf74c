"""JustGRPO: from left to right the gradient of the expected reward is exact, by one step it is not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from built import built
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.models.text.masked import Masked
from shuhari.transforms.masks import Masks

L, SAID = 3, (1, 2, 3)


def gradient(model: Masked, of: Tensor) -> Tensor:
    found = torch.autograd.grad(of, [*model.module.parameters()], retain_graph=True, allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def test_probabilities_from_left_to_right_give_the_policy_gradient_and_those_of_one_step_do_not() -> None:
    model = Masked(length=L, hidden=16, heads=2, intermediate=24, context=12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(alphabet="ab", spaces=lambda: None))
        for p in model.module.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.8)
    texts = sorted({y[: y.index(1) + 1] if 1 in y else y for y in itertools.product(SAID, repeat=L)})
    steps = [Step.of(np.array([2, 3], np.int32), np.array(y, np.int32)) for y in texts]
    batch = pack([Trajectory(Request(Problem("t", str(i), None)), (s,)) for i, s in enumerate(steps)])
    reward = torch.tensor([float(y.count(2) % 2) for y in texts])
    answers = model(batch)
    logp, guess = answers.log_prob().sum(1), answers.one_step().sum(1)
    p = logp.exp()
    exact = gradient(model, (p * reward).sum())
    mine = gradient(model, (p.detach() * (reward - (p.detach() * reward).sum()) * logp).sum())
    torch.testing.assert_close(mine, exact, atol=1e-5, rtol=1e-3)
    theirs = gradient(model, (p.detach() * (reward - (p.detach() * reward).sum()) * guess).sum())
    assert float((theirs - exact).norm()) > 0.1 * float(exact.norm())


def test_it_samples_and_scores_as_its_paper_does() -> None:
    stage: Any = built("diffusion/justgrpo", usual=True)
    assert stage.rollout.role == "policy"
    (term,) = stage.learners["main"].parts["policy"].terms.values()
    assert {need.name for need in term.objective.needs} == {"log_prob"}
    masks = [t for t in stage.collect.values() if isinstance(t, Masks)]
    assert [(m.n, m.law) for m in masks] == []
