"""Disk space: what runs take, and what is free. No torch."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def measure_size(run: Path) -> int:
    """Return the bytes of the files of a run, also of checkpoints behind a link; a file that has several names counts
    once."""
    total, seen = 0, set[tuple[int, int]]()
    places = [run, *([run / "checkpoints"] if (run / "checkpoints").is_symlink() else [])]
    for place in places:
        for folder, _, names in os.walk(place.resolve()):
            for name in (n for n in names if not n.endswith("-shm")):  # SQLite's, gone when nobody reads
                with suppress(OSError):  # of a run that is being written, files come and go
                    found = os.lstat(os.path.join(folder, name))
                    if (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        total += found.st_size
    return total


def measure_free(path: Path) -> int:
    """Return the bytes that are free for a file below `path`, which need not exist yet."""
    there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(there.resolve()).free


def format_size(n: float) -> str:
    """Return bytes in words, by powers of 1000: `3.2 GB`, `980 kB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} bytes"
