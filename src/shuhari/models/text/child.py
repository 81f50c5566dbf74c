"""A process of its own for work on hostile text: it reads a line of JSON and replies with one.

The child is a file run on its own (`python -I`, no environment, no path of ours), which sets its own limits on memory
and processor time; the parent keeps the clock. No shell, no pickle. Left out: what the child does, and several requests
to one child at a time: `Pool` has several children instead.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START = 120.0  # seconds for a child to import its modules


class ChildError(RuntimeError):
    """A child that did not start: its error, or that there was none."""


class Child:
    """One process that runs `file` with `arguments`, started by the first request and again if it has ended.

    Its first line is {"ready": true} or {"error": text}. It ends when this object is deleted, or this process ends.
    """

    def __init__(self, file: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-I", str(file), *arguments]
        self.process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._end: Any = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Returns the reply, without its ticket; {} if there was none within `seconds`, or none to this request: the
        child is then gone. Raises ChildError if it does not start."""
        process = self._start()
        ticket = secrets.token_hex(8)  # a reply forged by hostile text would have to guess it
        reply = _exchange(process, json.dumps({"id": ticket, **request}), seconds)
        if reply.get("id") != ticket:
            self.close()
            return {}
        return {k: v for k, v in reply.items() if k != "id"}

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._end is not None:
            self._end()
        self.process = self._end = None

    def _start(self) -> subprocess.Popen[str]:
        if self.process is not None and self._owner == os.getpid():  # a fork of this process starts its own
            return self.process
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env={},
            encoding="ascii",
            start_new_session=True,  # so that its forks end with it; Ctrl-C does not reach it either
        )
        self._owner, self._end = os.getpid(), weakref.finalize(self, _end, self.process)
        ready = _exchange(self.process, None, START)
        if not ready.get("ready"):
            self.close()
            raise ChildError(str(ready.get("error") or f"no sign of life within {START:g} s"))
        return self.process


class Pool:
    """Up to `n` children of one kind, each started if all others are busy; `close` ends them."""

    def __init__(self, n: int, file: Path, *arguments: str) -> None:
        self._file, self._arguments = file, arguments
        self.children: list[Child] = []
        self._idle: list[Child] = []
        self._lock, self._places = threading.Lock(), threading.Semaphore(n)

    @contextmanager
    def child(self) -> Iterator[Child]:
        """Yields a child that nothing else uses meanwhile."""
        with self._places:
            with self._lock:
                child = self._idle.pop() if self._idle else Child(self._file, *self._arguments)
                if child not in self.children:
                    self.children.append(child)
            try:
                yield child
            finally:
                with self._lock:
                    self._idle.append(child)

    def close(self) -> None:
        with self._lock:
            for child in self.children:
                child.close()


def _exchange(process: subprocess.Popen[str], line: str | None, seconds: float) -> Mapping[str, Any]:
    """Sends a line and reads one; {} if the process died, or was killed on timeout."""
    assert process.stdin is not None and process.stdout is not None
    clock = threading.Timer(seconds, kill_group, (process,))
    clock.start()
    try:
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        message = process.stdout.readline()
        reply = json.loads(message) if message.endswith("\n") else {}
        return reply if isinstance(reply, Mapping) else {}
    except (OSError, ValueError):  # a closed pipe, or a line that is no reply
        return {}
    finally:
        clock.cancel()


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kills a process that has not been waited for, and all its forks."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # no such call here; or the process is gone
        process.kill()


def _end(process: subprocess.Popen[str]) -> None:
    kill_group(process)
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # unsent data is dropped
            pass
    process.wait()
