"""A yard of workers in this process, for tests of what the run does with them: the same `Work`, no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from shuhari.distributed.messages import LostWorkerError, unpack
from shuhari.distributed.work import Work


class LocalHand:
    """A worker whose calls run in the run's own loop. `strike(method, calls)`: whether it dies at a call."""

    def __init__(self, strike: Callable[[str, int], bool]) -> None:
        self.work, self.strike, self.dead, self.calls = Work(), strike, False, 0
        self.waiting: list[Future[bytes]] = []
        self.weights: list[dict[str, Any]] = []  # that it was sent at once: role -> name -> tensor

    def send(self, method: str, message: bytes, blobs: Sequence[Any] = ()) -> Future[bytes]:
        out: Future[bytes] = Future()
        if blobs:
            trees = [unpack(blob)["weights"] for blob in blobs]
            roles = dict.fromkeys(role for tree in trees for role in tree)
            self.weights.append({r: {n: x for t in trees for n, x in t.get(r, {}).items()} for r in roles})
        self.calls += method == "play"
        if self.dead or self.strike(method, self.calls):
            self.die()
            out.set_exception(LostWorkerError("struck"))
            return out
        self.waiting.append(out)
        call = getattr(self.work, method)(message, *([list(blobs)] if method == "reach" else ()))
        LOOPS[0].call_soon_threadsafe(lambda: LOOPS[0].create_task(self._run(call, out)))
        return out

    async def _run(self, call: Any, out: Future[bytes]) -> None:
        answer = await call
        if not out.done():
            out.set_result(answer)

    def die(self) -> None:
        self.dead = True
        for out in self.waiting:
            if not out.done():
                out.set_exception(LostWorkerError("struck"))

    def tell(self) -> str:
        return "its last words" if self.dead else ""

    def close(self) -> None:
        self.dead = True


LOOPS: list[asyncio.AbstractEventLoop] = []  # of the run at hand


class LocalYard:
    """Where they come from. `kept`: all that were ever hired."""

    def __init__(self, loop: asyncio.AbstractEventLoop, strike: Callable[[str, int], bool] = lambda *_: False) -> None:
        LOOPS[:] = [loop]
        self.strike, self.kept, self.gone, self.restarts = strike, list[LocalHand](), "", 0

    def hire(self, index: int) -> LocalHand:
        self.kept.append(LocalHand(self.strike))
        return self.kept[-1]

    def put(self, data: bytes) -> bytes:
        return data

    def explain_loss(self) -> str:
        return self.gone

    def restart(self) -> None:
        self.gone, self.restarts = "", self.restarts + 1

    def close(self) -> None:
        for hand in self.kept:
            if hand.work.player is not None:
                hand.work.player.close()
