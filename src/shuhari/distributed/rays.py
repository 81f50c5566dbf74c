"""Workers as actors of Ray, in the world that `ray_world` opens.

Ray only moves bytes; messages are of our own codec (`messages`). Left out: Ray's own restarts, placement and
autoscaling.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.distributed.children import read_end
from shuhari.distributed.hands import MOST
from shuhari.distributed.messages import LostWorkerError, unpack
from shuhari.distributed.ray_world import World, import_ray
from shuhari.distributed.work import Work

LINES = 12  # of a log that are shown
MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes for itself
DETAIL = "Worker exit detail: "


class Actor:
    """`Work` in an actor's process. Weights come through the object store."""

    def __init__(self) -> None:
        self.work = Work()

    async def begin(self, message: bytes) -> bytes:
        return await self.work.begin(message)

    async def reach(self, message: bytes, blobs: Sequence[Any]) -> bytes:
        return await self.work.reach(message, [bytes(await blob) for blob in blobs])

    async def play(self, message: bytes) -> bytes:
        return await self.work.play(message)

    async def drop(self, message: bytes) -> bytes:
        return await self.work.drop(message)


class RayHand:
    """The actor of worker `index`."""

    def __init__(self, actor: Any, logs: Path | None, index: int) -> None:
        self.actor, self.logs, self.index, self.pid = actor, logs, index, 0

    def send(self, method: str, message: bytes, blobs: Sequence[Any] = ()) -> Future[bytes]:
        """Call a method of `Work`. The future gets LostWorkerError if the actor is gone, and else the method's result
        or its exception, which would be raised again if the call were repeated."""
        out: Future[bytes] = Future()
        if not import_ray().is_initialized():  # of a run that ends: the call would start another Ray
            out.set_exception(LostWorkerError("Ray is not there any more"))
            return out
        try:
            ref = getattr(self.actor, method).remote(message, *([list(blobs)] if method == "reach" else ()))
            ref.future().add_done_callback(lambda found: self._settle(out, found, method))
        except Exception as error:
            out.set_exception(LostWorkerError(_explain(error)))
        return out

    def _settle(self, out: Future[bytes], found: Future[Any], method: str) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits any more
            if (error := found.exception()) is not None:
                raised = _find_raised(error)
                if raised is not None:
                    raised.add_note(f"raised in worker {self.index}")
                out.set_exception(raised or LostWorkerError(_explain(error)))
                return
            if method == "begin":
                self.pid = unpack(found.result()).get("pid", 0)
            out.set_result(found.result())

    def tell(self) -> str:
        """Return the last lines that its process wrote, if its log is on this machine."""
        files = sorted(self.logs.glob(f"worker-*-{self.pid}.*")) if self.logs and self.pid else []
        lines = [
            line
            for file in files
            for line in read_end(file, LINES).splitlines()
            if not line.startswith(MARKS)
        ]
        return "\n".join(lines)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(Exception):
            if import_ray().is_initialized():
                import_ray().kill(self.actor)


class Rays:
    """A `Yard` of Ray actors. `address` "" means the Ray of this process, or else one that is started for it, with its
    files in `folder` ("": one of its own)."""

    def __init__(self, workers: int, address: str = "", folder: str = "") -> None:
        self.workers, self.address = workers, address
        self.world = World(address, folder)
        self.world.open()

    def hire(self, index: int) -> RayHand:
        """Start an actor; in a cluster, on the node that has the fewest."""
        own = not self.address
        options = {"num_cpus": 0 if own else 1, "max_concurrency": MOST + 100, "max_restarts": 0}
        made = self.world.ray.remote(Actor).options(**options, scheduling_strategy="DEFAULT" if own else "SPREAD")
        return RayHand(made.remote(), self.world.logs, index)

    def put(self, data: bytes) -> Any:
        """Store bytes in the object store, once for all workers of a node."""
        return self.world.ray.put(np.frombuffer(data, np.uint8))

    def explain_loss(self) -> str:
        """Return which process of a Ray of our own has ended; "" if none has."""
        return self.world.explain_loss()

    def restart(self) -> None:
        """Raise LostWorkerError: Ray cannot start a second time in a process whose first Ray was killed (`rays_apart`).
        """
        raise LostWorkerError("the run cannot go on without it")

    def close(self) -> None:
        """End the Ray that was started here, or leave the cluster that was joined here."""
        self.world.close()


def _find_raised(error: BaseException) -> Exception | None:
    """Return the exception of a method that ran; None for what Ray itself reports, such as a death or a lost object."""
    known = import_ray().exceptions
    if not isinstance(error, known.RayTaskError):
        return None
    cause: Any = error.cause
    if isinstance(cause, known.RayError) and type(cause) is not known.RayError:  # itself: words of what no pickle takes
        return None
    return cause if isinstance(cause, Exception) else RuntimeError(f"{type(cause).__name__}: {cause}")


def _explain(error: BaseException) -> str:
    """Return Ray's reason for the loss of an actor, in a line."""
    text = str(error)
    if DETAIL in text:
        text = text.partition(DETAIL)[2].partition(" Some common causes")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no more is known'])[0][:300]}"
