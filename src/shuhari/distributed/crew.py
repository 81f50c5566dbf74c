"""The run's side of its workers, which play and grade groups, and the handling of workers that die.

A group that a rollout would play here is sent to the worker with the fewest groups, and comes back graded, with what it
has spent. The run decides which groups there are, how stale they may be and what is trained on (`loop/flight`). A
worker may die at any moment: its groups are sent to other workers under the current weights (they give the same group
if no new weights were sent meanwhile) and counted as `lost_groups`, and another worker takes its place. What a group
has spent is charged when it comes back, so nothing is charged for a lost one. Left out: how workers are started and
reached, which is the `Yard`'s part (`rays`); taking groups away from a slow worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any

from shuhari.config.overlay import RecipeError
from shuhari.config.stage import Components
from shuhari.data import Request, Trajectory
from shuhari.distributed import starting
from shuhari.distributed.hands import LOG, MOST, Worker, Yard
from shuhari.distributed.messages import LostWorkerError, pack, read_error, read_group, unpack, write_count
from shuhari.distributed.weights import Blob, Outbox
from shuhari.kernel import state
from shuhari.ports import CURRENT_GROUP, REPLAYING, Rollout, ability, is_vector

if TYPE_CHECKING:
    from shuhari.loop.context import Context

LOSSES = 8  # workers that one group may outlive
DEATHS = 3  # of workers in a row, for each of them, with no group between, after which the run ends
PULSE = 1.0  # seconds between two looks at whether the workers' world is still there
BEGIN = "starting workers"
START = 180.0  # seconds that a worker may take to answer for the first time
GIVE_UP = 2.0  # seconds that a worker has to say what a group has spent that is given up
Sent = asyncio.Future[Future[bytes]]  # a call, once it was made


class Crew:
    """The workers of a run. `begin`: the message from which each worker builds its `Player`."""

    def __init__(self, yard: Yard, n: int, stages: Sequence[Components], begin: Mapping[str, Any]) -> None:
        self.yard, self.n, self.stages = yard, n, stages
        self.outbox, self.serial, self.deaths, self.lost = Outbox(), -1, 0, 0
        self.workers: list[Worker] = []
        self._begin = pack(begin)
        self._reached: dict[str, int] = {}  # stage and version of the last weights
        self._models: Any = None
        self._numbers = count()
        self._turns: dict[Worker, list[tuple[Mapping[str, Any], Sent]]] = {}  # what is asked in this turn of the loop
        self._here: dict[int, tuple[Any, str]] = {}  # rollout -> (rollout, why the run plays it itself; "" if not)

    # ---------------------------------------------------------------- weights

    def sync(self, ctx: Context) -> None:
        """Send the current weights to every worker. They load them as they arrive; a group requested from now on begins
        with them."""
        stage = next(i for i, s in enumerate(self.stages) if s.rewards is ctx.rewards and s.engine is ctx.engine)
        self._models = ctx.models
        new = self.outbox.add(ctx.models, self.stages[stage].follows)
        for blob in new:
            blob.sent = self.yard.put(blob.data)
        self.serial += 1
        self._reached = {"serial": self.serial, "stage": stage, "version": ctx.version}
        if not self.workers:
            starting.begin(BEGIN, told=True)
            self.workers = [self._hire(i) for i in range(self.n)]
            for worker in self.workers:  # until the first one is there
                worker.started.add_done_callback(lambda _: starting.end(BEGIN))
            return
        for worker in self.workers:
            if not worker.dead:
                self._reach(worker, self.serial - 1, new)

    def _hire(self, index: int) -> Worker:
        """Start a new worker, with all the weights."""
        hand = self.yard.hire(index)
        started = hand.send("begin", self._begin)
        worker = Worker(index, hand, started, time.monotonic())
        self._reach(worker, -1, self.outbox.blobs)
        return worker

    def _reach(self, worker: Worker, after: int, blobs: Sequence[Blob]) -> None:
        """Send the current weights to a worker, as the changes since number `after`; -1: all of them."""
        sent = worker.hand.send("reach", pack({**self._reached, "after": after}), [b.sent for b in blobs])
        worker.reached = [r for r in worker.reached if not r.done() or r.exception() is not None] + [sent]

    # ---------------------------------------------------------------- groups

    async def play(self, request: Request, rollout: Rollout, ctx: Any) -> list[Trajectory] | None:
        """Return the graded group of a stamped request, from a worker; empty if its rollout raised; None if the run is
        to play it itself. Raises what ended the group at the worker, and RuntimeError if workers keep dying."""
        name = self._find(rollout, ctx)
        if name is None:
            return None
        number, asker = next(self._numbers), CURRENT_GROUP.get()
        REPLAYING.set(False)  # of a group in flight in a run that is resumed nothing is known, and all is asked again
        ask = {"number": number, "request": request, "rollout": name, "asker": asker, "within": tuple(ctx.within),
               "apart": ctx.apart, "step": ctx.step, "count": write_count(ctx.count), **self._reached}  # fmt: skip
        try:
            pack(ask)
        except TypeError as error:
            self._keep(rollout, f"what it is asked cannot be sent: {error}")
            return None
        for _ in range(LOSSES):
            worker = await self._pick()
            worker.asked += 1
            try:
                answer = unpack(await self._ask(worker, {**ask, **self._reached}, ctx))
            except LostWorkerError as error:
                ctx.charge("lost_groups", 1)
                self.lost += 1
                self._bury(worker, error)
                continue
            finally:
                worker.asked -= 1
            self.deaths = 0
            return self._take(answer, request, rollout, worker, ctx)
        raise RuntimeError(f"problem {request.problem.id!r}: {LOSSES} workers have died while they played it")

    def _take(
        self, answer: Mapping[str, Any], request: Request, rollout: Rollout, worker: Worker, ctx: Any
    ) -> list[Trajectory] | None:
        """Read a worker's answer, and charge what the group has spent."""
        if "unfit" in answer:
            raise _explain_start(answer["unfit"])
        for what, amount in answer["spent"].items():
            ctx.charge(what, amount)
        if "refused" in answer:
            self._keep(rollout, answer["refused"])
            return None
        for problem in answer["problems"]:
            if len(ctx.problems) < 5 and problem not in ctx.problems:
                ctx.problems.append(problem)
        if "error" in answer:
            raise read_error(answer["error"], f"worker {worker.index}")
        return read_group(answer["group"], request)

    async def _ask(self, worker: Worker, ask: Mapping[str, Any], ctx: Any) -> bytes:
        """Return the answer of a worker. Raises LostWorkerError if the worker dies, or what all workers live in (such
        as Ray)."""
        sent = self._send(worker, ask)
        try:
            call = _hear(await sent)
            while not call.done():
                await asyncio.wait({call}, timeout=PULSE)
                if not call.done():
                    self._check(worker)
            return call.result()
        except asyncio.CancelledError:
            if sent.cancelled():  # before it was sent
                raise
            call = _hear(sent.result())
            worker.hand.send("drop", pack({"number": ask["number"]}))
            await asyncio.wait({call}, timeout=GIVE_UP)
            if call.done() and not call.cancelled() and call.exception() is None:
                for what, amount in unpack(call.result()).get("spent", {}).items():
                    ctx.charge(what, amount)
            raise

    def _send(self, worker: Worker, ask: Mapping[str, Any]) -> Sent:
        """Queue a call for a worker until the end of this turn of the event loop; if it is cancelled before, it is not
        sent. A worker begins all calls of one turn together and in order, since the last bits of a forward may depend
        on what else is in it."""
        loop = asyncio.get_running_loop()
        if worker not in self._turns:
            self._turns[worker] = []
            loop.call_soon(self._send_turn, worker)
        sent: Sent = loop.create_future()
        self._turns[worker].append((ask, sent))
        return sent

    def _send_turn(self, worker: Worker) -> None:
        """Send the calls of this turn that are still wanted; the worker waits for all `n` of them."""
        left = [(ask, sent) for ask, sent in self._turns.pop(worker) if not sent.done()]
        turn = next(self._numbers)
        for rank, (ask, sent) in enumerate(left, 1):
            sent.set_result(worker.hand.send("play", pack({**ask, "turn": (turn, rank, len(left))})))

    def _check(self, worker: Worker) -> None:
        """Check that a worker whose answer is awaited is still there; raise if it is not."""
        if why := "it was given up" if worker.dead else self.yard.explain_loss():
            raise LostWorkerError(why)
        for sent in worker.reached:  # without them its groups would wait for ever
            if sent.done():
                sent.result()
        if worker.started.done():
            found = unpack(worker.started.result())  # LostWorkerError where it has died
            if "error" in found:
                raise _explain_start(found["error"])
        elif time.monotonic() - worker.at > START:
            raise RuntimeError(f"worker {worker.index} has not begun within {START:g} s{_show(worker.hand.tell())}")

    async def _pick(self) -> Worker:
        """Return the worker with the fewest groups, among those that have started, if any."""
        while True:
            begun = [w for w in self.workers if w.started.done()] or self.workers
            worker = min(begun, key=lambda w: w.asked)
            if worker.asked < MOST:
                return worker
            await asyncio.sleep(0.01)

    # ---------------------------------------------------------------- what dies

    def _bury(self, worker: Worker, error: LostWorkerError) -> None:
        """Replace a worker that has died, once. Raises RuntimeError if workers do nothing but die."""
        if worker.dead:
            return
        worker.dead = True
        log = _show(worker.hand.tell())
        self.deaths += 1
        LOG.warning("worker %d has died (%s): its %d groups are asked again%s", worker.index, error, worker.asked, log)
        if self.deaths > DEATHS * self.n:
            raise RuntimeError(f"{self.deaths} workers have died one after the other, the last: {error}{log}")
        if why := self.yard.explain_loss():
            self._begin_again(why)
        else:
            worker.hand.close()
            self.workers[worker.index] = self._hire(worker.index)

    def _begin_again(self, why: str) -> None:
        """Restart what the workers live in (such as Ray), and all workers."""
        for worker in self.workers:
            worker.dead = True
        try:
            self.yard.restart()
        except LostWorkerError as error:
            message = f"{why}, and {error}: the run stands at its last checkpoint; the same command goes on from there"
            raise RuntimeError(message) from error
        LOG.warning("%s: it was started again", why)
        for blob in self.outbox.blobs:
            blob.sent = self.yard.put(blob.data)
        self.workers = [self._hire(i) for i in range(self.n)]

    def close(self) -> None:
        """End the workers."""
        starting.end(BEGIN)
        for worker in self.workers:
            worker.dead = True
            worker.hand.close()
        self.workers = []
        self.yard.close()

    # ---------------------------------------------------------------- what the run plays itself

    def _find(self, rollout: Rollout, ctx: Any) -> str | None:
        """Return the name under which workers know the rollout and its task; None if the run plays it itself."""
        if not self.workers or ctx.models is not self._models:
            return None
        stage = self.stages[self._reached["stage"]]
        if ctx.rewards is not stage.rewards or ctx.engine is not stage.engine:
            return None
        found = [n for n, (r, task) in stage.list_rollouts().items() if r is rollout and task is ctx.task]
        if not found:
            return None
        if id(rollout) not in self._here:
            self._here[id(rollout)] = rollout, ""
            if why := explain_local(rollout, ctx.task, ctx.rewards):
                self._keep(rollout, why)
        return None if self._here[id(rollout)][1] else found[0]

    def _keep(self, rollout: Rollout, why: str) -> None:
        """Have the run itself play a rollout from now on."""
        if not self._here.get(id(rollout), (None, ""))[1]:
            LOG.warning("groups of %s are played by the run itself, not by workers: %s", type(rollout).__name__, why)
        self._here[id(rollout)] = rollout, why


