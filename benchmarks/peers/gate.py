"""The child's half of an alternating measurement: work in blocks, and between two blocks wait to be told.

A child reads a line from standard input for each block that it is to run and answers with one line of JSON. While it
waits it does nothing, so of two children only one works at any time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class Gate:
    """`tick` after every step of the loop that is measured; after `block` steps it reports and waits.

    A report holds `wall` and `cpu` seconds (of all threads of this process), whatever `count` added up, and `rss`, the
    peak memory in MiB so far.
    """

    def __init__(self, block: int) -> None:
        self.block, self.done, self.counts = block, 0, dict[str, float]()
        self.out: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to standard error, and not between our lines
        self.start = 0.0, 0.0

    def wait(self) -> bool:
        """Whether another block is wanted; the clock starts when this returns."""
        wanted = bool(sys.stdin.readline().strip())
        self.done, self.counts = 0, {}
        self.start = time.perf_counter(), time.process_time()
        return wanted

    def count(self, **work: float) -> None:
        """Add to what the report says was done."""
        for name, amount in work.items():
            self.counts[name] = self.counts.get(name, 0) + amount

    @property
    def last(self) -> bool:
        """Whether the next tick ends a block."""
        return self.done + 1 >= self.block

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What is done here does not count as time."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.start = self.start[0] + time.perf_counter() - wall, self.start[1] + time.process_time() - cpu

    def tick(self) -> bool:
        """A step is done; False: no more is wanted, end the loop."""
        self.done += 1
        if self.done < self.block:
            return True
        wall, cpu = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        print(json.dumps({"wall": wall, "cpu": cpu, "rss": rss, **self.counts}), file=self.out, flush=True)
        return self.wait()
