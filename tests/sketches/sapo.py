"""SAPO: Sharing is Caring, Efficient LM Post-Training with Collective RL Experience Sharing (2025), catalogue 43.

Each node is a run of its own with its own GRPO; a share of its groups is what other nodes said in the last round. A
curriculum publishes and reads, a rollout turns foreign text into steps without log-probabilities, and the run grades
them as its own. The loss is `clip(high = 0.28, behaviour = "old")`: what others said was sampled by nobody here.
Not to be confused with Soft Adaptive Policy Optimization.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.data import Info, Request, Step, Trajectory, code
from shuhari.events import Collected, Committed, Event
from shuhari.ports import Ctx, Curriculum, Rollout, Runs
from shuhari.rollouts.single import Single
from shuhari.store.codec import dumps, loads

Group = Mapping[str, Any]  # problem; texts: the answers


@dataclass(frozen=True)
class Bus:
    """A folder of what each node said in each round. Publishing twice is publishing once, so resuming is safe."""

    folder: str

    def publish(self, node: int, step: int, groups: Sequence[Group]) -> None:
        new = Path(self.folder) / f"{step}-{node}.new"
        new.write_bytes(dumps(list(groups)))
        new.rename(new.with_suffix(".groups"))

    def read(self, step: int, exclude: int) -> list[Group]:
        """In the order of the nodes."""
        files = sorted(Path(self.folder).glob(f"{step}-*.groups"), key=lambda f: int(f.stem.partition("-")[2]))
        others = [f for f in files if f.stem != f"{step}-{exclude}"]
        return [g for f in others for g in loads(f.read_bytes())]


@dataclass
class Foreign:
    """Where a request comes with `texts`, those are its samples, in our tokens; else what `own` samples."""

    own: Rollout = field(default_factory=Single)
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: {"texts": ()})

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if "texts" not in request.settings:
            return await self.own.group(request, ctx)
        context = ctx.encode(request.problem.prompt)
        steps = [Step.of(context, spoken(t, ctx), version=-1, info={"text": t}) for t in request.settings["texts"]]
        return [Trajectory(request, (s,)) for s in steps]


@dataclass
class Sharing:
    """`external` of each step's groups come from others: of what they said in the last round, drawn uniformly among the
    groups that our own verifier does not find all alike. The rest come from `own`, and are published."""

    own: Curriculum
    bus: Bus
    node: int = 0
    external: int = 0
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"asked": {}, "said": []})

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        heard = self.bus.read(ctx.step, self.node) if self.external else []
        theirs = [r for i, g in enumerate(heard) if (r := asking(g, i, ctx)) is not None]
        if theirs:
            batch = await ctx.probe(theirs, tag="foreign")  # regraded here, and paid for
            theirs = [r for r in theirs if differ(batch, r)]
        order = torch.randperm(len(theirs), generator=ctx.rng("swarm"))[: min(n, self.external)]
        mine = await self.own.select(n - len(order), ctx)
        self.state["asked"] |= {str(code(r.problem.task, r.problem.id)): r.problem for r in mine}
        return [*mine, *(theirs[i] for i in order.tolist())]

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            self.state["said"] += said(event.batch, self.state["asked"])
        if isinstance(event, Committed):
            self.bus.publish(self.node, event.step, self.state["said"])
            self.state = {"asked": {}, "said": []}


@dataclass
class Swarm:
    """`nodes` runs of one recipe in lockstep, a round a step; what a node is told: its number and seed."""

    nodes: int = 8

    def __call__(self, runs: Runs) -> Iterator[Info]:
        nodes = [runs.train(f"node{i}", {"seed": i, "curriculum.node": i}) for i in range(self.nodes)]
        for reports in zip(*nodes, strict=True):
            yield from ({"node": i, **report} for i, report in enumerate(reports))


def asking(group: Group, i: int, ctx: Ctx) -> Request | None:
    """For the answers that our tokens can spell, where there are two at least."""
    texts = tuple(t for t in group["texts"] if spoken(t, ctx) is not None)
    return Request(group["problem"], len(texts), settings={"texts": texts}, info={"foreign": i}) if texts[1:] else None


def differ(batch: Batch, request: Request) -> bool:
    """Whether the outcomes of a request differ."""
    outcome = batch.outcome()[batch["foreign"] == request.info["foreign"]]
    return bool(outcome.max() > outcome.min())


def said(batch: Batch, asked: Mapping[str, Any]) -> Iterator[Group]:
    """What the present policy said, group by group: foreign rows have no log-probability."""
    own = ~batch["logp"].isnan().any(1)
    for g in batch["group"][own].unique():
        rows = batch.take(own & (batch["group"] == g))
        texts = tuple(str(s.info["text"]) for s in rows.steps)
        yield {"problem": asked[str(int(rows["problem"][0]))], "texts": texts}


def spoken(text: str, ctx: Ctx) -> Any:
    """Our tokens of what was said, with the end token; None where there are none for it."""
    policy: Any = ctx.models["policy"]
    try:
        ids: Any = ctx.encode(text) if text else np.empty(0, np.int32)
    except ValueError:
        return None
    return np.append(ids, np.int32(policy.end))