def explain_local(rollout: Any, task: Any, rewards: Mapping[str, Any]) -> str:
    """Return why groups cannot be played by a process that shares nothing with the others; "" if they can."""
    if is_vector(rollout):
        return "lanes of environments live on from call to call"
    for path, part in state.walk({"rollout": rollout, "task": task, "reward": dict(rewards)}):
        kept = [name for name in ("state", "observe") if ability(part, name) is not None]
        if kept:
            return f"{type(part).__name__} ({path}) has {kept[0]!r}, a memory that all groups share"
    return ""


def _hear(call: Future[bytes]) -> asyncio.Future[bytes]:
    """Wrap a call as an asyncio future; if the caller gives it up, its error is ignored."""
    heard = asyncio.wrap_future(call)
    heard.add_done_callback(lambda done: done.cancelled() or done.exception())
    return heard


def _explain_start(error: Mapping[str, Any]) -> RecipeError:
    told = f"{error['where']}: {error['text']}" if error["where"] else f"{error['kind']}: {error['text']}"
    how = "what a script registers or hands over it alone knows: name it as file.py:name, or leave workers at 0"
    return RecipeError("distributed.workers", f"a worker cannot be made from this recipe ({told}); {how}")


def _show(log: str) -> str:
    return f"; the last lines of its log:\n{log}" if log else ""
