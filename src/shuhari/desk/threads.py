"""What threads and workers get of the machine.

Threads that wait for work sleep, instead of turning in a loop. torch computes with several threads that meet after
every operation. By default those that wait keep their core busy, which on a machine with other work costs both: a model
of 135 million weights was read in 77 s instead of 11 s beside another training on two cores.

Workers have the priority of the run. By default Ray gives them a far lower one (15 above in `nice`), and they wait for
whatever else the machine does.
"""

from __future__ import annotations

import os
import sys

SPINS = "1000"  # turns before a thread sleeps: some microseconds, less than most operations of a network


def share_the_machine() -> None:
    """Set how long threads of OpenMP wait awake and the priority of Ray's workers, unless the environment sets these.
    The first has an effect until torch is imported for the first time."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # above that of the process which begins Ray
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
