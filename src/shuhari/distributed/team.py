"""Learners over several processes, the driver's side (the other one is `rank`): an optimiser batch is cut into shares,
every process differentiates its own, and the gradients are added up here, where the optimiser steps. Processes begin
with the first batch that they share, are sent the weights that have moved, and hold no other memory, so nothing of them
is in a checkpoint.

Left out: scoring before the update and sampling, which this process does; a process that is replaced when it dies (the
run ends with the cause, and goes on from its last checkpoint). Needs POSIX.

Axes: `B` rows of an optimiser batch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shuhari.abilities import ability, do_nothing
from shuhari.batch import Batch
from shuhari.distributed import group, rank
from shuhari.distributed.devices import check_devices
from shuhari.distributed.shares import cut_shares, pack_share
from shuhari.learners.pieces import Meters, Pieces, scatter
from shuhari.needs import packs
from shuhari.ramp import Count
from shuhari.store import codec

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components
    from shuhari.loop.context import Context

PATIENCE = 5.0  # seconds for processes to end in peace
GLANCE = 0.1  # seconds between two looks at what is in flight, while others compute
LINES = 20  # of a log that an error shows


class RankError(RuntimeError):
    """A learner process failed or died: the message names it and has the last lines of its log."""


def open_team(recipe: Recipe, stages: Sequence[Components], ctx: Context) -> Team | None:
    """The team of a run, None where `distributed.learners` is 1. ValueError for what several learners cannot do."""
    size = stages[0].distributed.learners
    if size == 1:
        return None
    for stage in stages:
        check_devices(stage.models, size)
        for name, learner in stage.learners.items():
            if not (parts := ability(learner, "parts")):
                raise ValueError(f"distributed.learners is {size}, and the learner {name!r} has no parts to share: "
                                 "expected the learner 'gradient', or distributed.learners = 1")  # fmt: skip
            for term, t in ((f"{p}.terms.{k}", t) for p, part in parts.items() for k, t in part.terms.items()):
                if any(ability(t.objective, n) is not None for n in ("state", "observe")):
                    raise ValueError(f"distributed.learners is {size}, and part.{term} remembers what it saw, which "
                                     "other processes would not: set distributed.learners = 1")  # fmt: skip
    return Team(recipe, stages, ctx, size)


class Team:
    """`size` processes, this one among them. RankError, at any call, for what goes wrong in another; afterwards none of
    them is left."""

    def __init__(self, recipe: Recipe, stages: Sequence[Components], ctx: Context, size: int) -> None:
        self.recipe, self.stages, self.ctx, self.size = recipe, stages, ctx, size
        self.others: list[_Process] = []
        self._group: group.Group | None = None
        self._stage = ""
        self._sent: dict[str, tuple[int, int]] = {}  # name -> (address, version) of what was sent last
        self._moved: set[int] = set()  # the ids of parameters that were stepped since; a fused kernel counts no version
        self._end: Any = do_nothing  # before there are processes

    def takes(self, batch: Batch, params: Sequence[Tensor]) -> bool:
        """Whether each of them gets a row; either way these parameters are stepped next."""
        self._moved |= {id(p) for p in params}
        return len(batch) >= self.size

    def spread(self, pieces: Pieces, place: tuple[str, str]) -> Spread:
        """Give everyone a share of the pieces of an optimiser batch."""
        if not self.others:
            self._start()
        if self._stage != self.ctx.name:
            self._enter()
        return Spread(self, pieces, place)

    def close(self) -> None:
        """End the processes: by request, and after a few seconds by a signal."""
        self._group = None  # whoever waits for us learns that we are gone
        self._end()
        self.others, self._stage, self._sent = [], "", {}

    # ---------------------------------------------------------------- what is said

    def ask(self, other: _Process, ask: str, **rest: Any) -> None:
        other.asked = ask
        data = codec.dumps({"ask": ask, **rest})
        with suppress(BrokenPipeError, ConnectionResetError):  # reported when the answer is missed
            other.link.send_bytes(data)

    def answer(self, other: _Process) -> Any:
        """What one answers; what is in flight goes on meanwhile."""
        until = time.monotonic() + group.TIMEOUT
        try:
            while not other.link.poll(GLANCE):
                self.ctx.poll_rollouts()
                if time.monotonic() > until:
                    raise self._fail(other, f"has not answered for {group.TIMEOUT:.0f} s, while")
            answer = other.link.recv_bytes()
        except (EOFError, OSError):
            answer = b""
        if answer[:1] != rank.DONE:
            raise self._fail(other, "failed while" if answer else "died while")
        return codec.loads(answer[1:], limit=2**40) if len(answer) > 1 else None

    def send_weights(self, params: Sequence[Tensor]) -> None:
        """Send all tensors that are not as the others have them; `params` are stepped from now on."""
        tensors = dict(rank.walk_tensors(self.ctx.models))
        now = {name: (t.data_ptr(), t._version) for name, t in tensors.items()}
        sent = {n: t for n, t in tensors.items() if self._sent.get(n) != now[n] or id(t) in self._moved}
        self._moved, self._sent = {id(p) for p in params}, now
        for other in self.others:
            self.ask(other, "weights", names={n: str(t.dtype).removeprefix("torch.") for n, t in sent.items()})
        self.together("broadcast", list(sent.values()))

    def together(self, what: str, tensors: Sequence[Tensor]) -> None:
        """Have the group do this; all others are on their way there."""
        assert self._group is not None
        try:
            getattr(self._group, what)(tensors)
        except RuntimeError as error:
            raise self._find_dead(error) from error

    # ---------------------------------------------------------------- beginning and ending

    def _start(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="shuhari-learners-"))
        self._end = weakref.finalize(self, _end, self.others, folder)
        cuda = any([check_devices(stage.models, self.size) for stage in self.stages])
        setup = {"name": self.recipe.name, "tree": self.recipe.tree, "size": self.size, "folder": str(folder),
                 "threads": max(1, self.ctx.threads // self.size), "cuda": cuda}  # fmt: skip
        for number in range(1, self.size):
            self.others.append(_Process(number, folder))
        for other in self.others:
            with suppress(BrokenPipeError, ConnectionResetError):
                other.link.send_bytes(codec.dumps({**setup, "rank": other.number}))
        for other in self.others:  # what goes wrong before they meet is said in words
            other.asked = "starting"
        self._group = self._meet(folder, cuda)
        for other in self.others:
            self.answer(other)

    def _meet(self, folder: Path, cuda: bool) -> group.Group:
        until = time.monotonic() + group.TIMEOUT
        while not all(other.link.poll(0) or (folder / f"met-{other.number}").exists() for other in self.others):
            time.sleep(0.01)
            if time.monotonic() > until:
                raise self._fail(self.others[0], f"or another one has not begun in {group.TIMEOUT:.0f} s, while")
        for other in self.others:
            if other.link.poll(0):
                self.answer(other)  # which fails
        try:
            return group.Group(folder, 0, self.size, cuda=cuda)
        except RuntimeError as error:
            raise self._find_dead(error) from error

    def _enter(self) -> None:
        self._sent = {}
        here = {name: list(t.shape) for name, t in rank.walk_tensors(self.ctx.models)}
        for other in self.others:
            self.ask(other, "stage", name=self.ctx.name)
        for other in self.others:
            there = self.answer(other)
            if apart := [n for n in here.keys() | there.keys() if here.get(n) != there.get(n)]:
                n = min(apart)
                message = f"has other models than this process: {n} is {there.get(n)} there and {here.get(n)} here,"
                raise self._fail(other, f"{message} after")
        self._stage = self.ctx.name

    # ---------------------------------------------------------------- what may go wrong

    def _find_dead(self, error: Exception) -> RankError:
        """Who is to blame where all of them together could not go on."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for other in self.others:
                if other.process.poll() is not None:
                    return self._fail(other, "died while")
            time.sleep(0.05)
        return self._fail(self.others[0], f"or another one did not go on ({error}), while")

    def _fail(self, other: _Process, how: str) -> RankError:
        with suppress(subprocess.TimeoutExpired):
            other.process.wait(PATIENCE if how.startswith(("died", "failed")) else 0)
        code = other.process.returncode
        ended = f" ({_describe_code(code)})" if code is not None else ""
        doing = _DOING.get(other.asked, other.asked)
        log = other.log.read_text(errors="replace").splitlines()[-LINES:] if other.log.is_file() else []
        hint = _ANEW if other.asked == "starting" else ""
        told = "\n  ".join(["the last lines of its log:", *log]) if log else "its log is empty"
        self.close()
        return RankError(f"learner {other.number} of {self.size} {how} {doing}{ended};{hint} the run goes on from its "
                         f"last checkpoint with the same command; {told}")  # fmt: skip


