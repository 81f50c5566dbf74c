"""The worker process of a vector rollout (`python -m shuhari.rollouts.vector.worker LINK MEMORY`): steps its lanes on
request, by the same code as in one process.

It makes its environments anew from the task's class and settings. Observations, actions, rewards and ends are in shared
memory; the link carries one mark per message, and at checkpoints snapshots, written by the codec. No pickle. It ends
when its parent ends, for whatever reason. Left out: policies, which stay with the parent.

Axes: `N` lanes of all workers together.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from shuhari.data import Array

START, STEP, RESET, SAVE, LOAD, QUIT = (bytes([i]) for i in range(6))  # the request, in a message's first byte
DONE, FAILED = b"\x00", b"\x01"  # the first byte of a reply
SLICE = "<qq"  # range of lanes at the beginning of a message; starts of some of them may follow
ALIGNED = 64  # bytes

Layout = Sequence[tuple[str, str, Sequence[int]]]  # (name, number type, shape) of each array in shared memory


def lay_out(layout: Layout) -> tuple[list[int], int]:
    """Returns the offset of each array, and the total number of bytes."""
    begins, end = [], 0
    for _, dtype, shape in layout:
        begins.append(end)
        end += -(-np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int)) // ALIGNED) * ALIGNED
    return begins, max(end, 1)


def map_arrays(memory: mmap.mmap, layout: Layout) -> dict[str, Array]:
    """Returns name -> array, as views of the shared memory."""
    return {
        name: np.frombuffer(memory, dtype, int(np.prod(shape, dtype=int)), begin).reshape(shape)
        for (name, dtype, shape), begin in zip(layout, lay_out(layout)[0], strict=True)
    }


def find_observations(found: Mapping[str, Array]) -> Any:
    """Returns the observations among the arrays: one array, or a dict by key."""
    return found["seen"] if "seen" in found else {k[5:]: x for k, x in found.items() if k.startswith("seen/")}


def find_extra_arrays(found: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the extra columns that environments report, among the arrays."""
    return {k[6:]: x for k, x in found.items() if k.startswith("extra/")}


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable()
    link = Connection(int(sys.argv[1]))
    code = 0
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        try:
            serve(link, int(sys.argv[2]))
        except EOFError:
            raise
        except BaseException:
            code = 1
            link.send_bytes(FAILED + traceback.format_exc().encode())
    os._exit(code)  # skip what environments registered to run at exit


def serve(link: Connection, memory: int) -> None:
    """Serves messages until the link is closed."""
    from shuhari.kernel.registry import locate
    from shuhari.rollouts.vector.lanes import Inline
    from shuhari.store.codec import dumps, loads

    setup = loads(link.recv_bytes())
    task = locate("task", setup["task"])(**setup["fields"])
    vars(task).update(setup["known"])
    found = map_arrays(mmap.mmap(memory, lay_out(setup["layout"])[1]), setup["layout"])
    seen, action, reward, end, fresh = (
        find_observations(found),
        *(found[k] for k in ("action", "reward", "end", "fresh")),
    )
    lanes, extras = Inline(task.make, setup["lanes"], setup["seconds"]), find_extra_arrays(found)
    use_one_thread()
    link.send_bytes(DONE)
    while True:
        message = link.recv_bytes()
        kind, rest = message[:1], message[1:]
        if kind in (STEP, RESET):
            here = slice(*struct.unpack(SLICE, rest[:16]))
            anew = dict.fromkeys((here.start + np.flatnonzero(fresh[here])).tolist())
            anew |= dict(loads(rest[16:])) if rest[16:] else {}
            taken = None if kind == RESET else action[here].tolist() if setup["plain"] else action[here].copy()
            lanes.post(here, taken, anew)
            over = lanes.poll(here, seen, reward, extras)
            end[here] = 0
            for i, how in over:
                end[i] = how
            link.send_bytes(DONE)
        elif kind == START:
            lanes.start(loads(rest), seen)
            link.send_bytes(DONE)
        elif kind == SAVE:
            link.send_bytes(DONE + dumps(lanes.snapshots()))
        elif kind == LOAD:
            lanes.restore(loads(rest))
            link.send_bytes(DONE)
        else:
            lanes.close()
            return


def use_one_thread() -> None:
    """Limits this process to one thread, as the workers share the machine (the parent sets the variables that BLAS
    reads)."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: the read returns when the parent, which holds the other end, has ended
    os._exit(1)


if __name__ == "__main__":
    main()
