"""Ends a process whose main thread hangs in a function that lets nothing interrupt it.

A function may catch every interruption as an error of its own (`except:`), or switch off the timer that interrupts it.
Nothing within Python can then get control back, and the run would hang for ever. So a thread watches, and after GRACE
ends the process with a message. What a run has stored is complete at any moment, so the same command resumes it. The
watchdog ends nothing else: no call of C that checks no signal (it is late, and ends), and nothing that a debugger
holds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

TICK = 1.0  # seconds between two looks; where the whole process was stopped meanwhile, that counts as one
GRACE = 60  # looks at which a call that is over its limit was found to be deaf, after which the process ends
STATUS = 1  # of the process


@dataclass(eq=False)
class Call:
    """A call in the main thread. end: its deadline (`time.monotonic`); handler: what its alarm calls; fired: how often
    the alarm has fired."""

    end: float
    handler: Any = None
    fired: int = 0

    def is_deaf(self) -> bool:
        """Whether the call goes on after an interruption, or cannot be interrupted."""
        off = signal.getsignal(signal.SIGALRM) is not self.handler or not any(signal.getitimer(signal.ITIMER_REAL))
        return self.fired > 1 or off


_calls: list[Call] = []  # the innermost last
_thread: threading.Thread | None = None


def begin(call: Call) -> None:
    """Watch this call from now on, until `end` is called with it."""
    global _thread
    _calls.append(call)
    if _thread is None or not _thread.is_alive():  # never begun, or left behind by a fork
        _thread = threading.Thread(target=_look_on, daemon=True, name="watchdog")
        _thread.start()


def end(call: Call) -> None:
    """Stop watching a call that has returned."""
    _calls[:] = [c for c in _calls if c is not call]


def _look_on() -> None:
    known, deaf = None, 0
    while True:
        time.sleep(TICK)
        call = _calls[-1] if _calls else None
        if call is not known:
            known, deaf = call, 0
        if call is not None and time.monotonic() > call.end and call.is_deaf() and not _is_debugged():
            deaf += 1
            if deaf > GRACE and call in _calls:
                end_process()


def end_process(where: str = "") -> None:
    """End the process with a message naming where it hangs: by default the main thread's current line."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None and not where:
        where = f"at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
    message = (
        f"\nerror: the run has ended itself: a function of yours hangs {where}. It is over its time limit, and "
        "swallows what interrupts it (a bare `except`), or has switched its timer off (signal.alarm). What was stored "
        "is whole: mend the function, and the same command goes on\n"
    )
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(STATUS)


def _is_debugged() -> bool:
    """Whether a debugger may be stepping through the main thread."""
    if sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID):
        return True
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_trace is not None:
            return True
        frame = frame.f_back
    return False
