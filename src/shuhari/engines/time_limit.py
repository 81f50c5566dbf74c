"""A time limit, in seconds, for a call of a user's function, which may hang.

In the main thread a system timer interrupts the call as Ctrl-C would: Python sees its signal between two instructions,
while it waits, and within regular expressions and products of huge numbers. No other thread can be interrupted, so from
another thread (a notebook) the function is called in a thread of its own, which is abandoned once its time is over. A
function that swallows every interruption or switches its timer off, and never returns, ends the process (`watchdog`).
Left out: libraries in C that check no signal (such a call ends, late); limits on memory; malicious functions.

`guard` is for calls of user code that nobody awaits, such as an environment's step; `contained` is for any call: what
would end the whole run (`exit()`) becomes an error of that call.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from types import FrameType
from typing import Any

from shuhari.data import ContractError
from shuhari.engines import watchdog

AGAIN = 1.0  # seconds after which a function that has swallowed the interruption gets the next one
GIVEN_UP = 4  # threads that go on with what nobody waits for: with one more the run ends

_left: list[threading.Thread] = []


class Overdue(TimeoutError):
    """The error if a call has not returned within its limit, distinct from the call's own timeouts."""


class EscapeError(RuntimeError):
    """The error if user code raises what would end more than its call, such as SystemExit."""


class PassThrough(BaseException):
    """An exception that `contained` lets through: it ends the call in which it was raised, and does not come from user
    code."""


class _Interruption(BaseException):
    """The interruption, raised inside the function; no `except Exception` of its own catches it."""


@contextmanager
def contained(*, awaited: bool = True) -> Iterator[None]:
    """Run user code inside, and raise EscapeError, with the notes, for what is no `Exception` and comes from that code.
    What comes from outside passes: Ctrl-C and, if something is `awaited` inside, a cancelled task or a closed
    coroutine."""
    task = _find_task()
    try:
        yield
    except (Exception, KeyboardInterrupt, PassThrough, _Interruption):
        raise
    except BaseException as error:
        if awaited and ends_the_call(error, task):
            raise
        what = f"called exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {_name(error)}"
        escaped = EscapeError(f"it {what}, which ends nothing here but the call")
        for told in vars(error).get("__notes__", ()):
            escaped.add_note(told)
        raise escaped from error


@contextmanager
def guard(what: Callable[[], str], seconds: float | None) -> Iterator[None]:
    """Run user code in `contained`, and raise Overdue, with the text of `what`, if it has not returned within `seconds`
    (None, 0: no limit). In other threads than the main one there is no limit, as what is made in one thread need not
    run in another."""
    limit = seconds if seconds and threading.current_thread() is threading.main_thread() else None
    try:
        with nullcontext() if limit is None else _interrupted(limit), contained(awaited=False):
            yield
    except Overdue:
        if limit is None:
            raise
        raise Overdue(f"{what()} has not returned within {limit:g} s") from None


def ends_the_call(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error came from outside (the call's task was cancelled, or its coroutine closed) and was not raised by
    the user's code itself."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # what is closed runs in no task, or in another's
        return task is None or task is not _find_task()
    return False


def _find_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def call_within(seconds: float | None, call: Callable[[], Any]) -> Any:
    """Return the result of a function, awaited if it is a coroutine; seconds None: without a limit.

    Raises Overdue after so many seconds by the clock (also in virtual time); EscapeError for `exit()` and the like;
    ContractError if functions that cannot be interrupted have hung more than GIVEN_UP times.
    """
    with contained():
        return await _call_within(seconds, call)


async def _call_within(seconds: float | None, call: Callable[[], Any]) -> Any:
    if seconds is None:
        given = call()
        return await given if inspect.isawaitable(given) else given
    if threading.current_thread() is not threading.main_thread():
        given = _call_beside(seconds, call)
        return await _wait(given, seconds) if inspect.isawaitable(given) else given
    end = time.monotonic() + seconds
    with _interrupted(seconds):
        given = call()
    return await _wait(_Driven(given, end), end - time.monotonic()) if inspect.isawaitable(given) else given


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Interrupt the code inside after so many seconds. Another alarm (a test's limit) is restored."""
    armed, call = False, watchdog.Call(time.monotonic() + seconds)

    def interrupt(_: int, frame: FrameType | None) -> None:
        if armed:
            call.fired += 1
            raise _Interruption

    call.handler = interrupt

    began, (left, every) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, interrupt)
    watchdog.begin(call)
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), AGAIN)
        try:
            yield
        finally:
            armed = False
    except _Interruption:
        pass
    finally:
        armed = False
        watchdog.end(call)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-6), every)
    if call.fired or time.monotonic() - began > seconds:  # also where the function has swallowed it, or used the timer
        raise Overdue


def _call_beside(seconds: float, call: Callable[[], Any]) -> Any:
    """Call within the limit in a thread of its own, which goes on if its time is over."""
    out: list[Any] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            out.append(call())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=copy_context().run, args=(work,), daemon=True, name="limited")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _left[:] = [*(t for t in _left if t.is_alive()), thread]
        if len(_left) > GIVEN_UP:
            raise ContractError(f"{len(_left)} calls of functions hang in threads, which nothing can end")
        raise Overdue
    if error:
        raise error[0]
    return out[0]


async def _wait(work: Awaitable[Any], seconds: float) -> Any:
    """Await within a limit of wall-clock time, as virtual time would jump to a timer of the loop."""
    loop, task, scope = asyncio.get_running_loop(), asyncio.current_task(), asyncio.timeout(None)
    ended, again, clocks = False, 0, list[threading.Timer]()
    assert task is not None

    def expire() -> None:
        nonlocal again
        if ended:
            return
        if scope.expired():  # it has swallowed the cancellation
            if (again := again + 1) * AGAIN > watchdog.GRACE * watchdog.TICK:
                watchdog.end_process("in an `await`")
            task.cancel()
        else:
            scope.reschedule(loop.time())
        start(AGAIN)

    def start(wait: float) -> None:
        clocks[:] = [threading.Timer(max(wait, 0.0), loop.call_soon_threadsafe, (expire,))]
        clocks[0].daemon = True
        clocks[0].start()

    try:
        async with scope:
            start(seconds)
            try:
                return await work
            finally:
                ended = True
                clocks[0].cancel()
                for _ in range(again):
                    task.uncancel()
    except TimeoutError:
        if scope.expired():
            raise Overdue from None
        raise


@dataclass(frozen=True)
class _Driven(Awaitable[Any]):
    """A coroutine that may be interrupted at the time `end` in each stretch between two waits."""

    work: Awaitable[Any]
    end: float

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.work.__await__()
        go, given = inner.send, None
        while True:
            waits, waits_for = False, None
            try:
                left = self.end - time.monotonic()
                with _interrupted(left if left > 0 else AGAIN):  # over: it has been cancelled, and may tidy up
                    waits_for = go(given)
                    waits = True
            except StopIteration as done:
                if time.monotonic() > self.end:
                    raise Overdue from None
                return done.value
            except Overdue:
                if not waits:  # else it has swallowed the interruption and is still there: `_wait` goes on to cancel it
                    raise
            try:
                go, given = inner.send, (yield waits_for)
            except BaseException as error:  # a cancellation is the work's own business
                go, given = inner.throw, error
