"""Data-parallel learners, the driver's side (the other one is `rank`): an optimiser batch is cut into shares, every
process differentiates its own, and the gradients are summed here, where the optimiser steps. The processes start with
the first batch that they share, are sent the weights that have changed, and hold no other state, so nothing of them is
in a checkpoint.

Left out: scoring before the update and sampling, which this process does; replacing a process that dies (the run ends
with the cause, and resumes from its last checkpoint). Needs POSIX.

Axes: `B` rows of an optimiser batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.distributed import group, rank
from shuhari.distributed.devices import check_devices
from shuhari.distributed.machine import check_machine
from shuhari.distributed.processes import Processes, RankError
from shuhari.distributed.shard_team import ShardTeam, open_shards
from shuhari.distributed.shares import cut_shares, pack_now, pack_share
from shuhari.learners.pieces import Meters, Pieces, scatter
from shuhari.needs import packs
from shuhari.ports.hooks import ability

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components
    from shuhari.loop.context import Context

__all__ = ["RankError", "Team", "open_team"]


def open_team(recipe: Recipe, stages: Sequence[Components], ctx: Context) -> Team | ShardTeam | None:
    """Return the team of a run, None if `distributed.learners` is 1. Raises ValueError for what several learners cannot
    do, and for more processes, workers included, than there is room for."""
    check_machine(stages[0].distributed)
    size = stages[0].distributed.learners
    if size == 1:
        return None
    if stages[0].distributed.shard:
        return open_shards(recipe, stages, ctx)
    for stage in stages:
        check_devices(stage.models, size)
        for name, learner in stage.learners.items():
            if not (parts := ability(learner, "parts")):
                raise ValueError(f"distributed.learners is {size}, and the learner {name!r} has no parts to share: "
                                 "expected the learner 'gradient', or distributed.learners = 1")  # fmt: skip
            for term, t in (
                (f"{p}.terms.{k}", t)
                for p, part in parts.items()
                for k, t in part.terms.items()
            ):
                if any(ability(t.objective, n) is not None for n in ("state", "observe")):
                    raise ValueError(f"distributed.learners is {size}, and part.{term} remembers what it saw, which "
                                     "other processes would not: set distributed.learners = 1")  # fmt: skip
    return Team(recipe, stages, ctx, size)


class Team:
    """The `size` learner processes, this one among them. Every call raises RankError for what goes wrong in another,
    and then ends them all."""

    def __init__(self, recipe: Recipe, stages: Sequence[Components], ctx: Context, size: int) -> None:
        self.recipe, self.stages, self.ctx, self.size = recipe, stages, ctx, size
        self.processes = Processes(rank.__name__, size, _DOING, _ANEW, ctx.poll_rollouts, self._let_go)
        self._group: group.Group | None = None
        self._stage = ""
        self._sent: dict[str, tuple[int, int]] = {}  # name -> (address, version) of what was sent last
        self._moved: set[int] = set()  # the ids of parameters that were stepped since; a fused kernel counts no version

    def takes(self, batch: Batch, params: Sequence[Tensor]) -> bool:
        """Whether a batch has a row for each process; either way, note that these parameters are stepped next."""
        self._moved |= {id(p) for p in params}
        return len(batch) >= self.size

    def spread(self, pieces: Pieces, place: tuple[str, str]) -> Spread:
        """Send every process its share of the pieces of an optimiser batch."""
        if not self.processes.others:
            self._start()
        if self._stage != self.ctx.name:
            self._enter()
        return Spread(self, pieces, place)

    def settle(self) -> None:
        """Do nothing: parameters are stepped here."""

    def close(self) -> None:
        """See `Processes.close`."""
        self.processes.close()

    def _let_go(self) -> None:
        self._group = None  # whoever waits for us learns that we are gone
        self._stage, self._sent = "", {}

    # ---------------------------------------------------------------- what is said

    def send_weights(self, params: Sequence[Tensor]) -> None:
        """Send all tensors that have changed since they were sent; `params` are stepped from now on."""
        tensors = dict(rank.walk_tensors(self.ctx.models))
        now = {name: (t.data_ptr(), t._version) for name, t in tensors.items()}
        sent = {n: t for n, t in tensors.items() if self._sent.get(n) != now[n] or id(t) in self._moved}
        self._moved, self._sent = {id(p) for p in params}, now
        names = {n: str(t.dtype).removeprefix("torch.") for n, t in sent.items()}
        self.processes.ask_all("weights", names=names)
        self.together("broadcast", list(sent.values()))

    def together(self, what: str, tensors: Sequence[Tensor]) -> None:
        """Make a call of the group, which all other processes are about to make."""
        assert self._group is not None
        try:
            getattr(self._group, what)(tensors)
        except RuntimeError as error:
            raise self.processes.find_dead(error) from error

    # ---------------------------------------------------------------- beginning and ending

    def _start(self) -> None:
        cuda = any([check_devices(stage.models, self.size) for stage in self.stages])
        setup = {"name": self.recipe.name, "tree": self.recipe.tree, "size": self.size,
                 "threads": max(1, self.ctx.threads // self.size), "cuda": cuda}  # fmt: skip
        folder = self.processes.start({number: {**setup, "rank": number} for number in range(1, self.size)})
        self.processes.wait_until(lambda other: (folder / f"met-{other.number}").exists())
        try:
            self._group = group.Group(folder, 0, self.size, cuda=cuda)
        except RuntimeError as error:
            raise self.processes.find_dead(error) from error
        self.processes.answers()

    def _enter(self) -> None:
        self._sent = {}
        here = {name: list(t.shape) for name, t in rank.walk_tensors(self.ctx.models)}
        self.processes.ask_all("stage", name=self.ctx.name)
        for other in self.processes.others:
            there = self.processes.answer(other)
            if apart := [n for n in here.keys() | there.keys() if here.get(n) != there.get(n)]:
                n = min(apart)
                message = f"has other models than this process: {n} is {there.get(n)} there and {here.get(n)} here,"
                raise self.processes.fail(other, f"{message} after")
        self._stage = self.ctx.name


_ANEW = (" it makes the components of the recipe anew, so what a script has defined or registered is not known there: "
         "put it in a module, or set distributed.learners = 1;")  # fmt: skip
_DOING = {"share": "taking its rows", "stage": "making the models of a stage", "weights": "taking over weights",
          "columns": "scoring its rows", "gradient": "differentiating its rows", "hvp": "differentiating its rows",
          "reduce": "adding up gradients"}  # fmt: skip


class Spread:
    """The pieces of one optimiser batch; each process computes its share (`learners.pieces.Work`)."""

    def __init__(self, team: Team, pieces: Pieces, place: tuple[str, str]) -> None:
        self.team, self.processes, self.whole = team, team.processes, pieces
        ctx, self.params = team.ctx, pieces.params
        packed = packs(pieces.part.live, ctx.models)
        self.rows = cut_shares(pieces.batch, team.size, packed=packed)
        self.mine = pieces.share(self.rows[0])
        settings = {"place": place, "size": len(pieces.batch), "scale": dict(pieces.scale), "tokens": pieces.tokens,
                    "packed": packed, **pack_now(ctx)}  # fmt: skip
        for other, rows in zip(self.processes.others, self.rows[1:], strict=True):
            self.processes.ask(other, "share", share=pack_share(pieces.batch.take(rows)), **settings)

    @torch.no_grad()
    def columns(self) -> dict[str, Tensor]:
        """Return the live columns (recomputed at each optimiser step) of the whole optimiser batch, without
        gradient."""
        self._ask_all("columns")
        scored = [self.mine.columns(), *self.processes.answers()]
        order = torch.cat(self.rows).argsort()
        return {
            k: torch.cat([s[k] for s in scored])[order]
            for k in scored[0]
        }

    def gradient(
        self, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters
    ) -> list[Tensor | None]:
        """Return the gradients as `Pieces.gradient` does, summed over the shares."""
        if upstream is None:  # else they were sent for the columns
            self.team.send_weights(self.params)
        for other, rows in zip(self.processes.others, self.rows[1:], strict=True):
            up = None if upstream is None else {k: g[rows].contiguous() for k, g in upstream.items()}
            self.processes.ask(other, "gradient", terms=list(terms), upstream=up)
        grads = self.mine.gradient(terms, upstream, meter)
        reached = [g is not None for g in grads]
        for found, rows in zip(self.processes.answers(), self.rows[1:], strict=True):
            meter.join(found["losses"], found["infos"])
            scatter(found["stamps"], self.whole.into, rows)
            reached = [a or b for a, b in zip(reached, found["reached"], strict=True)]
        if not any(reached):
            return grads
        self.processes.ask_all("reduce")
        sums = [torch.zeros_like(p) if g is None else g.contiguous() for g, p in zip(grads, self.params, strict=True)]
        self.team.together("reduce", sums)
        return [g if has else None for g, has in zip(sums, reached, strict=True)]

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """Return the product as `Pieces.hvp` does, summed over the shares."""
        self._ask_all("hvp", term=term, vector=vector)
        out = self.mine.hvp(term, vector)
        for found in self.processes.answers():
            out = out + found["vector"].to(out.device)
        return out

    def _ask_all(self, ask: str, **rest: Any) -> None:
        self.team.send_weights(self.params)
        self.processes.ask_all(ask, **rest)
