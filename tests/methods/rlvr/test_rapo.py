"""RAPO as its recipe says it: the flattened reference, the estimate of the KL and its gradient, by hand."""

from __future__ import annotations

from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from built import answers, built, credited
from shuhari.models.categorical import Categorical


def reference(p: float) -> Any:
    """A model over two ids, of which the first, the one that is said, has probability p at each token."""
    logits = torch.tensor([log(p), log(1 - p)])
    return lambda rows: Categorical(logits.expand(len(rows), rows.width, 2), rows["action"].long() * 0)


def divergence(score: list[float], p: float, q: float) -> tuple[Tensor, Tensor]:
    """The loss of two answers of one token, which the policy says with p and the reference with q, and its gradient."""
    stage = built("rlvr/rapo", usual=True)
    term = stage.learners["main"].parts["policy"].terms["divergence"]
    x = torch.full((2, 1), log(p)).requires_grad_()
    policy = lambda rows: SimpleNamespace(  # noqa: E731
        log_prob=lambda: x[rows["id"]], entropy=lambda: torch.full_like(x[rows["id"]], 0.5))  # fmt: skip
    batch = answers(stage, "aa", score)
    batch, ctx = credited(stage, batch.put({"action": torch.zeros(2, 1, dtype=torch.long)}),
                          policy=policy, reference=reference(q))  # fmt: skip
    value, _ = term.objective(batch.put({term.objective.needs[0].key: x}), ctx)
    value.sum().backward()
    return value.detach()[:, 0], x.grad[:, 0]  # type: ignore[index]


def test_what_is_right_has_the_reference_and_what_is_wrong_a_uniform_one() -> None:
    """pi = 3/4; the reference has 9/10 there, 1/2 where the reward is 0. w log w - w + 1, gradient -w log w."""
    found, gradient = divergence([1.0, 0.0], 0.75, 0.9)
    w = [0.9 / 0.75, 0.5 / 0.75]
    assert found.tolist() == pytest.approx([x * log(x) - x + 1 for x in w], rel=1e-5)
    assert found[1] == pytest.approx(0.06302, abs=1e-5)
    assert gradient.tolist() == pytest.approx([-x * log(x) for x in w], rel=1e-5)


def test_the_rest_is_grpo_and_a_bonus() -> None:
    stage, bed = built("rlvr/rapo", usual=True), built("beds/trie/twins")
    ours, base = (s.learners["main"].parts["policy"].terms for s in (stage, bed))
    assert ours["loss"] == base["loss"] and set(ours) == {"loss", "divergence", "entropy"}
    assert (ours["divergence"].weight, ours["entropy"].weight) == (1e-3, 1e-3)
