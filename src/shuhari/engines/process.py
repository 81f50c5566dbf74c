"""A process of another interpreter that answers requests: lines of JSON over its pipes, any number at a time.

One thread reads the replies and another writes the requests, so replies can be awaited in any event loop or without
one, and a process that stops reading blocks nobody. It uses no shell, no pickle and no socket. What the process prints
goes to a file, whose last lines an error shows. The process ends when its pipe does, so it outlives nobody. Left out:
what the requests are.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from shuhari.models.text.child import kill_group

LINES = 6  # of the log in an error
LATE = 5.0  # seconds in which a request that is called off is answered with what there is
LEAVE = 15.0  # seconds in which it may go by itself, and remove what it shares, before it is killed
Reply = Mapping[str, Any]


class DiedError(RuntimeError):
    """The error if the process is gone: the request was not answered, and may be sent to another process."""


class Process:
    """One process of `command` in `folder`, which is removed with it; `log`: the file for what it prints. The request
    `first` is sent first, and must be answered by {"ready": true} within `seconds`. Raises DiedError, with what the
    process printed."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path, first: Reply, seconds: float
    ) -> None:
        self.log, self.heard = log, time.monotonic()
        self._tickets, self._lock = count(), threading.Lock()
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._ready: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with log.open("ab") as printed:
            try:
                self.process = subprocess.Popen(
                    list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, env=dict(env),
                    encoding="ascii", cwd=folder, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise DiedError(f"{command[0]} cannot be started: {error}") from None
        self._shared: set[Path] = set()  # what it maps of the system's shared memory, which outlives a kill
        self._gone, self._out = False, queue.SimpleQueue[str | None]()  # to be written; None: close the pipe
        self._end = weakref.finalize(self, _end, self.process, self._out, folder, self._shared)
        threading.Thread(target=_write, args=(self._out, self.process), daemon=True).start()
        threading.Thread(target=_read, args=(weakref.ref(self), self.process), daemon=True).start()
        self._send(first)
        try:
            reply = self._ready.get(timeout=seconds)
        except queue.Empty:
            reply = {"error": f"not ready within {seconds:g} s"}
        if not reply.get("ready"):
            told = self.last_lines()
            self.close()
            raise DiedError(f"{reply.get('error') or 'it ended before it was ready'}{told}")
        self.about = reply
        self._shared |= _find_shared(self.process.pid)

    # ---------------------------------------------------------------- requests

    @property
    def alive(self) -> bool:
        return self._end.alive and self.process.poll() is None

    def __len__(self) -> int:
        """Return the number of requests without a reply."""
        return len(self._waiting)

    async def ask(self, request: Reply, patience: float, late: Callable[[Reply], None] = lambda _: None) -> Reply:
        """Send a request and await the reply in this event loop. Raises DiedError if the process ends, or sends nothing
        at all for `patience` seconds. If the caller is cancelled, so is the request, and a reply that it still gets
        goes to `late`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()

        def hear(reply: Reply) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_set, future, reply)

        ticket = self._put(request, hear)
        try:
            while not future.done():
                asked = time.monotonic()
                await asyncio.wait({future}, timeout=patience)
                if not future.done() and time.monotonic() - max(self.heard, asked) >= patience:
                    self.close()
                    raise DiedError(f"it said nothing for {patience:g} s, and was ended")
        except asyncio.CancelledError:
            if self.alive:
                self._send({"do": "cancel", "which": [ticket]})
                await asyncio.wait({future}, timeout=LATE)
            if future.done() and "error" not in future.result():
                late(future.result())
            raise
        finally:
            if self._forget(ticket) and self.alive:
                self._send({"do": "cancel", "which": [ticket]})
        return self._check(future.result())

    def call(self, request: Reply, seconds: float) -> Reply:
        """Send a request and block until the reply. If there is none within `seconds`, end the process and raise
        DiedError."""
        answer: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        ticket = self._put(request, answer.put)
        try:
            return self._check(answer.get(timeout=seconds))
        except queue.Empty:
            self.close()
            raise DiedError(f"no answer to {request['do']!r} within {seconds:g} s") from None
        finally:
            self._forget(ticket)

    def last_lines(self) -> str:
        """Return the end of what the process has printed, for an error."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LINES:]
        except OSError:
            lines = []
        return "".join(f"\n  {line[:300]}" for line in ["its last lines:", *lines]) if lines else ""

    def close(self) -> None:
        """End the process and all that it has started, and remove its folder."""
        self._end()

    def _put(self, request: Reply, hear: Callable[[Reply], None]) -> int:
        alive = self.alive
        with self._lock:
            if self._gone or not alive:
                raise DiedError("the process is gone")
            ticket = next(self._tickets)
            self._waiting[ticket] = hear
        self._send({**request, "id": ticket})
        return ticket

    def _forget(self, ticket: int) -> bool:
        with self._lock:
            return self._waiting.pop(ticket, None) is not None

    def _send(self, message: Reply) -> None:
        self._out.put(json.dumps(message) + "\n")

    def hear(self, reply: Reply) -> None:
        """Hand on a reply; called by the reading thread."""
        self.heard = time.monotonic()
        if "id" not in reply:
            self._ready.put(reply)
            return
        with self._lock:
            waiting = self._waiting.pop(reply["id"], None)
        if waiting is not None:
            waiting(reply)

    def hear_end(self) -> None:
        """Fail all waiting requests, as no further reply comes; called by the reading thread."""
        self._ready.put({})
        with self._lock:
            waiting, self._waiting, self._gone = list(self._waiting.values()), {}, True
        for hear in waiting:
            hear({"error": "it has ended", "fatal": True})

    def _check(self, reply: Reply) -> Reply:
        if "error" not in reply:
            return reply
        if reply.get("fatal"):
            told = self.last_lines()
            self.close()
            raise DiedError(f"{reply['error']}{told}")
        raise RuntimeError(str(reply["error"]))


def _write(out: queue.SimpleQueue[str | None], process: subprocess.Popen[str]) -> None:
    """Write requests as fast as the process reads them; None closes the pipe."""
    assert process.stdin is not None
    with suppress(OSError, ValueError), process.stdin:  # the other end is closed: the reader hears of it
        while (line := out.get()) is not None:
            process.stdin.write(line)
            process.stdin.flush()


def _read(owner: Callable[[], Process | None], process: subprocess.Popen[str]) -> None:
    """Hand on the replies; the reader does not keep the process alive."""
    assert process.stdout is not None
    while True:
        try:
            line = process.stdout.readline()
            reply = json.loads(line) if line.endswith("\n") else None
        except ValueError:  # what is no reply; a pipe that was closed
            reply = None
        here = owner()
        if here is None:
            return
        if not isinstance(reply, dict):
            here.hear_end()
            return
        here.hear(reply)
        del here


def _set(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _find_shared(group: int) -> set[Path]:
    """Return the shared-memory files that the processes of a group map; none if the system does not show it."""
    found: set[Path] = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # one that has just ended, or is another user's
            if int((place / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                mapped = re.findall(r"/dev/shm/(?:psm_|sem\.mp-)\w+$", (place / "maps").read_text(), re.MULTILINE)
                found |= {Path(name) for name in mapped}
    return found


def _end(process: subprocess.Popen[str], out: queue.SimpleQueue[str | None], folder: Path, shared: set[Path]) -> None:
    """Close the input, at which the process should end by itself; then kill what is left of it and of what it has
    started."""
    if process.pid == os.getpid():
        return
    out.put(None)
    with suppress(OSError, subprocess.TimeoutExpired):
        process.wait(LEAVE)
    kill_group(process)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    for file in shared:
        file.unlink(missing_ok=True)