_ANEW = (" it makes the components of the recipe anew, so what a script has defined or registered is not known there: "
         "put it in a module, or set distributed.learners = 1;")  # fmt: skip
_DOING = {"share": "taking its rows", "stage": "making the models of a stage", "weights": "taking over weights",
          "columns": "scoring its rows", "gradient": "differentiating its rows", "hvp": "differentiating its rows",
          "reduce": "adding up gradients"}  # fmt: skip


class Spread:
    """The pieces of one optimiser batch, of which each process computes its share (`learners.pieces.Work`)."""

    def __init__(self, team: Team, pieces: Pieces, place: tuple[str, str]) -> None:
        self.team, self.whole = team, pieces
        ctx, self.params = team.ctx, pieces.params
        packed = packs(pieces.part.live, ctx.models)
        self.rows = cut_shares(pieces.batch, team.size, packed=packed)
        self.mine = pieces.share(self.rows[0])
        at = ctx.count
        count = (float(at), at.spent, at.whole, at.in_steps) if isinstance(at, Count) else (float(at),)
        now = {"step": ctx.step, "version": ctx.version, "within": ctx.within}
        settings = {"place": place, "size": len(pieces.batch), "scale": dict(pieces.scale), "ctx": now, "count": count,
                    "tokens": pieces.tokens, "packed": packed}  # fmt: skip
        for other, rows in zip(team.others, self.rows[1:], strict=True):
            team.ask(other, "share", share=pack_share(pieces.batch.take(rows)), **settings)

    @torch.no_grad()
    def columns(self) -> dict[str, Tensor]:
        """The live columns of the whole optimiser batch, without gradient."""
        self._ask_all("columns")
        scored = [self.mine.columns(), *map(self.team.answer, self.team.others)]
        order = torch.cat(self.rows).argsort()
        return {k: torch.cat([s[k] for s in scored])[order] for k in scored[0]}

    def gradient(
        self, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters
    ) -> list[Tensor | None]:
        """See `Pieces.gradient`; the sum over the shares."""
        if upstream is None:  # else they were sent for the columns
            self.team.send_weights(self.params)
        for other, rows in zip(self.team.others, self.rows[1:], strict=True):
            up = None if upstream is None else {k: g[rows].contiguous() for k, g in upstream.items()}
            self.team.ask(other, "gradient", terms=list(terms), upstream=up)
        grads = self.mine.gradient(terms, upstream, meter)
        reached = [g is not None for g in grads]
        for other, rows in zip(self.team.others, self.rows[1:], strict=True):
            found = self.team.answer(other)
            meter.join(found["losses"], found["infos"])
            scatter(found["stamps"], self.whole.into, rows)
            reached = [a or b for a, b in zip(reached, found["reached"], strict=True)]
        if not any(reached):
            return grads
        for other in self.team.others:
            self.team.ask(other, "reduce")
        sums = [torch.zeros_like(p) if g is None else g.contiguous() for g, p in zip(grads, self.params, strict=True)]
        self.team.together("reduce", sums)
        return [g if has else None for g, has in zip(sums, reached, strict=True)]

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """See `Pieces.hvp`; the sum over the shares."""
        self._ask_all("hvp", term=term, vector=vector)
        out = self.mine.hvp(term, vector)
        for other in self.team.others:
            out = out + self.team.answer(other)["vector"].to(out.device)
        return out

    def _ask_all(self, ask: str, **rest: Any) -> None:
        self.team.send_weights(self.params)
        for other in self.team.others:
            self.team.ask(other, ask, **rest)


class _Process:
    """A further process, the link to it, its log; `asked`: what it was asked last."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.asked, self.log = number, "", folder / f"learner-{number}.log"
        self.link, there = Pipe()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        try:
            with open(self.log, "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", rank.__name__, str(there.fileno())],
                    stdin=subprocess.PIPE,  # nothing is written there: it tells the process that we live
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(there.fileno(),),
                    env=env,
                    start_new_session=True,  # Ctrl-C is the parent's
                )
        finally:
            there.close()


def _end(others: list[_Process], folder: Path) -> None:
    """Hang up on all, wait, and kill what does not end."""
    try:
        for other in others:
            other.link.close()
        until = time.monotonic() + PATIENCE
        for other in others:
            with suppress(subprocess.TimeoutExpired):
                other.process.wait(max(0.0, until - time.monotonic()))
    finally:
        for other in others:
            other.process.kill()
            other.process.wait()
            if other.process.stdin is not None:
                other.process.stdin.close()
        others.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _describe_code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
