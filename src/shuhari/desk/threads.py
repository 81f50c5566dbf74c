"""Threads that wait for work: asleep, instead of turning in a loop.

torch computes with several threads that meet after every operation. By default those that wait keep their core busy,
which on a machine with other work costs both: a model of 135 million weights was read in 77 s instead of 11 s beside
another training on two cores.
"""

from __future__ import annotations

import os
import sys

SPINS = "1000"  # turns before a thread sleeps: some microseconds, less than most operations of a network


def let_waiting_threads_sleep() -> None:
    """Set how long threads of OpenMP wait awake, unless the environment sets it. It has an effect until torch is
    imported for the first time."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
