"""Child processes on this machine: starting one, reading the end of its log, and killing it with all that it has
started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from shuhari.kernel.begin import build_command, send_places


def open_process(module: str, log: Path, stdin: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that runs a module of ours, and return it with our end of its link; the module's first argument
    is the number of the link. Its output goes to `log`; Ctrl-C reaches only this process. `stdin` is as in
    `subprocess`."""
    link, there = Pipe()
    with there, log.open("wb") as out:
        made = subprocess.Popen(
            build_command(module, link=there.fileno()), stdin=stdin, stdout=out, stderr=subprocess.STDOUT,
            pass_fds=(there.fileno(),), start_new_session=True,
        )  # fmt: skip
    send_places(link)
    return made, link


def read_end(file: Path, lines: int) -> str:
    """Return the last lines of a file, from its last 64 KiB; "" if it cannot be read."""
    try:
        with file.open("rb") as f:
            before = max(0, file.stat().st_size - 65536)
            f.seek(before)
            found = f.read().decode(errors="replace").splitlines()
            return "\n".join((found[1:] if before else found)[-lines:])  # the first one may have lost its beginning
    except OSError:
        return ""


def kill_session(process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
    """Kill a process of `open_process` and what is left of its session, since its children may not notice its end. The
    session is left alone if the end was noted before (`poll`, `wait`), as its number may have been reused, and if there
    is no /proc."""
    if process.returncode is not None:
        return
    os.kill(process.pid, signal.SIGKILL)  # `process.kill` would note an end
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and its number still its own
    until = time.monotonic() + seconds
    while (pids := _list_session(process.pid)) and time.monotonic() < until:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # one of them may have begun another one
    process.wait()


def _list_session(number: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, session, *_ = place.read_text().rpartition(") ")[2].split()
            if int(session) == number and state != "Z":
                found.append(int(place.parent.name))
    return found


def wait_for_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until the process has ended or so many seconds are over, without noting its end."""
    until = time.monotonic() + seconds
    with suppress(ChildProcessError):
        while time.monotonic() < until and process.returncode is None:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return
            time.sleep(0.02)
