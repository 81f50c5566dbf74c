"""Runs a command of the terminal in a process of its own, for anything that loads models or a user's code and may be
slow, fail or never end: one at a time, killed with its children on timeout, or if the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shuhari.desk.serving.refusals import Refused
from shuhari.kernel.begin import build_command
from shuhari.kernel.printable import make_printable

SECONDS = 290.0  # time limit of a command: browsers wait 300 for a response
MOST = 64 << 20  # bytes of its output
TOLD = 2000  # characters of an error


class Desk:
    """Runs one command at a time. command: the words before its own, by default shuhari of this Python."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        self.command = tuple(command) or tuple(build_command("shuhari"))
        self._taken, self._since, self._what = threading.Lock(), 0.0, ""

    async def run(self, words: Sequence[str], what: str, seconds: float | None = None) -> dict[str, Any]:
        """Return the object that `shuhari WORDS --json` prints. what: a description of the command for requests that
        come meanwhile. Raises Refused if another command is running, if it fails, with its last words, or if it takes
        longer than `seconds`."""
        if not self._taken.acquire(blocking=False):
            since = time.monotonic() - self._since
            raise Refused(f"{self._what} is being done, since {since:.0f} s: one at a time", status=409, code="busy")
        try:
            self._since, self._what = time.monotonic(), what
            return await _run([*self.command, *words, "--json"], SECONDS if seconds is None else seconds)
        finally:
            self._taken.release()


async def _run(command: Sequence[str], seconds: float) -> dict[str, Any]:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(
        *command, stdin=null, stdout=pipe, stderr=pipe,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None

    def kill() -> None:
        """Kill the process with its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    try:
        async with asyncio.timeout(seconds):
            said, wrong = await asyncio.gather(_read(child.stdout, MOST, kill), _read_end(child.stderr))
            code = await child.wait()
    except TimeoutError:
        raise Refused(f"it took longer than {seconds:.0f} s and was ended: ask of fewer steps, or in the terminal",
                      status=504) from None  # fmt: skip
    finally:
        kill()
        with suppress(TimeoutError):  # if a process that it started has left its group, and holds the pipe
            await asyncio.wait_for(asyncio.gather(_drain(child.stdout), _drain(child.stderr), child.wait()), 2)
    if len(said) > MOST:
        raise Refused(f"it printed more than {MOST >> 20} MB and was ended: ask of fewer steps", status=422)
    if code:
        raise Refused(_read_failure(code, wrong), status=422)
    return await asyncio.to_thread(_read_json, said)  # takes seconds if it is long


async def _read(stream: asyncio.StreamReader, most: int, end: Callable[[], None]) -> bytes:
    """Read the whole stream; beyond `most` bytes call `end`, and return only the start."""
    out = bytearray()
    while piece := await stream.read(1 << 16):
        if len(out) <= most:
            out += piece
        if len(out) > most:
            end()
    return bytes(out)


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


async def _read_end(stream: asyncio.StreamReader) -> str:
    """Return the end of a stream, made printable."""
    out = b""
    while piece := await stream.read(1 << 16):
        out = (out + piece)[-8 * TOLD :]
    return make_printable(out.decode("utf-8", "replace")).strip()


def _read_failure(code: int, wrong: str) -> str:
    """Return the error message in a failed command's output; otherwise its last lines."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else str(-code)
        why = ": the machine may lack memory" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{why}\n{wrong[-TOLD:]}".strip()
    at = wrong.rfind("\nerror: ") + 1 or (0 if wrong.startswith("error: ") else len(wrong))
    lines = [line for line in wrong[at:].splitlines() if not line.startswith("(--debug ")]
    text = "\n".join(lines).removeprefix("error: ") or "\n".join(wrong.splitlines()[-5:])
    text = text or f"its process ended with code {code} and said nothing"
    return text if len(text) <= TOLD else f"{text[:TOLD]}…"


def _read_json(said: bytes) -> dict[str, Any]:
    """Parse the object that is printed last: a user's code may have printed before."""
    text = said.decode("utf-8", "replace")
    try:
        found, _ = json.JSONDecoder().raw_decode(text, text.rfind("\n{\n") + 1)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Refused("its process ended and gave no answer", status=422)
    return found
