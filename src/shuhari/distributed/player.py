"""The worker's side: a process that plays and grades groups for a run elsewhere, with components of the same recipe.

A group depends on its request, the run's seed and the weights alone (its random streams are named by them), so any
worker can play it, and play it again. A worker has no memory of its own: its models get their weights from the run
(`reach`), and services of the run as a whole (`ctx.background`, `ctx.probe`, `ctx.tell`) are missing; a group whose
rollout or grader needs one is returned as `refused`, and the run plays it. Left out: curricula, learners, lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from shuhari.config.build import build_stages
from shuhari.config.recipe import Recipe
from shuhari.distributed.messages import read_count, unpack, write_error, write_group
from shuhari.engines.time_limit import PassThrough
from shuhari.events import Event
from shuhari.kernel import registry, state
from shuhari.loop.accounts import Accounts
from shuhari.loop.collect import collect_group
from shuhari.loop.context import Context
from shuhari.loop.roles import cast_roles
from shuhari.ports import CURRENT_GROUP, ability, is_vector

PLAYED: ContextVar[Context | None] = ContextVar("played", default=None)  # of the group that runs now


class Refused(PassThrough):
    """A request for what only the run itself can do. It is no Exception, so that no `except Exception` takes it for a
    failure."""


class Player:
    """Plays the groups of one run. `recipe`: its tree; `held`: names that stand for paths; `threads`: torch's."""

    def __init__(self, name: str, tree: Mapping[str, Any], held: Mapping[str, str], threads: int) -> None:
        for given, path in held.items():
            registry.hold(given, path)
        recipe = Recipe(name, dict(tree))
        self.stages = build_stages(recipe.stages)
        first = self.stages[0]
        self.ctx = Context(recipe.seed, first.task, first.engine, first.tokens, threads)
        self.serial = self.at = -1  # of the last weights, and the stage at hand
        self._shared: set[str] = set()
        self._opened: Any = None  # the engine that was opened last
        self._reached = asyncio.Event()
        self._playing: dict[int, asyncio.Task[Any]] = {}
        self._dropped: set[int] = set()  # before they were begun

    # ---------------------------------------------------------------- weights

    async def reach(self, serial: int, after: int, stage: int, version: int, blobs: Sequence[bytes]) -> None:
        """Load the weights number `serial`: role -> changes since number `after`, which is awaited, as messages may
        overtake each other; -1: all weights, as a new worker gets them."""
        while self.serial < after:
            await self._reached.wait()
        if self.serial != after:  # given up
            return
        self.ctx.set_threads()
        for index in range(self.at + 1, stage + 1):
            self._install(index)
        for blob in blobs:
            tree = unpack(blob)
            for role, changed in tree["weights"].items():
                self.ctx.models[role].module.load_state_dict(changed, strict=False)
            state.remember({"models": dict(self.ctx.models)}, tree["memory"])
        self.ctx.engine.sync(self.ctx.models, version)
        self.ctx.version = version
        self.serial = serial
        self._reached.set()
        self._reached = asyncio.Event()

    def _install(self, index: int) -> None:
        """Create the roles of a stage and open the components that it plays with; weights follow."""
        ctx, stage = self.ctx, self.stages[index]
        ctx.play(stage)
        ctx.curriculum = None  # that of the run knows what was learnt
        cast_roles(stage.models, ctx.models, stage.task, ctx.seed, {}, self._shared, sources=False)
        ctx.open({n: x for n, x in stage.list_rollouts().items() if not is_vector(x[0])}, stage.rewards.values())
        if ctx.engine is not self._opened:
            ability(ctx.engine, "open")(ctx.seed, _charge)
            self._opened = ctx.engine
        self.at = index

    # ---------------------------------------------------------------- groups

    async def play(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Return the graded `group` of a request, with what it has `spent` (ledger) and what went wrong (`problems`);
        or else why it was `refused`, the `error` that ends the run, or `dropped`."""
        if ask["number"] in self._dropped:
            self._dropped.remove(ask["number"])
            return {"dropped": True, "spent": {}, "problems": []}
        ctx = self._fork(ask)
        task = asyncio.ensure_future(_play(ctx, ask))
        self._playing[ask["number"]] = task
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            answer = {"dropped": True}
        finally:
            del self._playing[ask["number"]]
        return {**answer, "spent": ctx.ledger, "problems": ctx.problems}

    async def wait_for(self, serial: int) -> None:
        """Wait until the weights of that number or later ones are loaded, or will not come (`give_up`)."""
        while self.serial < serial:
            await self._reached.wait()

    def give_up(self) -> None:
        """Release the groups that wait for weights, as none will come."""
        self.serial = 2**62
        self._reached.set()

    def drop(self, number: int) -> None:
        """Cancel a group that is no longer wanted, even one that has not begun."""
        if (task := self._playing.get(number)) is not None:
            task.cancel()
        else:
            self._dropped.add(number)

    def _fork(self, ask: Mapping[str, Any]) -> Context:
        """Return the run's context as this group sees it."""
        stage = self.stages[ask["stage"]]
        rollout, task = stage.list_rollouts()[ask["rollout"]]
        other = task if ask["apart"] else None
        ctx = self.ctx.fork(*ask["within"], rollout=rollout, task=other, accounts=Accounts())
        ctx.step, ctx.version, ctx.count = ask["step"], ask["version"], read_count(ask["count"])
        ctx.refuse, ctx.tell = _refuse, _refuse_event
        return ctx

    def close(self) -> None:
        """Close the components that it plays with."""
        self.ctx.close()


async def _play(ctx: Context, ask: Mapping[str, Any]) -> dict[str, Any]:
    PLAYED.set(ctx)
    CURRENT_GROUP.set(ask["asker"])
    request, rollout = ask["request"], ctx.rollout
    assert rollout is not None
    try:
        return {"group": write_group(await collect_group(request, rollout, ctx), request)}
    except Refused as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"error": write_error(error)}
    finally:
        if (engine := ctx.async_engine) is not None:
            engine.forget(ask["asker"])


def _charge(what: str, amount: float) -> None:
    """Charge what the engine has spent to the group that made the call."""
    if (ctx := PLAYED.get()) is not None:
        ctx.charge(what, amount)


def _refuse(service: str) -> Refused:
    return Refused(f"it asks for ctx.{service}, which only the run itself has")


def _refuse_event(event: Event) -> None:
    raise _refuse("tell")
