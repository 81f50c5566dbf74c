"""A sign of life: if no step ends for a minute, a line shows it: what is being done, which line of the user's own code
is running, and whether the machine is too busy for it.

Slow start-ups beside a run (`distributed.starting`) do not count as a step."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

from shuhari.desk.cli.text import find_own_file, note
from shuhari.distributed.starting import find_start

PATIENCE = 60.0  # seconds without a step before the first line; each further one waits twice as long
DOING = {  # (module of shuhari, function) -> what it does; the outermost that runs is told
    ("loop.rehearsal", "rehearse"): "trying each stage on a few problems",
    ("loop.evaluation", "evaluate"): "evaluating on held-out problems",
    ("loop.run", "collect"): "sampling and grading",
    ("learners.gradient", "update"): "training",
    ("models.text.pretrained", "load"): "loading a model",
}  # by name: these modules load torch
STARVED = 0.5  # cores: with less, on a machine with more to do than it has cores, a line says so


class Pulse:
    """Watches the thread that made it, from another one; call `beat` at every step. A context manager."""

    def __init__(self, patience: float = PATIENCE, what: str = "") -> None:
        self.what = what  # what has no steps, such as "the evaluation"
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
        """Record that a step has ended."""
        self.step = step
        self._beat.set()

    def _watch(self) -> None:
        began, wait, used = time.monotonic(), self.patience, time.process_time()
        while True:
            beaten = self._beat.wait(wait)
            self._beat.clear()
            if self._over.is_set():
                return
            now = time.monotonic()
            what, ended = find_start()
            if beaten:
                began, wait, used = now, self.patience, time.process_time()
                continue
            if ended > began and not what:
                began, wait = ended, ended + self.patience - now
                if wait > 0:
                    continue
            waited = wait = now - began
            frame = sys._current_frames().get(self.watched)
            parts = [find_doing(frame), find_own(frame) and f"in {find_own(frame)}"]
            now_in = ", ".join(part for part in parts if part)
            doing = what or self.what or f"step {self.step + 1}"
            busy = describe_load((time.process_time() - used) / waited if waited else 1.0)
            note(f"{doing} has taken {waited:.0f} s so far{now_in and f', now {now_in}'}{busy and f'; {busy}'}")


def find_doing(frame: FrameType | None) -> str:
    """Return what the library is doing, by the outermost frame that `DOING` names; "" if none is."""
    found = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "")).removeprefix("shuhari.")
        found = DOING.get((module, frame.f_code.co_name), found)
        frame = frame.f_back
    return found


def describe_load(share: float) -> str:
    """Return a hint if this process gets `share` cores, fewer than `STARVED`, and more threads want to run than there
    are cores; "" otherwise, and if the system does not report it."""
    cores = os.cpu_count() or 1
    try:
        wanted = os.getloadavg()[0]
    except (AttributeError, OSError):
        return ""
    if share >= STARVED or wanted <= cores + 1:
        return ""
    return f"this process gets {share:.2f} of {cores} cores, and the machine has a load of {wanted:.1f}"


def find_own(frame: FrameType | None) -> str:
    """Return `function, file.py:12` of the innermost frame in a user's own file; "" if there is none."""
    while frame is not None:
        if own := find_own_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_name}, {own}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
