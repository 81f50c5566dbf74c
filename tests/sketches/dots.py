"""DOTS and rollout replay: Improving Data Efficiency for LLM Reinforcement Fine-tuning (2025), catalogue 216.

A curriculum probes a few reference problems, infers the difficulty of the others by attention over frozen embeddings,
and asks for those near the target; half of the batch are whole groups replayed with their own advantages and stored
log-probabilities (`clip` with behaviour = "behaviour"). Roles: `embed` (a frozen copy of the policy), `adapter`.
Left out: fitting the adapter, which comes before (a stage of its own, binary cross-entropy on earlier rollouts).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import e, log
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from shuhari.batch import Batch
from shuhari.data import Problem, Request, code
from shuhari.join import cat
from shuhari.ports import Collected, Ctx, Event, Task
from shuhari.reduce import group_mean


@dataclass
class Adapter:
    """p of problems from the success of others: base = sum_k softmax_k(z_q . z_k / sqrt(h)) v_k, then
    sigmoid(logit(base) / T + b), (T, b) = (softplus, tanh) of an MLP on mean and deviation of v."""

    size: int = 32
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        self.embed = nn.Linear(self.size, self.size, bias=False)
        self.calibrate = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        nn.init.eye_(self.embed.weight)
        with torch.no_grad():
            last: Any = self.calibrate[2]
            last.weight.zero_()
            last.bias.copy_(torch.tensor([log(e - 1), 0.0]))  # T = 1, b = 0
        self.module = nn.ModuleList([self.embed, self.calibrate])

    def __call__(self, batch: Batch) -> Any:
        raise TypeError("an adapter judges problems, not rows")

    @torch.no_grad()
    def predict(self, z: Tensor, references: Tensor, v: Tensor) -> Tensor:
        """z [Q, D], references [R, D], v [R] mean rewards -> p [Q]."""
        q, k = self.embed(z), self.embed(references)
        base = (q @ k.T / self.size**0.5).softmax(1) @ v
        t, b = self.calibrate(torch.stack([v.mean(), v.std(correction=0)]))
        return (base.clamp(1e-4, 1 - 1e-4).logit() / softplus(t) + b.tanh()).sigmoid()


def selection(p: Tensor, target: float, tau: float) -> Tensor:
    """log-weights of the choice: problems near the target."""
    return -(p - target).abs() / tau


@dataclass
class TargetSuccess:
    """Every `every` steps `references` problems are rolled out `n` times; of a pool of `pool` candidates those near
    `target` are drawn without replacement."""

    references: int = 256
    n: int = 8
    pool: int = 1024
    every: int = 2
    target: float = 0.5
    tau: float = 1e-3
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"probed": -1, "calls": 0})

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        source = ctx.task.problems("train")
        if ctx.step % self.every == 0 and self.state["probed"] != ctx.step:
            known = some(source, self.references, ctx.rng("references"))
            batch = await ctx.probe([Request(p, self.n) for p in known], tag="probe")
            z, v = await embeddings(known, ctx), success(known, batch)
            self.state |= {"probed": ctx.step, "z": z[~v.isnan()], "v": v[~v.isnan()]}
        pool = some(source, self.pool, ctx.rng("pool"))
        adapter: Any = ctx.models["adapter"]
        p = adapter.predict(await embeddings(pool, ctx), self.state["z"], self.state["v"])
        self.state["calls"] += 1
        u = torch.rand(len(pool), generator=ctx.rng("draw", self.state["calls"]))
        gumbel = selection(p, self.target, self.tau) - (-u.log()).log()
        chosen = gumbel.topk(min(n, len(pool))).indices
        return [Request(pool[i]) for i in chosen.tolist()]


def some(source: Any, n: int, rng: torch.Generator) -> list[Problem]:
    """n different problems at random."""
    size = source.size()
    if size is None:
        return [source[int(i)] for i in torch.randint(0, 1 << 40, (n,), generator=rng)]
    return [source[int(i)] for i in torch.randperm(size, generator=rng)[:n]]


def success(problems: Sequence[Problem], batch: Batch) -> Tensor:
    """[R] mean reward of each problem; NaN where its rollout failed."""
    outcome, problem = batch.outcome(), batch["problem"]
    return torch.stack([outcome[problem == code(p.task, p.id)].nanmean() for p in problems])


async def embeddings(problems: Sequence[Problem], ctx: Ctx) -> Tensor:
    """[Q, D] mean hidden states of the prompts."""
    prompts: list[Any] = [ctx.encode(p.prompt, "embed") for p in problems]
    found = await asyncio.gather(*(ctx.engine.score("embed", x[:1], x[1:], ["features"]) for x in prompts))
    return torch.from_numpy(np.stack([f["features"].mean(0) for f in found]))


@dataclass
class GroupReplay:
    """A draw yields `size` whole groups of earlier steps, at random among the newest of each problem; groups that are
    all right or all wrong are not kept, problems that the present step sampled are not drawn."""

    size: int
    capacity: int = 512
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"kept": {}, "new": {}})

    def short(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected) and len(event.batch):
            mean, _ = group_mean(event.batch, event.batch.outcome())
            for g in event.batch["group"].unique():
                rows = event.batch["group"] == g
                group = event.batch.take(rows).flat()
                mixed = bool(0 < mean[rows][0] < 1)
                self.state["new"][str(int(group["problem"][0]))] = group if mixed else None

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        kept, new = self.state["kept"], self.state["new"]
        old = [p for p in kept if p not in new]
        order = torch.randperm(len(old), generator=ctx.rng("replay"))[: self.size]
        drawn = [kept[old[i]] for i in order.tolist()]
        for problem, group in new.items():  # the newest last
            kept.pop(problem, None)
            if group is not None:
                kept[problem] = group
        self.state = {"kept": dict(list(kept.items())[-self.capacity :]), "new": {}}
        if drawn:
            batch = cat(drawn)
            yield batch.put({"weight/rl": batch.weight("rl") if "weight/rl" in batch else batch["mask"].float()})
