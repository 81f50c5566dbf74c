"""XPO: its loss is TRL's, its expected gradient by enumeration, and whose answers are paired and made less likely."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Sampling
from shuhari.events import Collected
from shuhari.kernel.reduce import reduced, weights
from shuhari.loop.run import loop, open_run
from shuhari.methods.preference.xpo.beside_role import BesideRole
from shuhari.needs import Need
from shuhari.tasks.letters import Letters
from shuhari.testing import context, groups, shrink

LIVE, FIRST = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")
STAGE = build_stage(load("preference/xpo").stages[-1], {})
TRANSFORMS = STAGE.learners["main"].transforms.values()
TERMS = STAGE.learners["main"].parts["policy"].terms


def lose(batch: Batch, new: Tensor, first: Tensor, *, form: str = "sigmoid", beta: float = 0.1, alpha: float) -> Tensor:
    """The sum of the recipe's terms on a graded batch, at the log-probabilities [B, K] of policy and reference."""
    for transform in TRANSFORMS:
        batch = transform(batch, context())
    batch = batch.put({LIVE.key: new, FIRST.key: first})
    pairs, _ = replace(TERMS["loss"].objective, form=form, beta=beta)(batch, context(count=len(batch)))
    nll, _ = TERMS["optimism"].objective(batch, context(count=len(batch)))
    over = weights(batch.weight("other"), batch, TERMS["optimism"].reduce)
    return pairs.mean() - alpha * reduced(nll, over)


def lose_as_trl(new: Tensor, first: Tensor, mask: Tensor, won: Tensor, beta: float, alpha: float, form: str) -> Tensor:
    """The formula of TRL's XPOTrainer; rows: an answer of the policy, then one of the reference. won [P]: the first."""
    mine, other = (new * mask).sum(1).view(-1, 2).unbind(1)
    mine_first, other_first = (first * mask).sum(1).view(-1, 2).unbind(1)
    chosen = torch.where(won, mine - mine_first, other - other_first)
    rejected = torch.where(won, other - other_first, mine - mine_first)
    logits = chosen - rejected
    dpo = -F.logsigmoid(beta * logits) if form == "sigmoid" else (logits - 1 / (2 * beta)) ** 2
    return (dpo + alpha * other).mean()


@pytest.mark.parametrize("form", ["sigmoid", "ipo"])
@pytest.mark.parametrize(("beta", "alpha"), [(0.1, 1e-5), (0.7, 0.3)])
def test_the_loss_and_its_gradient_are_those_of_trl(form: str, beta: float, alpha: float) -> None:
    g = torch.Generator().manual_seed(3)
    won = torch.tensor([True, False, True])
    graded = [[1.0, 0.0] if first else [0.0, 1.0] for first in won.tolist()]
    batch = groups(graded, lengths=[[4, 2], [1, 5], [3, 3]], logp=0.0)
    batch = batch.put({"other": torch.tensor([0.0, 1.0]).repeat(3)})
    mask = batch["mask"]
    new, first = (-3 * torch.rand(2, *mask.shape, generator=g, dtype=torch.float64)).unbind(0)
    new = new.clone().requires_grad_()
    ours = lose(batch, new, first, form=form, beta=beta, alpha=alpha)
    theirs = lose_as_trl(new, first, mask, won, beta, alpha, form)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    for found, wanted in zip(torch.autograd.grad(ours, new), torch.autograd.grad(theirs, new), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)  # the weights of a stream are float32


def test_the_expected_gradient_by_enumeration() -> None:
    """Three answers of one token, all pairs (of policy, of reference) by both results: sampled loss and exact one."""
    g = torch.Generator().manual_seed(0)
    theta, first = torch.randn(2, 3, generator=g, dtype=torch.float64).log_softmax(-1)
    r, beta, alpha = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64), 0.1, 0.2
    theta = theta.clone().requires_grad_()
    new = theta.log_softmax(-1)
    total = exact = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            chance = new[i].detach().exp() * first[j].exp()
            h = beta * (new[i] - first[i] - new[j] + first[j])
            p = torch.sigmoid(r[i] - r[j])
            exact = exact + chance * (alpha * new[j] - p * F.logsigmoid(h) - (1 - p) * F.logsigmoid(-h))
            rows = torch.tensor([i, j])
            for won, share in ((True, p), (False, 1 - p)):
                batch = groups([[float(won), float(not won)]], lengths=1, logp=0.0)
                batch = batch.put({"other": torch.tensor([0.0, 1.0])})
                total = total + chance * share * lose(batch, new[rows][:, None], first[rows][:, None], alpha=alpha)
    (found,), (wanted,) = torch.autograd.grad(total, theta, retain_graph=True), torch.autograd.grad(exact, theta)
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)


def test_equal_answers_are_in_no_pair_and_the_bonus_has_them() -> None:
    batch = groups([[0.5, 0.5], [1.0, 0.0]], lengths=1, logp=0.0)
    batch = batch.put({"other": torch.tensor([0.0, 1.0, 0.0, 1.0])})
    for transform in TRANSFORMS:
        batch = transform(batch, context())
    assert batch.links["pairs"][0].tolist() == [[2, 3]]
    assert batch.weight("other").flatten().tolist() == [0.0, 1.0, 0.0, 1.0]
    assert batch.weight("rl").flatten().tolist() == [0.0, 0.0, 1.0, 1.0]


def test_the_recipe_has_the_settings_of_trl() -> None:
    loss, optimism = TERMS["loss"].objective, TERMS["optimism"]
    assert (loss.form, loss.beta, loss.level) == ("sigmoid", 0.1, "row")
    assert (optimism.weight, optimism.stream, optimism.reduce) == (-1e-5, "other", "constant:1")
    assert (STAGE.rollout.role, STAGE.rollout.others) == ("reference", 1)


def test_a_run_pairs_an_answer_of_each_role(tmp_path: Path) -> None:
    run = open_run(shrink(load("preference/xpo")).with_settings({"stage.rl.steps": 1}), tmp_path / "run")
    seen: list[Batch] = []
    hear = run.tell

    def note(event: Any) -> None:
        seen.extend([event.batch] if isinstance(event, Collected) else [])
        hear(event)

    run.tell = note  # type: ignore[method-assign]
    for _ in loop(run):
        pass
    batch = seen[-1]
    assert batch["other"].tolist() == [0.0, 1.0] * (len(batch) // 2)
    assert torch.equal(batch["group"][0::2], batch["group"][1::2])
    known = ~batch["logp"][:, 0].isnan()
    assert known.tolist() == [True, False] * (len(batch) // 2)


def test_a_group_without_an_answer_of_the_policy_is_refused() -> None:
    request = Request(Problem("letters", "p", "pq="), 2, Sampling(max_new=1), key="key")
    with pytest.raises(ContractError, match=r"n is 2 and others is 2: expected a larger rollout\.n"):
        asyncio.run(BesideRole(others=2).group(request, context(task=Letters())))
