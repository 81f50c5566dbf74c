"""Online iterative RLHF: its pairs and its loss by hand, its optimum by enumeration, and whose weights move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.loop.run import loop, open_run
from shuhari.needs import Need
from shuhari.testing import context, groups, shrink

LIVE, FIRST = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")
STAGE = build_stage(load("preference/online_rlhf").stages[-1], {})
[PAIRS] = STAGE.learners["main"].transforms.values()
LOSS = STAGE.learners["main"].parts["policy"].terms["loss"].objective


def find_pairs(*scores: list[float]) -> list[list[int]]:
    batch = groups(list(scores), lengths=1, logp=0.0)
    return PAIRS(batch, context()).links["pairs"][0].tolist()


def lose(new: Tensor, first: Tensor, index: Tensor) -> Tensor:
    """The loss of each pair of answers of one token."""
    columns: dict[Any, Any] = {"mask": torch.ones(len(new), 1, dtype=torch.bool)}
    columns |= {LIVE.key: new[:, None], FIRST.key: first[:, None]}
    loss: Tensor = LOSS(Batch(columns).link("pairs", index), context(count=1))[0]
    return loss


def test_the_best_answer_is_paired_with_the_worst() -> None:
    assert find_pairs([0.1, 0.9, 0.4, -0.2]) == [[1, 3]]
    assert find_pairs([0.3, 0.3, 0.3, 0.3]) == []  # a prompt without a pair
    assert find_pairs([0.0, 1.0], [1.0, 0.0]) == [[1, 0], [2, 3]]  # of two answers: the pair of online DPO


def test_the_loss_by_hand() -> None:
    """log 2 at the reference, whatever the pair; log-ratios 5 apart at beta 0.1: -log sigmoid(0.5) = 0.47408."""
    first = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = torch.tensor([[0, 1], [3, 2]])
    torch.testing.assert_close(lose(first, first, index), torch.full((2,), 2.0, dtype=torch.float64).log())
    moved = first + torch.tensor([5.0, 0.0, 0.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(
        lose(moved, first, index), torch.full((2,), 0.47408, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_no_gradient_is_left_at_the_optimum_of_a_reward_with_a_price_on_the_kl() -> None:
    """Pairs as often as Bradley-Terry prefers one, whoever draws them: pi ~ pi_0 exp(r / beta)."""
    g = torch.Generator().manual_seed(1)
    first, drawn = torch.randn(2, 4, generator=g, dtype=torch.float64).log_softmax(-1)
    reward = 0.1 * torch.randn(4, generator=g, dtype=torch.float64)
    theta = (first + reward / LOSS.beta).requires_grad_()
    index = torch.tensor([[i, j] for i in range(4) for j in range(4) if i != j])
    better, worse = index.unbind(1)
    often = (drawn[better] + drawn[worse]).exp() * torch.sigmoid(reward[better] - reward[worse])
    (gradient,) = torch.autograd.grad((often * lose(theta.log_softmax(0), first, index)).sum(), theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def read_weights(run: Any, role: str) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.ctx.models[role].module.parameters()])


def test_the_sampler_follows_in_rounds_and_the_reference_stays(tmp_path: Path) -> None:
    settings = {"stage.rl.follow.sampler.every": 2, "stage.rl.steps": 4}
    run = open_run(shrink(load("preference/online_rlhf")).with_settings(settings), tmp_path / "run")
    seen: list[dict[str, Tensor]] = []
    for _ in loop(run):
        if run.stage.name == "rl":
            seen.append({r: read_weights(run, r) for r in ("policy", "sampler", "reference", "reward")})
    assert len(seen) == 4
    for role in ("reference", "reward"):
        assert all(torch.equal(x[role], seen[0][role]) for x in seen), role
    equal = [torch.equal(x["sampler"], x["policy"]) for x in seen]
    assert equal == [False, True, False, True] and torch.equal(seen[0]["sampler"], seen[0]["reference"])
    assert not torch.equal(seen[1]["policy"], seen[3]["policy"])


def test_the_recipe_has_these_settings() -> None:
    assert (LOSS.form, LOSS.beta, PAIRS.per_group, STAGE.rollout.role) == ("sigmoid", 0.1, 1, "sampler")


def test_both_sides_of_the_demonstration_have_as_many_labels() -> None:
    *_, stage, rl = load("preference/online_rlhf").stages
    assert stage["name"] == "reward" and stage["steps"] * stage["buffer"]["size"] == rl["steps"] * 48 == 4320
