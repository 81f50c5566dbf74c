"""Files that survive: written whole, flushed, then renamed; one writer a run, by a lock that dies with its process.

Leaves out what stands in the files (`tensors`, `checkpoint`, `schema`). No torch.
"""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # no lock on such a system: two writers of one run are then the user's to avoid
    fcntl = None  # type: ignore[assignment]


FULL = (errno.ENOSPC, errno.EDQUOT)  # no space is left, on the disk or to its user


class StoreError(Exception):
    """Something about a run on disk that its user can fix; what was stored before is intact."""


class CheckpointError(StoreError):
    """A checkpoint that cannot be read: names the file and what is wrong with it."""


class LockedError(StoreError):
    """Another process writes this run."""


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, int]:
    """Write and flush to the disk; (bytes, crc32) of what was written. Not atomic: the caller renames."""
    size, crc = 0, 0
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        file.flush()
        os.fsync(file.fileno())
    return size, crc


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, int]:
    """As `write_file`, under a temporary name first: a reader sees the old file or the new one, never a part. The
    directory is not flushed: see `sync_directory`."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        done = write_file(temporary, chunks)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return done


def sync_directory(path: Path) -> None:
    """Flush the names in a directory, so that a rename outlives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_run_folder(path: Path) -> None:
    """The folders of a run. StoreError where the path can be none; other errors of the disk as they are."""
    there = next(p for p in (path.absolute(), *path.absolute().parents) if os.path.exists(p))
    if not there.is_dir():
        raise StoreError(f"no run can be made at {path}: {there} is a file; expected the path of a folder")
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        why = f"in {there} no folder can be made ({error.strerror or error})"
        raise StoreError(f"no run can be made at {path}: {why}; give another path") from None


class Trail:
    """What is about to be made at `path`, so that it can be taken back: the folders on the way there that are missing
    yet, and what stands there already."""

    def __init__(self, path: Path) -> None:
        self.missing = [p for p in (path, *path.parents) if not p.exists()]
        self.path, self.before = path, set(path.iterdir()) if path.is_dir() else set()

    def remove(self, own: Collection[Path]) -> None:
        """Remove the files and empty folders `own`, in order, and the folders on the way there; all of it stays where
        more than that has been made."""
        with suppress(OSError):
            there = set(self.path.iterdir()) if self.path.is_dir() else set[Path]()
            if there - self.before - {*own}:
                return
            for path in own:
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)
            for path in self.missing:
                if path.is_dir():
                    path.rmdir()


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Errors of the disk and of SQLite as a StoreError that says what was being done and what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, OSError):
            full, why = error.errno in FULL, error.strerror or str(error)
        else:
            full, why = "is full" in str(error), f"SQLite says {str(error)!r}"
        why = "the disk is full: free some space" if full else why
        raise StoreError(f"{what}: {why}. What was stored before is intact; the same command goes on") from error


_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked child shares the lock; were it to outlive a killed parent, the run would stay locked."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Lock:
    """An exclusive lock on a run directory, held until `release` or the end of the process, however it ends."""

    NAME = "run.lock"

    def __init__(self, run: Path, patience: float = 0.5) -> None:
        self.file: IO[str] | None = None
        path = run / self.NAME
        file = open(path, "a+")  # noqa: SIM115  (kept open as long as the lock is held)
        end = time.monotonic() + patience
        while not _try_lock(file):  # a reader that asks whether the run is alive holds the lock for an instant
            if time.monotonic() > end:
                file.seek(0)
                owner = file.read().strip() or "another process"
                file.close()
                raise LockedError(f"{run} is being written by {owner}: wait for it or stop it, or give another path")
            time.sleep(0.02)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self.file = file
        _held.add(file.fileno())

    def release(self) -> None:
        if self.file is not None:
            _held.discard(self.file.fileno())
            self.file.close()
            self.file = None


def _try_lock(file: IO[str]) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def is_locked(run: Path) -> bool:
    """Whether a process writes this run now."""
    try:
        file = open(run / Lock.NAME)  # noqa: SIM115
    except OSError:
        return False
    with file:
        return not _try_lock(file)  # closing gives it back
