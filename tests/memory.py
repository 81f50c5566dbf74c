"""Folders in memory that a process of tests holds while it lives, and the removal of those that nobody holds.

A lock says who lives, not a process id: containers may share the memory and not the processes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "shuhari-tests-"


def hold(folder: Path) -> int | None:
    """A descriptor whose lock on a folder lasts until it is closed, or the process ends; None where another has it."""
    import fcntl

    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError:  # removed meanwhile, or another user's
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def make_held(root: Path) -> Path:
    """A new folder below `root` that this process holds to its end."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    hold(folder)
    return folder


def sweep(root: Path) -> None:
    """Remove the folders below `root` that nobody holds: their processes were killed."""
    for left in root.glob(f"{PREFIX}*"):
        if (held := hold(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
