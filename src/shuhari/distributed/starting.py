"""What is being started beside a run that takes long, so that nobody takes it for a slow step: a line when it begins,
and what watches the run (`cli.pulse`) can ask what it is. And how such a process is begun."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

_now: list[str] = []  # what is being started, the last one last
_ended = [float("-inf")]  # when the last one was there (`time.monotonic`)


def open_process(module: str, log: Path, stdin: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """`python -m MODULE LINK`, and our end of the link. What it prints is in `log`; Ctrl-C is ours alone. `stdin` as
    `subprocess` has it."""
    link, there = Pipe()
    command = [sys.executable, "-P", "-m", module, str(there.fileno())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    with there, log.open("wb") as out:
        made = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=subprocess.STDOUT, pass_fds=(there.fileno(),),
                                env=env, start_new_session=True)  # fmt: skip
    return made, link


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
