"""What the built stage of a recipe learns from answers that are written down: one group, one token a character.

Models are tables: what they say of each token is given, so that a test reads gradients by log-probabilities off them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grading import context
from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.config.stage import Components
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.lab.claims.claim import read
from shuhari.learners.loss import Loss
from shuhari.loop.collect import add_reward, grade_group
from shuhari.needs import gather
from shuhari.transforms import apply

OLD = "policy/log_prob"  # the column of what the policy said before the update


def built(recipe: str, *, usual: bool = False) -> Components:
    """The last stage of a recipe; of one that states a claim, as that measures it, with the numbers of its bed, unless
    its `usual` base is asked for."""
    found = load(recipe)
    return build_stage((read(recipe).own if "claim" in found.tree and not usual else found).stages[-1])


def answers(stage: Components, said: Sequence[str], score: Sequence[float], **told: Sequence[float]) -> Batch:
    """A group of answers, graded as the stage grades: the task's `score`, its own rewards, and their weighted sum.
    told: further columns, a number an answer."""
    request = Request(Problem("t", "0", ""), key="0")
    group = []
    for i, text in enumerate(said):
        info = {"text": text, "sample": float(i)}
        step = Step.of(np.ones(1, np.int32), np.zeros(len(text), np.int32), np.zeros(len(text), np.float32), info=info)
        group.append(Trajectory(request, (step,), info={name: x[i] for name, x in told.items()}))
    ctx = context(lambda problem, i: {"score": score[i]}, weights=stage.weights, **stage.rewards)
    batch = add_reward(pack(asyncio.run(grade_group(group, ctx))), ctx)
    batch.stream = "rl"
    return batch


def padded(*rows: Sequence[float]) -> Tensor:
    """[B, K], 0 behind the end of each row."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(r, dtype=torch.float32) for r in rows], batch_first=True)


def table(**columns: Tensor) -> Any:
    """A model that says of each token what stands in [B, K] tables, `log_prob` and the like, by the row's id."""
    return lambda batch: SimpleNamespace(**{name: lambda x=x: x[batch["id"]] for name, x in columns.items()})


def credited(stage: Components, batch: Batch, **models: Any) -> tuple[Batch, Any]:
    """The batch as [collect] and [transform] leave it, scored for the policy's terms, and the context of that."""
    learner = stage.learners["main"]
    ctx = testing.context(models=models)
    batch = apply([*stage.collect.values(), *learner.transforms.values()], batch, ctx)
    return gather(batch, learner.parts["policy"].needs, models), ctx


def learnt(stage: Components, batch: Batch, *leaves: Tensor, **models: Any) -> list[Any]:
    """The gradient of the policy's whole loss, all of its terms, by each of `leaves`, a list a row, without padding."""
    batch, ctx = credited(stage, batch, **models)
    Loss(batch, stage.learners["main"].parts["policy"], "policy", ctx, list(leaves), None).backward()
    counts = batch["mask"].sum(1).tolist()
    found = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]  # None: no row carries a stream
    assert not any(x[~batch["mask"]].any() for x in found)
    return [[row[:n].tolist() for row, n in zip(x, counts, strict=True)] for x in found]


def same(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> None:
    """Each row to six digits."""
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for row, numbers in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, numbers, rtol=1e-5, atol=1e-7)
