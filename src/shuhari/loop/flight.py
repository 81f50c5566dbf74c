"""Groups in flight: requested, and not yet trained on. Synchronous and asynchronous collection share this code.

With staleness s, the groups of at most 1 + s batches are in flight. Groups requested s versions ago are awaited and
taken first; then the oldest finished ones. So no group is lost, and none is trained on more than s versions after it
began; with s = 0 all requested groups are awaited. AReaL (arXiv 2505.24298, section 5.1) states the bound at admission;
here, too, a group that a filter drops leaves room for another.

All of it happens in one thread: while the run waits for a batch, and in the pauses that learners make
(`Context.poll_rollouts`). On one machine concurrency does not shorten the work itself, but it does shorten waiting for
tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from shuhari.batch import Batch
from shuhari.data import EMPTY, Request, Trajectory
from shuhari.engines.clock import VirtualLoop
from shuhari.loop import collect
from shuhari.loop.eventloop import PATIENCE
from shuhari.loop.jobs import Jobs, Running
from shuhari.ports import CURRENT_GROUP, REPLAYING, AsyncEngine, Rollout, ability

if TYPE_CHECKING:
    from shuhari.loop.asks import LoopCtx

Select = Callable[[int, Any], Awaitable[Sequence[Request]]]


@dataclass(eq=False)
class PendingGroup:
    """One group: its request, the `version` of the weights at its start, and the time of the loop, `at`."""

    request: Request
    version: int
    at: float
    group: list[Trajectory] | None = None  # once it is graded
    task: asyncio.Task[None] | None = None


class InFlight:
    """The groups in flight of one run, in the order of their requests."""

    def __init__(self, ctx: LoopCtx) -> None:
        self.ctx = ctx
        self.groups: list[PendingGroup] = []
        self.jobs = Jobs(ctx)
        self.size = 0  # groups of a batch
        self.breath = monotonic()  # when what is in flight last had its turn
        self._changed = asyncio.Event()

    # ---------------------------------------------------------------- collecting

    async def take(self, want: int, select: Select, *, first: bool, left: float) -> tuple[Batch, list[Request]]:
        """Return at least `want` groups as a batch, in the order of their requests, and the requests, while others stay
        in flight: more than `want` if more are due, and fewer if `select` gives fewer. `first`: whether nothing of this
        step's batch has been collected yet; `left`: number of steps that may come after this one."""
        self.size = want if first else self.size
        lack = want + int(max(0, min(self.ctx.staleness, left))) * self.size - len(self.groups)
        if lack > 0:
            now = asyncio.get_running_loop().time()
            asked = [self.ctx.stamp_request(r, "") for r in await select(lack, self.ctx)]
            self._launch([PendingGroup(r, self.ctx.version, now) for r in asked])
        while True:
            self._raise()
            due = [t for t in self.groups if t.version + self.ctx.staleness <= self.ctx.version]
            good = [t for t in self.groups if t.group]
            if all(t.group is not None for t in (due if len(good) >= want else self.groups)):
                break
            self._changed = asyncio.Event()
            await self._changed.wait()
        free = [t for t in good if t not in due][
            : max(0, want - sum(bool(t.group) for t in due))
        ]
        failed = [t for t in self.groups if t.group == []]  # they come along, and make no batch smaller
        chosen = [t for t in self.groups if t in due or t in free or t in failed]
        self.groups = [t for t in self.groups if t not in chosen]
        for t in chosen:
            self._forget(t)
        groups = [t.group for t in chosen if t.group is not None]
        self.breath = monotonic()
        return collect.pack_groups(groups, self.ctx), [t.request for t in chosen]

    def _launch(self, groups: Sequence[PendingGroup], *, again: bool = False) -> None:
        self.groups += groups
        rollout = self.ctx.rollout  # evaluation sets another for its own
        assert rollout is not None
        for pending in groups:
            pending.task = asyncio.ensure_future(self._fly(pending, rollout, again))
            pending.task.add_done_callback(lambda _: self._changed.set())

    def _forget(self, pending: PendingGroup) -> None:
        if (engine := self.ctx.async_engine) is not None:
            engine.forget(pending.request.key)

    async def _fly(self, pending: PendingGroup, rollout: Rollout, again: bool) -> None:
        CURRENT_GROUP.set(pending.request.key)
        REPLAYING.set(again)
        pending.group = await collect.collect_group(pending.request, rollout, self.ctx)

    def _raise(self) -> None:
        """Raise the error of a group's failed task, which ends the run."""
        for t in self.groups:
            if t.task is not None and t.task.cancelled():
                raise RuntimeError(f"the rollout of problem {t.request.problem.id!r} was cancelled")
            if t.task is not None and t.task.done() and (error := t.task.exception()) is not None:
                raise error

    # ---------------------------------------------------------------- meanwhile

    def poll(self) -> None:
        """Let groups in flight continue for as long as was computed since their last turn; virtual time stands still.
        """
        if (self.groups or self.jobs.running) and not isinstance(self.ctx.loop, VirtualLoop):
            self.ctx.wait(self.go(monotonic() - self.breath))
            self.breath = monotonic()

    async def go(self, seconds: float) -> None:
        """Let groups in flight continue for at most so long: answers of tools are read, the engine works."""
        loop: Any = asyncio.get_running_loop()
        engine, end = self.ctx.engine, loop.time() + seconds
        await asyncio.sleep(0)  # the world outside is looked at between two turns of the loop
        await asyncio.sleep(0)
        while loop.time() < end and (ability(engine, "busy") or loop._ready):
            await asyncio.sleep(0)

    async def elapse(self, seconds: float) -> None:
        """Let virtual time pass, and finish what happens at its end."""
        await asyncio.sleep(seconds)
        await asyncio.get_running_loop().settle()  # type: ignore[attr-defined]

    def drop(self) -> None:
        """Cancel groups and jobs in flight, as at the end of a stage; groups are charged as `dropped_groups`."""
        dropped, self.groups = self.groups, []
        ending = list(self.jobs.drop())
        if dropped:
            self.ctx.charge("dropped_groups", len(dropped))
        for t in dropped:
            self._forget(t)
            if t.task is not None:
                t.task.cancel()
        if tasks := [*ending, *(t.task for t in dropped if t.task is not None)]:
            self.ctx.wait(_end_tasks(tasks))

    # ---------------------------------------------------------------- resuming

    def tree(self) -> dict[str, Any]:
        """Return what the store must keep: finished groups, and for the others the requests and the answers that they
        got."""
        loop = self.ctx.loop
        saved = [
            {"request": t.request, "version": t.version, "at": t.at,
             "group": None if t.group is None else tuple(t.group)}
            for t in self.groups
        ]  # fmt: skip
        jobs, engine = self.jobs.tree(), self.ctx.async_engine
        calls = engine.saved() if engine is not None and (saved or jobs) else {}
        time = loop.time() if isinstance(loop, VirtualLoop) else 0.0
        return {"tickets": saved, "jobs": jobs, "numbers": self.jobs.numbers(), "calls": calls, "time": time}

    def restore(self, tree: Mapping[str, Any], restart: Callable[[], None] = lambda: None) -> None:
        """Start the unfinished requests again, and have `restart` begin the unfinished jobs again: recorded answers of
        the engine are replayed, at their times if time is virtual, and calls that it had begun continue. None of that
        is charged again."""
        loop, ctx = self.ctx.loop, self.ctx
        groups = [
            PendingGroup(**{**t, "group": None if t["group"] is None else list(t["group"])}) for t in tree["tickets"]
        ]
        if isinstance(loop, VirtualLoop):
            loop.at = tree["time"]
        jobs = self.jobs.restore(tree.get("jobs", ()), tree.get("numbers", EMPTY), restart)
        if isinstance(loop, VirtualLoop):
            loop.at = min(
                [
                    *(t.at for t in groups if t.group is None),
                    *(j.at for j in jobs),
                ],
                default=tree["time"],
            )
        if groups or jobs:
            if (engine := ctx.async_engine) is not None:
                engine.load(tree["calls"])
            ctx.muted = isinstance(loop, VirtualLoop)
            ctx.wait(self._resume(sorted([*groups, *jobs], key=lambda x: x.at), tree["time"], engine))
            ctx.muted = False
        self.breath = monotonic()

    async def _resume(self, begun: Sequence[PendingGroup | Running], time: float, engine: AsyncEngine | None) -> None:
        loop = asyncio.get_running_loop()
        for one in begun:
            if isinstance(one, PendingGroup) and one.group is not None:
                self.groups.append(one)
                continue
            if isinstance(loop, VirtualLoop) and one.at > loop.time():
                await asyncio.sleep(one.at - loop.time())
            if isinstance(one, PendingGroup):
                self._launch([one], again=not isinstance(loop, VirtualLoop))
            else:
                self.jobs.launch(one)
        if isinstance(loop, VirtualLoop):
            await asyncio.sleep(time - loop.time())
            await loop.settle()
        else:
            await self.go(0.0)
        if engine is not None:
            engine.loaded()


async def _end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks, timeout=PATIENCE)
