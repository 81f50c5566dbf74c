"""Names slow start-ups (Ray, vLLM), so that nobody takes them for a slow step: a line is logged when one begins, and
the display of a run (`cli.pulse`) can look up what it waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_now: list[str] = []  # what is being started, the last one last
_ended = [float("-inf")]  # when the last one was there (`time.monotonic`)


def begin(what: str, *, told: bool = False) -> None:
    """Note that `what` is starting, and log a line about it, unless it was `told` before."""
    _now.append(what)
    if not told:
        logging.getLogger("shuhari").info("%s", what)


def end(what: str) -> None:
    """Note that the start of `what` is over; does nothing if that was noted before."""
    if what in _now:
        _now.remove(what)
        _ended[0] = time.monotonic()


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Note that `what` is starting while the code inside runs."""
    begin(what)
    try:
        yield
    finally:
        end(what)


def find_start() -> tuple[str, float]:
    """Return what is starting now, "" for nothing; and when the last start was over (`time.monotonic`)."""
    return (_now[-1] if _now else ""), _ended[0]
