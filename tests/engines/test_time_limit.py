"""A limit for calls of functions that hang: how each kind of hanging ends, and what is left as it was."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shuhari.data import ContractError
from shuhari.engines import time_limit
from shuhari.engines.clock import VirtualLoop
from shuhari.engines.time_limit import Overdue, call_within

SHORT = 0.05


def spin() -> None:
    while True:
        pass


def swallow() -> int:
    try:
        time.sleep(30)
    except BaseException:
        return 3  # as a function that takes everything that goes wrong for an answer
    return 4


def use_the_timer() -> None:
    signal.alarm(5)
    signal.alarm(0)
    time.sleep(2 * SHORT)


async def use_it_later() -> None:
    await asyncio.sleep(0)
    use_the_timer()


async def block() -> None:
    await asyncio.sleep(0)
    time.sleep(30)


HANGING: list[Callable[[], Any]] = [
    spin,
    swallow,
    use_the_timer,
    use_it_later,
    block,
    lambda: time.sleep(30),
    lambda: threading.Event().wait(),
    lambda: re.match(r"(a+)+$", "a" * 40 + "b"),
    lambda: asyncio.sleep(30),
]


@pytest.mark.parametrize("call", HANGING)
def test_what_hangs_is_overdue(call: Callable[[], Any]) -> None:
    with pytest.raises(Overdue):
        asyncio.run(call_within(SHORT, call))


def test_what_returns_in_time_is_given() -> None:
    async def answer() -> str:
        await asyncio.sleep(0)
        return "later"

    assert asyncio.run(call_within(30.0, lambda: "now")) == "now"
    assert asyncio.run(call_within(30.0, answer)) == "later"
    assert asyncio.run(call_within(None, answer)) == "later"


def test_errors_are_the_functions_own() -> None:
    def late() -> None:
        raise TimeoutError("the server's")

    async def later() -> None:
        raise TimeoutError("the server's")

    for call in (late, later):
        with pytest.raises(TimeoutError, match="the server's") as caught:
            asyncio.run(call_within(30.0, call))
        assert not isinstance(caught.value, Overdue)


@pytest.fixture
def alarm() -> Iterator[list[int]]:
    """An alarm of somebody else's in 100 s, and what it was called with."""
    called: list[int] = []
    before, left = signal.signal(signal.SIGALRM, lambda n, _: called.append(n)), signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    yield called
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.parametrize("call", [lambda: 1, spin])
def test_the_alarm_of_another_is_put_back(alarm: list[int], call: Callable[[], Any]) -> None:
    mine = signal.getsignal(signal.SIGALRM)
    asyncio.run(asyncio.wait_for(_or_none(call_within(SHORT, call)), None))
    assert signal.getsignal(signal.SIGALRM) is mine and not alarm
    assert 90.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100.0


async def _or_none(work: Any) -> Any:
    try:
        return await work
    except Overdue:
        return None


def test_virtual_time_does_not_jump_to_the_limit() -> None:
    """A wait for the world outside is not over because no timer of the loop comes before the limit."""
    loop = VirtualLoop()

    async def ask() -> str:
        answer = loop.create_future()
        threading.Timer(SHORT, loop.call_soon_threadsafe, (answer.set_result, "from outside")).start()
        return str(await answer)

    assert loop.run_until_complete(call_within(30.0, ask)) == "from outside"
    assert loop.time() == 0.0
    loop.close()


def test_in_another_thread_it_is_given_up_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "_left", [])
    over = threading.Event()
    seen: list[Any] = []

    def ask() -> None:
        for call in (lambda: "fine", *[over.wait] * (time_limit.GIVEN_UP + 1)):
            try:
                seen.append(asyncio.run(call_within(SHORT, call)))
            except Exception as error:
                seen.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    over.set()
    assert seen == ["fine", *[Overdue] * time_limit.GIVEN_UP, ContractError]


DEAF = """
import asyncio, signal, sys, time
from shuhari.engines import time_limit, watchdog

watchdog.TICK, watchdog.GRACE, time_limit.AGAIN = 0.02, 8, 0.02

def swallow():
    while True:
        try:
            time.sleep(30)
        except BaseException:
            pass

def ignore():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(30)

def disarm():
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        pass

async def cancel():
    while True:
        try:
            await asyncio.sleep(30)
        except BaseException:
            pass

def late():  # what no signal reaches (as in C) is late, and ends
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        time.sleep(0.6)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

def debugged():
    frame = sys._getframe()
    frame.f_trace = lambda *_: None  # as a debugger that has stopped here
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(0.6)
    frame.f_trace = None

async def call():
    try:
        await time_limit.call_within(0.03, {name})
    except time_limit.Overdue:
        print("overdue")

asyncio.run(call())
"""


@pytest.mark.parametrize("name", ["swallow", "ignore", "disarm", "cancel", "late", "debugged"])
def test_a_function_that_nothing_interrupts_ends_the_process_in_words(name: str) -> None:
    child = [sys.executable, "-c", DEAF.replace("{name}", name)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=60, check=False)
    if name in ("late", "debugged"):
        assert (done.returncode, done.stdout, done.stderr) == (0, "overdue\n", "")
        return
    assert done.returncode == 1 and "What was stored is whole" in done.stderr, done.stderr
    assert name == "cancel" or f", in {name}. It is over its time limit" in done.stderr
