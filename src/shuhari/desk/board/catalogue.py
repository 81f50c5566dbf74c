"""The runs below a folder, for the board; summaries are cached until a run's files change.

A thread reads the summaries that are missing, the newest first, so that a list of thousands appears at once with what
is known so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shuhari.data import nearest
from shuhari.desk.board.numbers import Numbers
from shuhari.store import NoRunError
from shuhari.store.directory import find_runs
from shuhari.store.layout import is_child
from shuhari.store.listing import STATUSES, TAGS, Summary, matches, summarise
from shuhari.store.schema import FILES

PENDING = "pending"  # the status of a run that was not read yet
DEPTH = 3  # nested folders of a run below the root
AT_ONCE = 0.2  # seconds of reading, after which a list is returned as far as known
AGAIN = 20.0  # seconds for which derived data of a running run are cached

Stamp = tuple[tuple[int, int], ...]  # (time of change, bytes) of the files of a run's database, and of its tags


class Catalogue:
    """The runs below `root`. Thread-safe. `local`: whether requests come from this machine, and may name code of
    theirs."""

    def __init__(self, root: str | Path, *, local: bool = False) -> None:
        self.root, self.local, self.numbers = Path(root), local, Numbers()
        self._known: dict[str, tuple[Stamp, Summary]] = {}
        self._made: dict[tuple[str, str], tuple[Stamp, float, Any]] = {}
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def find(self, name: str) -> Path:
        """Return the directory of a run by its name below the root, or of `latest`. Raises NoRunError for anything
        else, paths included."""
        if (path := self._find_at_once(name)) is not None:
            return path
        there = self._list_places()
        if name == "latest" and (own := [path for path in there.values() if not is_child(path)]):
            return max(own, key=lambda path: max(read_stamp(path), default=(0, 0)))
        if name not in there:
            raise NoRunError(f"no run {name!r:.200} in {self.root}/; {nearest(name, there)}")
        return there[name]

    def choose(
        self, words: Iterable[str] = (), status: str = "", *, wait: bool = False, children: bool = True
    ) -> list[Summary]:
        """Return summaries of the runs that match words and status, the last written first; without `children` only
        runs that no claim or study made. Runs that were not read yet are `PENDING` and read in the background; with
        `wait` all are read first."""
        wanted = [word.lower() for word in words]
        everything = self._list_places()
        places = {name: path for name, path in everything.items() if children or not is_child(path)}
        stamps = {name: read_stamp(path) for name, path in places.items()}
        order = sorted(places, key=lambda name: (max(stamps[name], default=(0, 0)), name), reverse=True)
        missing = [name for name in order if self._is_stale(name, stamps[name])]
        left = self._read(places, stamps, missing, float("inf") if wait else AT_ONCE)
        if left:
            self._read_aside(places, stamps, left)
        with self._lock:
            for gone in self._known.keys() - everything.keys():
                del self._known[gone]
            self._made = {key: made for key, made in self._made.items() if key[1] in everything}
            found = [self._known[n][1] if n in self._known else Summary(n, places[n], PENDING) for n in order]
        return [r for r in found if status in ("", r.status) and matches(r, wanted)]

    def count_children(self) -> int:
        """Count the runs made by claims or studies."""
        return sum(map(is_child, self._list_places().values()))

    def make(
        self, what: str, runs: Sequence[Summary], work: Callable[[Summary], Any], seconds: float = AT_ONCE
    ) -> Mapping[str, Any]:
        """Return name -> the result of `work` for each run that was read, cached until its files change, and for AGAIN
        seconds. After that many seconds the remaining runs are left out until the next call."""
        end, out = time.monotonic() + seconds, dict[str, Any]()
        for run in runs:
            stamp, kept = read_stamp(run.path), self._made.get((what, run.name))
            if kept is not None and (kept[0] == stamp or time.monotonic() < kept[1] + AGAIN):
                out[run.name] = kept[2]
            elif run.status != PENDING and time.monotonic() < end:
                out[run.name] = work(run)
                with self._lock:
                    self._made[what, run.name] = stamp, time.monotonic(), out[run.name]
            elif kept is not None:
                out[run.name] = kept[2]
        return out

    def _find_at_once(self, name: str) -> Path | None:
        """Return the directory of a run by its name, without listing all; None if that requires the list."""
        parts = name.split("/")
        if name == "latest" or len(parts) > DEPTH or not {"", ".", ".."}.isdisjoint(parts):
            return None
        path = self.root / name
        try:
            there = (path / FILES[0]).is_file() and path.resolve().is_relative_to(self.root.resolve())
        except OSError:  # an invalid file name
            return None
        return path if there else None

    def explain_left_out(self) -> str:
        """Return why runs in the root are not listed; "" if all are."""
        root = self.root.resolve()
        out = [path for path in find_runs(self.root) if not path.resolve().is_relative_to(root)]
        if not out:
            return ""
        many = "1 run is a link that leads" if len(out) == 1 else f"{len(out)} runs are links that lead"
        return f"{many} out of {self.root}/, and not shown: give --root the folder that they are in"

    def _list_places(self) -> dict[str, Path]:
        """Return name -> directory, without links that lead out of the root."""
        root = self.root.resolve()
        found = {str(path.relative_to(self.root)): path for path in find_runs(self.root)}
        return {name: path for name, path in found.items() if path.resolve().is_relative_to(root)}

    def _is_stale(self, name: str, stamp: Stamp) -> bool:
        """Whether a run has to be read: it is new or was written since, or it was running and may have ended."""
        with self._lock:
            before, summary = self._known.get(name, ((), None))
        return summary is None or before != stamp or summary.status == STATUSES[0]

    def _read_aside(self, places: dict[str, Path], stamps: dict[str, Stamp], names: list[str]) -> None:
        with self._lock:
            if self._reader is not None and self._reader.is_alive():
                return
            self._reader = threading.Thread(target=self._read, args=(places, stamps, names), daemon=True)
            self._reader.start()

    def _read(
        self, places: dict[str, Path], stamps: dict[str, Stamp], names: list[str], seconds: float = float("inf")
    ) -> list[str]:
        """Read runs until the seconds are over; return the names that remain."""
        end = time.monotonic() + seconds
        for i, name in enumerate(names):
            if time.monotonic() > end:
                return names[i:]
            summary = summarise(places[name], name)
            with self._lock:
                self._known[name] = stamps[name], summary
        return []


def name_doctor(why: str, path: Path) -> str:
    """Add a pointer to `shuhari doctor` to the reason why a run cannot be read."""
    return why if "shuhari doctor" in why else f"{why} (`shuhari doctor {path}` says what is whole)"


def read_stamp(path: Path) -> Stamp:
    """Return the stamp of the existing files that a summary depends on."""
    found = []
    for name in (*FILES[:2], TAGS):
        try:
            stat = (path / name).stat()
        except OSError:
            continue
        tags = name == TAGS  # tags do not make a run newer
        found.append((0, stat.st_mtime_ns) if tags else (stat.st_mtime_ns, stat.st_size))
    return tuple(found)
