"""Accelerating Nash Learning from Human Feedback via Mirror Prox (Nash-MP, 2025), catalogue 32.

The β-regularised Nash policy of a preference P by two half-steps an iteration, both from π_k: against π_k itself, then
against the half-step. On tables the half-step is closed (`MirrorProx`); elsewhere it is `half` policy-gradient steps
against a frozen opponent (`Versus`, `Wins`) with two KL terms, and `Halves` moves the frozen roles.
Left out: the slow EMA that replaces the hard copies. Axes: `A` answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import EMPTY, Request, Trajectory, code
from shuhari.events import Event, Updated
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform
from shuhari.rollouts.single import Single
from shuhari.transforms.streams import zero_weight

Table = tuple[tuple[float, ...], ...]  # [A, A] P(row beats column); P + P.T = 1


@dataclass
class Versus:
    """n answers of the policy and n of the opponent, in one group."""

    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        mine, theirs = await asyncio.gather(*(Single(r).group(request, ctx) for r in ("policy", "opponent")))
        return [*mine, *theirs]


@dataclass
class Wins:
    """`wins`: the mean P(y beats y') over the opponent's answers y' of the group; None for the opponent's own."""

    beats: Table

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, Any] | None]:
        theirs = [_answer(t) for t in group if t.steps[-1].role == "opponent"]

        def wins(t: Trajectory) -> Mapping[str, Any] | None:
            if t.steps[-1].role == "opponent":
                return None
            return {"wins": float(np.mean([self.beats[_answer(t)][y] for y in theirs]))}

        return [wins(t) for t in group]


def _answer(trajectory: Trajectory) -> int:
    return int(np.asarray(trajectory.steps[-1].action).item())


@dataclass
class Played:
    """Weight 0 on `stream` for rows that another role than `role` played."""

    role: str = "policy"
    stream: str = "rl"
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return zero_weight(batch, batch["role"] != code(self.role), self.stream)


@dataclass
class Halves:
    """After every `half` steps the policy becomes the opponent. After the first half (look ahead) the policy then goes
    back to the anchor π_k; after the second it becomes the anchor: π_{k+1}."""

    half: int = 4
    on: Literal["update", "step", "stage", "plateau"] = "step"
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"heard": 0})

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        self.state["heard"] += 1
        at, rest = divmod(self.state["heard"], self.half)
        if rest:
            return
        _copy(models, "opponent", "policy")
        _copy(models, *(("policy", "anchor") if at % 2 else ("anchor", "policy")))


def _copy(models: Mapping[str, Model], to: str, of: str) -> None:
    models[to].module.load_state_dict(models[of].module.state_dict())


def prox(pi: Tensor, against: Tensor, reference: Tensor, beats: Tensor, beta: float, eta: float) -> Tensor:
    """log of π ∝ [π_k · π_ref^{ηβ} · exp(η P(· ≻ against))]^{1/(1+ηβ)}: the maximiser of
    P(π ≻ against) - β KL(π‖π_ref) - KL(π‖π_k)/η. pi and reference are log-probabilities [A], as is `against`."""
    wins = beats @ against.exp()
    return ((pi + eta * beta * reference + eta * wins) / (1 + eta * beta)).log_softmax(-1)


@dataclass
class MirrorProx:
    """π_{k+1/2} = prox(π_k, π_k), π_{k+1} = prox(π_k, π_{k+1/2}), exact, for a table of one state."""

    buffer: Buffer
    beats: Table
    beta: float = 0.1
    eta: float = 2.0
    transforms: Mapping[str, Transform] = field(default_factory=lambda: EMPTY)
    needs: tuple[Need, ...] = field(default=(), init=False)

    def bind(self, models: Mapping[str, Model]) -> None:
        pass

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        table: Any = ctx.models["policy"].module
        reference: Any = ctx.models["reference"].module
        pi, ref = (m.logits[0].double().log_softmax(-1) for m in (table, reference))
        game = ref, torch.tensor(self.beats, dtype=torch.float64), self.beta, self.eta
        ahead = prox(pi, pi, *game)
        moved = prox(pi, ahead, *game)
        table.logits[0] = moved
        return Updated("main", {"moved": float((moved.exp() - pi.exp()).abs().sum())}, batch["id"])
