"""What the differential tests share: one small model on both sides, random samples, and our loss with its gradient.

Axes: `B` rows, `K` positions of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.buffers.fresh import put_on_stream
from shuhari.data import Problem, Request, Sampling, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.models.text.causal import Causal
from shuhari.optimisers.adamw import AdamW
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.testing import context

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def sharpened(lm: Any, seed: int = 0) -> Any:
    """Random weights made larger and moved, so that no distribution is nearly uniform and no gradient nearly 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in lm.parameters():
            p.mul_(2).add_(0.02 * torch.randn(p.shape, generator=generator))
    return lm.eval()


def our_model(folder: Path, seed: int = 0) -> Causal:
    model = Causal(path=str(folder))
    model.build(Arithmetic())
    sharpened(model.module.lm, seed)
    return model


def their_model(folder: Path, seed: int = 0) -> Any:
    from transformers import AutoModelForCausalLM

    return sharpened(AutoModelForCausalLM.from_pretrained(folder), seed)


def samples(
    rng: np.random.Generator, n: int, vocabulary: int, longest: int, prompts: tuple[int, int] = (2, 8)
) -> list[tuple[Any, Any]]:
    """n (prompt, answer) of random token ids, prompts of the given lengths; at least one answer is `longest`."""

    def text(length: int) -> Any:
        return rng.integers(0, vocabulary, length).astype(np.int32)

    shortest, most = prompts
    lengths = [longest, *rng.integers(1, longest + 1, n - 1)]
    return [(text(rng.integers(shortest, most + 1)), text(k)) for k in lengths]


def rows(drawn: Sequence[tuple[Any, Any]], temperature: float = 1.0) -> Batch:
    """One row a sample, at this sampling temperature."""
    request = Request(Problem("random", "0", ""), sampling=Sampling(temperature=temperature))
    steps = [Step.of(c, a, np.zeros(len(a), np.float32)) for c, a in drawn]
    return put_on_stream(pack([Trajectory(request, (s,), Status.FINISHED) for s in steps]), "rl")


def our_loss(
    batch: Batch, terms: Mapping[str, Term], models: Mapping[str, Any], tokens: int | None = None
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    """(loss, parameter name -> gradient, infos) of one optimiser batch as the learner takes it; `tokens`: of a
    micro-batch."""
    policy = models["policy"].module
    ctx: Any = context(models=models)
    loss = Loss(batch, Part(("policy",), terms, AdamW()), "policy", ctx, list(policy.parameters()), tokens)
    report = dict(loss.backward())
    total = sum(terms[t].weight * report[f"loss/{t}"] for t in terms)
    return total, {n: p.grad.clone() for n, p in policy.lm.named_parameters()}, report


def their_gradient(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


def same_gradient(ours: dict[str, Tensor], theirs: dict[str, Tensor], scale: float = 1.0) -> None:
    """Equal in every parameter, and far from 0 beside the tolerance. scale: by how much a loss enlarges rounding."""
    assert ours.keys() == theirs.keys()
    largest = max(float(g.abs().max()) for g in theirs.values())
    assert largest > 1e-2
    allowed = TOLERANCE["atol"] * scale * max(1.0, largest)  # rounding is that of the largest entries
    close = {**TOLERANCE, "atol": allowed}
    for name, g in ours.items():
        torch.testing.assert_close(g, theirs[name], **close, msg=lambda told, name=name: f"{name}: {told}")
