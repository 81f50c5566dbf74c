"""A sign of life: while no step ends for a minute, a line says so, and in which file of the user's own time passes.
What is started beside a run (`distributed.starting`) is no part of a step."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from shuhari.desk.cli.text import find_own_file, note
from shuhari.distributed.starting import find_start

PATIENCE = 60.0  # seconds without a step before the first line; each further one waits twice as long


class Pulse:
    """Watches the thread that made it, from another one; `beat` at every step. A context manager."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience, self.watched, self.step = patience, threading.get_ident(), 0
        self._beat, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="pulse")

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._beat.set()
        self._thread.join()

    def beat(self, step: int) -> None:
        """A step has ended."""
        self.step = step
        self._beat.set()

    def _watch(self) -> None:
        began, wait = time.monotonic(), self.patience
        while True:
            beaten = self._beat.wait(wait)
            self._beat.clear()
            if self._over.is_set():
                return
            now = time.monotonic()
            what, ended = find_start()
            if beaten:
                began, wait = now, self.patience
                continue
            if ended > began and not what:
                began, wait = ended, ended + self.patience - now
                if wait > 0:
                    continue
            waited = wait = now - began
            where = find_own(sys._current_frames().get(self.watched))
            doing = what or f"step {self.step + 1}"
            note(f"{doing} has taken {waited:.0f} s so far{where and f', now in {where}'}")


def find_own(frame: FrameType | None) -> str:
    """`function, file.py:12` of the innermost frame that is of a file of the user's own; "" of none."""
    while frame is not None:
        if own := find_own_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_name}, {own}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
