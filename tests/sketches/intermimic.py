"""InterMimic: Towards Universal Whole-Body Control for Physics-Based Human-Object Interactions (2025), catalogue 245.

One student tracks the references of many subjects, each with a teacher of its own: the teacher acts with probability
beta, the student imitates its mean action everywhere, and once its critic explains returns PPO ramps in on its own
rows. Episodes start from states stored along the reference, drawn by how long they were survived.
Left out: the tracking reward and early ends, which are the task's; training the teachers.

Axes: `B` rows, `K` = 1 decision a row, `A` action dimensions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import EMPTY, Info, Number, Ramp, Request, Trajectory, code
from shuhari.events import Collected, Event
from shuhari.needs import Need
from shuhari.ports import Ctx, Curriculum
from shuhari.rollouts.playing import Playing


@dataclass
class Guided:
    """One episode in which the subject's teacher acts with probability `beta` of the request. Each step keeps the
    teacher's mean action as `guide`, where on the reference it stands (`frame`, of `frames`), and the state itself."""

    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        env: Any = ctx.task.environment(request.problem)
        play, teacher = Playing(env, request, ctx), f"teacher/{request.problem.info['subject']}"
        mean = replace(request.sampling, greedy=True)
        await play.begin()
        while play.status is None:
            key = (request.key, play.moves)
            (mine,), (guide,) = await asyncio.gather(
                ctx.engine.sample("policy", play.context, request.sampling, key=(*key, "policy")),
                ctx.engine.sample(teacher, play.context, mean, key=(*key, teacher)),
            )
            taught = float(torch.rand((), generator=ctx.rng(*key, "who"))) < request.info["beta"]
            role, trace = (teacher, guide) if taught else ("policy", mine)
            info = {"guide": guide.action[None], "snapshot": env.snapshot(), "frame": env.frame, "frames": env.frames}
            await play.act(replace(trace, info=info), role=role)
        return [play.trajectory()]


def survived(frame: float, end: float, horizon: float) -> float:
    """How much of what lay ahead of a state was survived: (end - j) / (horizon - j)."""
    return (end - frame) / (horizon - frame)


@dataclass
class StoredStarts:
    """The problems of `inner`, started from stored states: a frame of the reference (score 1) or one of the `keep` best
    states that rollouts passed through there, drawn in proportion to the scores, which decay. Stamps `beta`."""

    inner: Curriculum
    beta: Number = Ramp(1.0, 0.0, 5000, after=500)  # noqa: RUF009  (frozen)
    keep: int = 2
    least: float = 0.5
    decay: float = 1e-5
    state: dict[str, Any] = field(init=False, default_factory=dict)  # "subject/frame" -> [[score, snapshot], ...]

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        drawn = []
        for i, r in enumerate(await self.inner.select(n, ctx)):
            stored = self.stored(r.problem.info["subject"])
            reference = [(1.0, s) for s in r.problem.info["reference"]]  # snapshots along the reference
            scores = torch.tensor([score for score, _ in (*reference, *stored)])
            at = int(torch.multinomial(scores, 1, generator=ctx.rng("start", i)))
            problem = replace(r.problem, start=(*reference, *stored)[at][1])
            info = {"beta": ctx.at(self.beta), "subject": float(problem.info["subject"])}
            drawn.append(Request(problem, info=info))
        return drawn

    def stored(self, subject: int) -> list[tuple[float, Any]]:
        """(score, snapshot) of what rollouts of a subject left."""
        of = [slots for place, slots in self.state.items() if place.startswith(f"{subject}/")]
        return [(score, snapshot) for slots in of for score, snapshot in slots]

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected):
            return
        for slots in self.state.values():
            for slot in slots:
                slot[0] *= 1 - self.decay
        batch = event.batch
        for episode in batch["episode"].unique():
            rows = ((batch["episode"] == episode) & batch.decides).nonzero()[:, 0]
            end = float(batch["frame"][rows].max()) + 1
            for step, subject in zip(batch.take(rows).steps, batch["subject"][rows].tolist(), strict=True):
                frame, horizon = step.info["frame"], step.info["frames"]
                self.offer(f"{int(subject)}/{frame}", survived(frame, end, horizon), step.info["snapshot"])

    def offer(self, place: str, score: float, snapshot: Any) -> None:
        """Keep a state that did well enough, in the place of the worst one there."""
        slots = self.state.setdefault(place, [])
        if score > self.least:
            slots.append([score, snapshot])
            slots.sort(key=lambda s: -s[0])
            del slots[self.keep :]


@dataclass
class Imitate:
    """‖mean action of the policy - guide‖², [B]: DAgger, on the rows of both."""

    role: str = "policy"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "mode", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        return (batch[self.needs[0]] - batch["guide"][:, 0]).square().sum(-1), {}


@dataclass
class Gate:
    """Streams: `imitate` and `value` on all rows, `rl` on the policy's own. Once a running mean of the critic's
    explained variance has reached `least` `times` in a row, after `after` draws, `rl` climbs from 0 to 1 over `over`
    draws, while `imitate` falls from 1 to `floor`."""

    least: float = 0.6
    times: int = 3
    after: int = 6000
    over: int = 4000
    floor: float = 0.1
    memory: float = 0.9
    critic: str = "critic"
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"draws": 0, "mean": 0.0, "good": 0, "opened": None}
    )

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.critic,), "value"),)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        x, mask = self.open(explained(batch, batch[self.needs[0]])), batch["mask"].float()
        mine = (batch["role"] == code("policy"))[:, None] * mask
        weights = {"rl": x * mine, "imitate": (1 - (1 - self.floor) * x) * mask, "value": mask}
        return batch.put({f"weight/{k}": w for k, w in weights.items()})

    def open(self, variance: float) -> float:
        """How far the gate is open after another draw, in [0, 1]."""
        s = self.state
        s["draws"] += 1
        s["mean"] = self.memory * s["mean"] + (1 - self.memory) * variance
        s["good"] = s["good"] + 1 if s["mean"] >= self.least else 0
        if s["opened"] is None and s["draws"] > self.after and s["good"] >= self.times:
            s["opened"] = s["draws"]
        return 0.0 if s["opened"] is None else float(np.clip((s["draws"] - s["opened"]) / self.over, 0, 1))


def explained(batch: Batch, value: Tensor) -> float:
    """1 - Var(return - value) / Var(return) over the decisions; 0 where the returns are all alike."""
    target, value = batch["return"][batch["mask"]], value[batch["mask"]]
    spread = float(target.var())
    return 1 - float((target - value).var()) / spread if spread > 0 else 0.0
