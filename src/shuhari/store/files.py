"""Durable files: written whole, flushed, then renamed; one writer for each run, by a lock that dies with its process.

Leaves out the contents of the files (`tensors`, `checkpoint`, `schema`). No torch.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
import stat
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


_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # open a pipe without waiting for its other end
_ITSELF = getattr(os, "O_NOFOLLOW", 0)  # write no file elsewhere that a link in the run's folder names
TEXT = 2**26  # bytes of a text of a run, such as its recipe
FULL = (errno.ENOSPC, errno.EDQUOT)  # no space is left, on the disk or to its user


class StoreError(Exception):
    """A problem of a run on disk that its user can fix; the error itself has changed nothing that was stored. `what` is
    wrong; the message adds the hint, if there is one."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}: {hint}" if hint else what)
        self.what = what


class NewerError(StoreError):
    """A run that was written by a newer version."""


class DamageError(StoreError):
    """Damage of a run on disk: its content is not what was written. The error names what is damaged, and that `shuhari
    doctor` can repair it."""


class CheckpointError(StoreError):
    """A checkpoint that cannot be read: names the file and what is wrong with it."""


class LockedError(StoreError):
    """A run that another process is writing."""


def follow_umask(folder: Path) -> None:
    """Give the safetensors files in a folder the mode that other new files have: their library makes them readable only
    for their owner."""
    trial = folder / f".mode-{os.getpid()}"
    with open(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _ITSELF, 0o666), "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    trial.unlink()
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


def read_file(path: Path, most: int = TEXT) -> bytes:
    """Return the bytes of a plain file, also behind links. OSError for more than `most` bytes (a file with holes can be
    huge at no cost to its maker) and for anything else, such as a pipe, which would block for ever, or a device, which
    may never end."""
    if (kind := describe_kind(path)) not in ("", "file"):
        raise OSError(errno.EINVAL, f"it is a {kind}, no plain file", str(path))
    with open(os.open(path, os.O_RDONLY | _AT_ONCE), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):  # another by now
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes: expected at most {most}", str(path))
        return file.read()


def describe_kind(path: Path) -> str:
    """Return the kind of what is at a path, also behind links: "file", "folder", "named pipe", ...; "" if nothing is
    there."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "named pipe"), (stat.S_ISSOCK, "socket"))
    return next((name for test, name in kinds if test(mode)), "device")


def find_memory() -> int:
    """Return the bytes of memory of this machine; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def count_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_memory() -> int:
    """Return the bytes of memory that this process may use: all of the machine, or the limit of its container."""
    found = [find_memory() or 2**36]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path(file).read_text()))
    return min(found)


def remove(path: Path) -> None:
    """Remove a file or folder of any kind, silently if that is refused."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, int]:
    """Write and flush to the disk; return (bytes, crc32) of what was written. Not atomic: the caller renames. OSError
    for a link."""
    size, crc = 0, 0
    with open(path, "wb", opener=_open_itself) as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        file.flush()
        os.fsync(file.fileno())
    return size, crc


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, int]:
    """Write as `write_file`, under a temporary name first: a reader sees the old file or the new one, never a part. The
    directory is not flushed: see `sync_directory`."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        done = write_file(temporary, chunks)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return done


