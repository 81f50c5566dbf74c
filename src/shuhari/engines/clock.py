"""Virtual time: an event loop that jumps to its next timer if nothing is ready, instead of sleeping.

It makes an asynchronous run a function of its seed, so that the run can be tested and resumed bit by bit. Time stands
still until all threads of an executor have finished; their results arrive in the order of the calls. Other waiting for
the outside world (a socket, a process) loses against a timer: the jump does not wait for it. `run_together` works in
any event loop.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from shuhari.bounds import Positive, check
from shuhari.kernel.profile import span

if TYPE_CHECKING:
    from shuhari.ports import Durations

T = TypeVar("T")


@dataclass(frozen=True)
class Virtual:
    """Modelled durations, in seconds, in the place of the clock."""

    decode: Positive = 0.02
    """Seconds that one decoding step takes, one token of every running row."""
    train: Positive = 1.0
    """Seconds that the training update of one step takes."""

    def __post_init__(self) -> None:
        check(self)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` begins at 0; `at` may be set while the loop does not run."""

    _scheduled: list[asyncio.TimerHandle]
    _ready: Any

    def __init__(self) -> None:
        self.at = 0.0
        self.threads: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = []  # (of the thread, of who waits)
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.at

    def jump(self, timeout: float) -> None:
        """Advance the time to the first timer, exactly."""
        self.at = self._scheduled[0].when() if self._scheduled else self.at + timeout

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run in a thread; the result arrives when all pending threads have finished."""
        thread, waits = super().run_in_executor(executor, func, *args), self.create_future()
        self.threads.append((thread, waits))
        thread.add_done_callback(self._count_answer)
        return waits

    def _count_answer(self, _: asyncio.Future[Any]) -> None:
        if not all(thread.done() for thread, _ in self.threads):
            return
        done, self.threads = self.threads, []
        for thread, waits in done:
            if waits.done() or thread.cancelled():
                waits.cancel()
            elif (error := thread.exception()) is not None:
                waits.set_exception(error)
            else:
                waits.set_result(thread.result())

    async def settle(self) -> None:
        """Wait until nothing is left to do at this instant."""
        while self._ready or self.threads:
            await asyncio.sleep(0)


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.loop.threads:  # only the world outside can go on
            return super().select(None)
        self.loop.jump(timeout)
        return []


def new_loop(virtual: Durations | None) -> asyncio.AbstractEventLoop:
    """Return the event loop of a run. In real time it profiles the time spent waiting for the outside world as `wait`.
    """
    if virtual is not None:
        return VirtualLoop()
    if sys.platform == "win32":  # its own kind of loop has processes
        return asyncio.new_event_loop()
    selector = selectors.DefaultSelector()
    look = selector.select

    def select(timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:  # something is ready
            return look(timeout)
        with span("wait"):
            return look(timeout)

    selector.select = select  # type: ignore[method-assign]
    return asyncio.SelectorEventLoop(selector)


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results, in order. If one raises, the others are cancelled and
    awaited before the error is raised here, so nothing goes on unobserved."""
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
