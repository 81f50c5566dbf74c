"""Ray in a process of its own (`rays_process`), and a `Yard` of what lives there. If Ray's core ends its process, as it
may when a raylet dies, the run is not in it and goes on, with a restarted Ray.

A Ray of the run's own is restarted at most AGAIN times; a joined cluster is never restarted from here. The two
processes talk over a pipe, in messages of our own codec, each followed by the bytes that it announces. Left out: the
calls to Ray itself (`rays`).
"""

from __future__ import annotations

import logging
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.distributed import ray_world, rays, rays_process
from shuhari.distributed.children import kill_session, open_process, read_end, wait_for_end
from shuhari.distributed.crew import START
from shuhari.distributed.hands import LOG
from shuhari.distributed.messages import LostWorkerError, pack, read_error, unpack
from shuhari.distributed.starting import starting

AGAIN = 3  # times that a Ray of the run's own is begun again
PATIENT = 2  # times that one which was late with its start is tried once more
LEAVE = 10.0  # seconds in which it may end in peace
TELL = 5.0  # seconds to read a log
NAMES = count()  # of what is kept there: no two alike, whichever process has it


def open_yard(workers: int, address: str = "") -> rays.Rays | RaysApart:
    """Return the source of a run's workers: the Ray of this process, or one in a process of its own."""
    if "ray" in sys.modules and ray_world.import_ray().is_initialized():
        return rays.Rays(workers, address)
    return RaysApart(workers, address)


class RaysApart:
    """A `Yard` in a process of its own. Raises RecipeError if no Ray can be started or joined."""

    def __init__(self, workers: int, address: str = "") -> None:
        self.workers, self.address, self.begun = workers, address, 0
        self.side = self._begin()

    def _begin(self) -> Side:
        what = f"joining Ray at {self.address}" if self.address else "starting Ray"
        with starting(f"{what} with {self.workers} worker{'s' * (self.workers > 1)}"):
            self.begun += 1
            for _ in range(PATIENT):
                try:
                    return Side(self.workers, self.address)
                except RecipeError as error:  # Ray waits 30 s for itself, which a busy machine may need
                    if self.address or "timed out" not in str(error):
                        raise
                    LOG.warning("Ray has not started, and is tried once more: %s", error)
            return Side(self.workers, self.address)

    def hire(self, index: int) -> ApartHand:
        return ApartHand(self.side, index)

    def put(self, data: bytes) -> Put:
        return Put(self.side, data)

    def explain_loss(self) -> str:
        """Return why Ray is gone; "" if it is not."""
        return self.side.loss

    def restart(self) -> None:
        """Restart a Ray of the run's own; what it held is gone. Raises LostWorkerError if it cannot be restarted."""
        self.side.close()
        if self.address:
            raise LostWorkerError(f"the cluster at {self.address} was joined, and is not begun anew from here")
        if self.begun > AGAIN:
            raise LostWorkerError(f"that was the Ray number {self.begun} of this run")
        try:
            self.side = self._begin()
        except RecipeError as error:
            raise LostWorkerError(f"it cannot be begun again ({error})") from error

    def close(self) -> None:
        """End the Ray that was started, or leave the cluster that was joined."""
        self.side.close()


class Put:
    """Bytes in the object store, for as long as this is kept."""

    def __init__(self, side: Side, data: bytes) -> None:
        self.name = next(NAMES)
        side.send({"do": "put", "name": self.name}, data)
        weakref.finalize(self, side.send, {"do": "free", "name": self.name}).atexit = False