def _open_itself(path: str, flags: int) -> int:
    return os.open(path, flags | _ITSELF, 0o666)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory, so that a rename survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_run_folder(path: Path) -> None:
    """Make the folders of a run. StoreError if the path cannot be one; other errors of the disk as they are."""
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
    """What exists at `path` before a run is made there, noted so that the making can be undone without touching it:
    which of the parent folders are missing, and the entries of `path`, which are kept with all that is in them (or that
    they link to)."""

    def __init__(self, path: Path) -> None:
        self.missing = [p for p in (path, *path.parents) if not p.exists()]
        self.path, self.before = path, set(path.iterdir()) if path.is_dir() else set()

    def is_new(self, path: Path) -> bool:
        """Whether what is at a path below was not there before."""
        return self.before.isdisjoint((path, *path.parents))

    def remove(self, own: Collection[Path]) -> None:
        """Remove the files and empty folders `own` that are new, in order, and the folders on the way there; nothing is
        removed if more than that has been made."""
        with suppress(OSError):
            there = set(self.path.iterdir()) if self.path.is_dir() else set[Path]()
            if there - self.before - {*own}:
                return
            for path in filter(self.is_new, own):
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)
            for path in self.missing:
                if path.is_dir():
                    path.rmdir()


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn errors of the disk and of SQLite into a StoreError with what was being done and what to do."""
    try:
        yield
    except OSError as error:
        raise _explain(what, error.strerror or str(error), full=error.errno in FULL) from error
    except sqlite3.Error as error:
        text = str(error)
        full, busy = "is full" in text, "is locked" in text
        doubt = isinstance(error, sqlite3.DatabaseError) and not (full or busy)
        raise _explain(what, f"SQLite says {text!r}", full=full, busy=busy, doubt=doubt) from error


def _explain(what: str, why: str, *, full: bool, busy: bool = False, doubt: bool = False) -> StoreError:
    """Return the error and its advice: only after a full or a busy disk is the old state certain to be intact."""
    if full or busy:
        why = "the disk is full: free some space" if full else f"{why}: another program holds the file"
        return StoreError(f"{what}: {why}. What was stored before is intact; the same command goes on")
    return StoreError(f"{what}: {why}{'; `shuhari doctor` with this run says what of it is whole' if doubt else ''}")


_held: set[int] = set()


def _forget_in_child() -> None:
    """Close the locks in a forked child: if it outlived a killed parent, the run would stay locked."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Lock:
    """An exclusive lock on a run directory, held until `release` or the end of the process, however it ends. After
    `sign`, which is the first write, the file names the process that holds it."""

    NAME = "run.lock"

    def __init__(self, run: Path, patience: float = 0.5, name: str = NAME) -> None:
        self.file: IO[str] | None = None
        self.path = run / name
        end = time.monotonic() + patience
        file = self._wait(end)
        while _identify(file.fileno()) != _identify(self.path):  # removed or renamed since: others lock another file
            file.close()
            file = self._wait(end)
        self.file = file
        _held.add(file.fileno())

    def _wait(self, end: float) -> IO[str]:
        """Return the file at the path, once it is locked. LockedError if it is not by the time `end`, StoreError if it
        is no plain file."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            raise StoreError(f"{self.path} is no plain file, so the run cannot be locked: move it away")
        file = open(self.path, "a+", opener=_open_itself)  # noqa: SIM115  (kept open as long as the lock is held)
        while not _try_lock(file):  # a reader that asks whether the run is alive holds the lock for an instant
            if time.monotonic() > end:
                file.seek(0)
                owner = file.read().strip() or "another process"
                file.close()
                where = self.path.parent
                raise LockedError(f"{where} is being written by {owner}: wait for it or stop it, or give another path")
            time.sleep(0.02)
        return file

    def sign(self) -> None:
        """Write which process holds the lock."""
        assert self.file is not None
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self.file.flush()

    def release(self) -> None:
        if self.file is not None:
            _held.discard(self.file.fileno())
            self.file.close()
            self.file = None


class Watch:
    """The files that a writer has open, to detect that they were removed or replaced: its writes would go into files
    without a name, and be lost."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known = {path: _identify(path) for path in paths}

    def check(self) -> None:
        """Raise StoreError if one was removed or replaced."""
        for path, known in self._known.items():
            if (now := _identify(path)) != known:
                what = "has been removed" if now is None else "has been replaced"
                raise StoreError(
                    f"{path} {what} while the run was being written: nothing more can be stored. "
                    "Put it back, or train in another folder (--run)"
                )


def _identify(path: Path | int) -> tuple[int, int] | None:
    """Return the identity of the file at a path or a descriptor; None if there is none."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


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
    """Whether a process is writing this run now."""
    path = run / Lock.NAME
    try:
        file = open(path) if path.is_file() else None  # noqa: SIM115
    except OSError:
        file = None
    if file is None:
        return False
    with file:
        return not _try_lock(file)  # closing gives it back
