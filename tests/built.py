"""What the built stage of a recipe learns from answers that are written down: one group, one token a character.

Models are tables: what they say of each token is given, so that a test reads gradients by log-probabilities off them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import reduce
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
from shuhari.lab import demonstrations
from shuhari.lab.claims.claim import read
from shuhari.learners.loss import Loss
from shuhari.loop.collect import add_reward, grade_group
from shuhari.needs import gather
from shuhari.transforms import apply
from shuhari.transforms.advantage import Advantage

OLD = "policy/log_prob"  # the column of what the policy said before the update
POLICY = "learners.main.parts.policy"
CLIP = f"{POLICY}.terms.loss"
SCALED = {"advantage": Advantage(centre="mean", scale="group")}  # GRPO's: less the mean, over the deviation


def built(recipe: str, *, usual: bool = False) -> Components:
    """The last stage of a recipe; of one that states a claim, as that measures it, with the numbers of its bed, unless
    its `usual` base is asked for."""
    found = load(recipe)
    return build_stage((read(recipe).own if "claim" in found.tree and not usual else found).stages[-1])


def demonstrated(recipe: str) -> Components:
    """The last stage of a method as its demonstration runs it, with the numbers of its bed."""
    return build_stage(demonstrations.read(recipe).claim.own.stages[-1])


def at(thing: Any, path: str) -> Any:
    """What stands at a dotted path of attributes and names."""
    return reduce(lambda x, name: x[name] if isinstance(x, Mapping) else getattr(x, name), path.split("."), thing)


def holds(recipe: str, wanted: Mapping[str, Any], *, usual: bool = False) -> Components:
    """The built stage, which has at these dotted paths what a paper says: numbers that a test writes down, not read
    from a recipe. Left out there: what a recipe scales and says so (sizes of batches and pools, learning rates), but
    for ratios that stay."""
    stage = built(recipe, usual=usual)
    assert {path: at(stage, path) for path in wanted} == wanted
    return stage


def one_loss(stage: Components) -> None:
    """One term alone, with the weight 1, on all of the batch, without a reference."""
    [term] = at(stage, POLICY).terms.values()
    assert (term.weight, term.stream) == (1.0, "rl") and "reference" not in stage.models
    assert not stage.learners["main"].transforms and stage.sampling.temperature == 1


class Asked:
    """Asks for the given problems in turn, round and round."""

    def __init__(self, ids: str) -> None:
        self.ids, self.at = ids, 0

    async def select(self, n: int, ctx: Any) -> list[Request]:
        found = [self.ids[i % len(self.ids)] for i in range(self.at, self.at + n)]
        self.at += n
        return [Request(Problem("t", x, x), info={"from": 3.0}) for x in found]


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