class ApartHand:
    """The actor of worker `index`."""

    def __init__(self, side: Side, index: int) -> None:
        self.side, self.index, self.pid, self.name = side, index, 0, next(NAMES)
        side.send({"do": "hire", "name": self.name, "index": index})

    def send(self, method: str, message: bytes, blobs: Sequence[Any] = ()) -> Future[bytes]:
        """See `rays.RayHand.send`."""
        ask = {"do": "send", "name": self.name, "method": method, "blobs": [b.name for b in blobs]}
        out = self.side.call(ask, message, who=f"worker {self.index}")
        if method == "begin":
            out.add_done_callback(self._know)
        return out

    def _know(self, begun: Future[bytes]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            self.pid = unpack(begun.result()).get("pid", 0)

    def tell(self) -> str:
        """Return the last lines that its process wrote, if its log is on this machine."""
        with suppress(LostWorkerError, TimeoutError):
            return self.side.call({"do": "tell", "name": self.name}).result(TELL).decode(errors="replace")
        return ""

    def close(self) -> None:
        """End the actor."""
        self.side.send({"do": "close", "name": self.name})


class Side:
    """The process that holds Ray. `loss`: why it is gone, "" if it is not."""

    def __init__(self, workers: int, address: str) -> None:
        self.loss = ""
        self._calls: dict[int, tuple[Future[bytes], str]] = {}
        self._lock, self._tickets = threading.Lock(), count()
        self._ready: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[tuple[bytes, ...]] = queue.SimpleQueue()  # nothing: hang up
        place = "/tmp" if Path("/tmp").is_dir() else None  # names of sockets are short
        folder = tempfile.mkdtemp(prefix="shuhari-ray-", dir=place)  # of this user alone
        self._log = Path(folder) / "log"
        self.process, link = open_process(rays_process.__name__, self._log, subprocess.DEVNULL)
        self._end = weakref.finalize(self, _end, self.process, self._out, folder)
        try:
            threading.Thread(target=_write, args=(self._out, link), daemon=True, name="ray-writes").start()
            threading.Thread(target=_read, args=(weakref.ref(self), link), daemon=True, name="ray-reads").start()
            self.send({"workers": workers, "address": address, "folder": folder})
            ready = self._wait()
        except BaseException:  # such as Ctrl-C: nothing of it is left
            kill_session(self.process)
            self.close()
            raise
        if error := ready.get("error"):
            self.close()
            where = error["where"] or "distributed.workers"
            raise RecipeError(where, error["text"].removeprefix(f"{where}: "))

    def _wait(self) -> Mapping[str, Any]:
        try:
            return self._ready.get(timeout=START)
        except queue.Empty:
            text = f"Ray has not begun within {START:g} s{self._show()}"
            return {"error": {"where": "", "text": text}}

    def send(self, ask: Mapping[str, Any], *data: bytes) -> None:
        """Send a request without an answer; it is lost if the process is."""
        self._out.put((pack({**ask, "data": len(data)}), *data))

    def call(self, ask: Mapping[str, Any], *data: bytes, who: str = "Ray") -> Future[bytes]:
        """Send a request and return the future of its answer: LostWorkerError if the process or worker is gone, or what
        it raised."""
        out: Future[bytes] = Future()
        ticket = next(self._tickets)
        with self._lock:
            self._calls[ticket] = out, who
        self.send({**ask, "ticket": ticket}, *data)
        if self.loss:  # it may have come before the call was noted
            self.lose(self.loss)
        return out

    def close(self) -> None:
        """End the process and all that lives in it, after some seconds in which it may end by itself."""
        self.lose("it was ended")
        self._end()

    # ---------------------------------------------------------------- of the thread that reads

    def hear(self, told: Mapping[str, Any], data: bytes) -> None:
        if "ready" in told or "error" in told:
            self._ready.put(told)
        elif "log" in told:
            logging.getLogger("shuhari").log(told["log"], "%s", told["text"])
        elif "gone" in told:
            self.lose(told["gone"])
        elif (found := self._take(told["ticket"])) is not None:
            out, who = found
            if "lost" in told:
                _settle(out, LostWorkerError(told["lost"]))
            elif "raised" in told:
                _settle(out, read_error({**told["raised"], "notes": ()}, who))
            else:
                _settle(out, data)

    def hear_end(self) -> None:
        wait_for_end(self.process, LEAVE)
        kill_session(self.process)
        code = self.process.returncode
        how = "" if not code else f" with {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
        why = f"Ray's process has ended{how}{self._show()}"
        self._ready.put({"error": {"where": "", "text": why}})
        self.lose(why)

    def lose(self, why: str) -> None:
        """Fail all open calls, as nobody answers any more; the first cause counts."""
        with self._lock:
            self.loss = self.loss or why
            calls, self._calls = self._calls, {}
        for out, _ in calls.values():
            _settle(out, LostWorkerError(self.loss))

    def _take(self, ticket: int) -> tuple[Future[bytes], str] | None:
        with self._lock:
            return self._calls.pop(ticket, None)

    def _show(self) -> str:
        lines = read_end(self._log, rays.LINES)
        return f"; its last lines:\n{lines}" if lines else ""


def _settle(out: Future[bytes], answer: bytes | Exception) -> None:
    with suppress(InvalidStateError):  # nobody waits any more
        if isinstance(answer, Exception):
            out.set_exception(answer)
        else:
            out.set_result(answer)


def _write(out: queue.SimpleQueue[tuple[bytes, ...]], link: Connection) -> None:
    """Write requests as fast as they are read; an empty tuple closes the link."""
    while parts := out.get():
        with suppress(OSError):  # the other end is gone: who reads hears of it
            for part in parts:
                link.send_bytes(part)
    with suppress(OSError):
        link.send_bytes(b"")


def _read(owner: Any, link: Connection) -> None:
    """Hand on the answers; the reader does not keep the owner alive."""
    while True:
        try:
            told = unpack(link.recv_bytes())
            data = link.recv_bytes() if told.get("data") else b""
        except (EOFError, OSError, ValueError):
            told, data = None, b""
        if (here := owner()) is None:
            return
        if told is None:
            here.hear_end()
            return
        here.hear(told, data)
        del here


def _end(process: subprocess.Popen[bytes], out: queue.SimpleQueue[tuple[bytes, ...]], folder: str) -> None:
    """Close the link, wait, and kill the process with what Ray has started there, if it does not end."""
    out.put(())
    try:
        wait_for_end(process, LEAVE)
    finally:
        kill_session(process)
        shutil.rmtree(folder, ignore_errors=True)
