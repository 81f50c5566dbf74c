"""Lanes of environments in worker processes: the parent's side (the other one is `worker.py`).

The dataflow of SRL: a worker holds a ring of slots of lanes, and steps some while the policy decides for others. All
data go through nameless shared memory, so that nothing is left behind however the run ends. Left out: streams over
sockets, policies in processes of their own, replacing a worker that dies (nobody else has its lanes: the run ends with
the cause, and can be resumed from its last checkpoint). Needs POSIX.

Axes: `N` lanes, `W` workers.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import pairwise
from multiprocessing.connection import Pipe
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from shuhari.data import Array, Payload
from shuhari.kernel.begin import build_command, send_places
from shuhari.kernel.registry import USERS, locate
from shuhari.ports.hooks import ability
from shuhari.rollouts.vector import worker
from shuhari.rollouts.vector.lanes import PATIENCE, Extras, Seen, find_extras, split_space, view_rows, write
from shuhari.store import codec
from shuhari.tasks.views import storage_dtype

LEAVE = 5.0  # seconds for workers to end by themselves
# facts that a task has found out about its environments, so that workers need not find them again
KNOWN: tuple[Literal["copies", "simulates"], ...] = ("copies", "simulates")
ONE_THREAD = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


class WorkerError(RuntimeError):
    """An environment raised in a worker, or the worker died; the message names lanes, environment and cause."""


class Workers:
    """An actor whose lanes are spread over processes. Every worker has a share (neighbours) of the lanes of each of the
    `ring` slots (neighbours too), so that all of them work on a posted slot.

    `task` is made anew in each worker from its class and settings; raises TypeError if a worker could not import the
    class or receive the settings. Any call raises WorkerError for a failure in a worker; afterwards no worker is left.
    """

    def __init__(self, task: Any, lanes: int, workers: int, ring: int, seconds: float = PATIENCE) -> None:
        self.name = ability(task, "path") or type(task).__name__
        seen, action = task.spaces()
        setup = {**_describe(task), "seconds": seconds, "plain": isinstance(action, spaces.Discrete)}
        size = lanes // ring
        layout = [(k, np.dtype(storage_dtype(s)).str, (lanes, *(s.shape or ()))) for k, s in _named(seen).items()]
        layout += [("action", np.dtype(action.dtype).str, (lanes, *(action.shape or ())))]
        layout += [("reward", "<f8", (lanes,)), ("end", "|u1", (lanes,)), ("fresh", "|u1", (lanes,))]
        layout += [(f"extra/{n}", x.dtype.str, (lanes, *x.shape)) for n, x in find_extras(task).items()]
        bytes_ = worker.lay_out(layout)[1]
        memory = _memory(bytes_)
        self._bounds = [size * w // workers for w in range(workers + 1)]  # of each worker's share, within a slot
        self.workers: list[_Process] = []
        self._end = weakref.finalize(self, _end, self.workers)
        self._posted: dict[int, Any] = {}
        try:
            found = worker.map_arrays(mmap.mmap(memory, bytes_), layout)
            self._seen, self._extras = worker.find_observations(found), worker.find_extra_arrays(found)
            self._action, self._reward, self._over, self._fresh = (
                found[k] for k in ("action", "reward", "end", "fresh")
            )
            for number, (first, stop) in enumerate(pairwise(self._bounds)):
                mine = [
                    s + i
                    for s in range(0, lanes, size)
                    for i in range(first, stop)
                ]
                self.workers.append(_Process(number, mine, memory))
            for w in self.workers:
                self._ask(w, b"", codec.dumps({**setup, "layout": layout, "lanes": w.lanes}))
            for w in self.workers:
                self._answer(w)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)

    @property
    def astray(self) -> bool:
        return bool(self._posted) or not self.workers

    def start(self, seeds: Sequence[int], seen: Seen) -> None:
        text = codec.dumps(list(seeds))
        for w in self.workers:
            self._ask(w, worker.START, text)
        for w in self.workers:
            self._answer(w)
        write(seen, slice(None), self._seen)

    def post(self, lanes: slice, taken: Any, fresh: Mapping[int, Payload]) -> None:
        self._fresh[lanes] = 0
        self._fresh[list(fresh)] = 1
        self._posted[lanes.start] = lanes if taken is not None else list(fresh)
        if taken is not None:
            self._action[lanes] = taken
        kind = worker.RESET if taken is None else worker.STEP
        for w, (first, stop) in zip(self.workers, pairwise(self._bounds), strict=True):
            here = range(lanes.start + first, lanes.start + stop)
            starts = [(i, s) for i, s in fresh.items() if i in here and s is not None]
            text = struct.pack(worker.SLICE, here.start, here.stop) + (codec.dumps(starts) if starts else b"")
            self._ask(w, kind, text)

    def poll(self, lanes: slice, seen: Seen, reward: Array, extras: Extras) -> list[tuple[int, int]]:
        moved = self._posted[lanes.start]
        for w in self.workers:
            self._answer(w)
        del self._posted[lanes.start]
        write(seen, moved, view_rows(self._seen, moved))
        reward[lanes] = self._reward[lanes]
        stepped = lanes.start + np.flatnonzero(self._fresh[lanes] == 0) if extras else None
        for name, to in extras.items():
            to[stepped] = self._extras[name][stepped]
        over = self._over[lanes]
        return [(lanes.start + i, int(over[i])) for i in np.flatnonzero(over).tolist()] if over.any() else []

    def snapshots(self) -> list[Any]:
        for w in self.workers:
            self._ask(w, worker.SAVE)
        found = {
            i: s
            for w in self.workers
            for i, s in zip(w.lanes, codec.loads(self._answer(w)), strict=True)
        }
        return [found[i] for i in range(len(found))]

    def restore(self, saved: Sequence[Any]) -> None:
        for w in self.workers:
            self._ask(w, worker.LOAD, codec.dumps([saved[i] for i in w.lanes]))
        for w in self.workers:
            self._answer(w)

    def close(self) -> None:
        """Ends the workers: by request, and after a few seconds by a signal."""
        self._posted.clear()
        self._end()

    # ---------------------------------------------------------------- what may go wrong

    def _ask(self, w: _Process, kind: bytes, rest: bytes = b"") -> None:
        w.asked.append((kind, rest))
        with suppress(BrokenPipeError, ConnectionResetError):  # reported when the reply is missing
            w.link.send_bytes(kind + rest)

    def _answer(self, w: _Process) -> bytes:
        try:
            answer = w.link.recv_bytes()
        except (EOFError, OSError):
            answer = b""
        if answer[:1] == worker.DONE:
            w.asked.popleft()
            return answer[1:]
        message = self._describe_end(w, answer[1:].decode())
        self.close()
        raise WorkerError(message)

    def _describe_end(self, w: _Process, text: str) -> str:
        kind, rest = w.asked[0]
        doing = {b"": "starting", worker.START: "resetting its lanes", worker.SAVE: "saving them"}
        doing |= {worker.LOAD: "restoring them"}
        if kind in (worker.STEP, worker.RESET):
            first, stop = struct.unpack(worker.SLICE, rest[:16])
            what = f"{'stepping' if kind == worker.STEP else 'resetting'} lane"
            doing[kind] = f"{what} {first}" if stop == first + 1 else f"{what}s {first} to {stop - 1}"
        who = f"worker {w.number} of {len(self.workers)} (lanes {', '.join(map(str, w.lanes))} of {self.name})"
        hint = ""
        if kind == b"":
            hint = " A worker makes the task anew: what a script has defined or registered is not known there; put it "
            hint += "in a module (gym/module:id), or set workers = 0."
        if text:
            last = text.strip().splitlines()
            return f"{who} failed while {doing[kind]}: {last[-1]}.{hint} Its traceback:\n{text}"
        with suppress(subprocess.TimeoutExpired):
            w.process.wait(LEAVE)
        return f"{who} died while {doing[kind]}, with {_code(w.process.returncode)} and no traceback.{hint}"


class _Process:
    """A worker and the link to it; `asked`: the messages that it has not answered yet."""

    def __init__(self, number: int, lanes: list[int], memory: int) -> None:
        self.number, self.lanes = number, lanes
        self.asked: deque[tuple[bytes, bytes]] = deque()
        self.link, there = Pipe()
        env = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONWARNINGS": "ignore"}
        try:
            self.process = subprocess.Popen(
                build_command(worker.__name__, str(memory), link=there.fileno()),
                stdin=subprocess.PIPE,  # never written to: its end tells the worker that the parent has ended
                pass_fds=(there.fileno(), memory),
                env=env,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        finally:
            there.close()
        send_places(self.link)


def _end(workers: list[_Process]) -> None:
    """Requests all workers to end, waits, and kills those left."""
    try:
        for w in workers:
            with suppress(OSError):
                w.link.send_bytes(worker.QUIT)
        until = time.monotonic() + LEAVE
        for w in workers:
            with suppress(subprocess.TimeoutExpired):
                w.process.wait(max(0.0, until - time.monotonic()))
    finally:
        for w in workers:
            w.process.kill()
            w.process.wait()
            w.link.close()
            if w.process.stdin is not None:
                w.process.stdin.close()
        workers.clear()


def _memory(size: int) -> int:
    """Returns the descriptor of a nameless file in memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shuhari")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _named(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    of = split_space(space)
    return {f"seen/{k}": s for k, s in of.items()} if isinstance(of, dict) else {"seen": of}


def _describe(task: Any) -> dict[str, Any]:
    """Returns a task's class path, its settings, and the cached facts about its environments."""
    cls = type(task)
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None) if cls.__module__.startswith(USERS) else None
    name = f"{os.path.abspath(file)}:{cls.__qualname__}" if file else f"{cls.__module__}.{cls.__qualname__}"
    setup = {"task": name, "fields": {}, "known": {k: v for k in KNOWN if (v := ability(task, k)) is not None}}
    try:
        if not is_dataclass(task) or cls.__module__ == "__main__" or not (file or locate("task", name) is cls):
            raise LookupError("its class is no dataclass of a module")
        setup["fields"] = {f.name: getattr(task, f.name) for f in fields(task) if f.init}
        codec.dumps(setup)
    except (LookupError, TypeError) as error:
        raise TypeError(f"the task {name} cannot be made in a worker: {error}; set workers = 0") from None
    return setup


def _code(code: int | None) -> str:
    if code is None:
        return "its link broken"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
