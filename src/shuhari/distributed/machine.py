"""A limit on the number of a run's processes on this machine, so that a typing mistake does not fill it."""

from __future__ import annotations

from shuhari.config.distributed import Distributed
from shuhari.config.overlay import RecipeError
from shuhari.store.files import count_cores, measure_memory

EACH = 2**28  # bytes that a process takes at least, before it has a model
A_CORE = 16  # processes for each core, above which they do not begin in time: starting one takes seconds


def check_machine(given: Distributed) -> None:
    """Raise RecipeError for more workers or learners than this machine has room for; workers of a joined cluster do not
    count."""
    cores = count_cores()
    memory = measure_memory()
    most = max(1, min(A_CORE * cores, memory // EACH))
    elsewhere = ", or distributed.address, that of a cluster"
    for name, n, more in (
        ("workers", 0 if given.address else given.workers, elsewhere),
        ("learners", given.learners, ""),
    ):
        if n > most:
            has = f"this machine has {cores} cores and {memory / 1e9:.0f} GB of memory"
            each = f"each of {n} is a process of its own, of {EACH / 1e9:.1f} GB or more beside its models"
            raise RecipeError(f"distributed.{name}", f"{each}, and {has}; expected at most {most}{more}")
