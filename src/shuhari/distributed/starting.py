"""What is being started beside a run that takes long, so that nobody takes it for a slow step: a line when it begins,
and what watches the run (`cli.pulse`) can ask what it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_now: list[str] = []  # what is being started, the last one last
_ended = [float("-inf")]  # when the last one was there (`time.monotonic`)


def begin(what: str, *, told: bool = False) -> None:
    """From now on `what` is being started; a line of the run's log says so, but where it was `told` before."""
    _now.append(what)
    if not told:
        logging.getLogger("shuhari").info("%s", what)


def end(what: str) -> None:
    """It is there, or will not be; nothing where that was said before."""
    if what in _now:
        _now.remove(what)
        _ended[0] = time.monotonic()


@contextmanager
def starting(what: str) -> Iterator[None]:
    """While inside, `what` is being started."""
    begin(what)
    try:
        yield
    finally:
        end(what)


def find_start() -> tuple[str, float]:
    """What is being started now, "" for nothing; and when the last start was over (`time.monotonic`)."""
    return (_now[-1] if _now else ""), _ended[0]
