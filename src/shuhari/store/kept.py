"""Which checkpoints of a run stay on disk: the writer's list of them, and the one place that removes any.

Rows and documents of the run name what is removed, so each path comes from `names`; on opening it was checked that the
folders are the run's own (`layout`, `linked`).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.kernel.stats import UNGRADED
from shuhari.store import checkpoint
from shuhari.store.files import remove
from shuhari.store.names import is_checkpoint, join_checkpoint, read_name
from shuhari.store.ring import RingFiles
from shuhari.store.rows import read_rows


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. `score`: the metric that decides which is best, if its step had it."""

    name: str
    step: int
    pinned: bool
    score: float | None
    blocks: frozenset[str]


class Kept:
    """The checkpoints of a run that its database names. keep: how many of the last stay; best: a metric whose highest
    checkpoint stays too."""

    def __init__(self, folder: Path, keep: int, best: str | None) -> None:
        self.folder, self.keep, self.best = folder, keep, best
        self.rings = RingFiles(folder / "rings")
        self.all: list[Checkpoint] = []

    def write(self, step: int, tree: Any, metrics: Mapping[str, Any], pin: bool) -> Checkpoint:
        """Write a checkpoint's files. It becomes one that a run resumes from when the database names it."""
        name, again = f"step-{step:08d}", 0
        while (self.folder / name).exists():  # the same step once more: never write over what is named
            again += 1
            name = f"step-{step:08d}.{again}"
        blocks = checkpoint.write(self.folder / name, tree, self.rings)
        score, place = metrics.get(self.best or ""), (self.best or "").rpartition("/")[0]
        if metrics.get(f"{place}/ungraded", 0) > UNGRADED or f"{place}/episodes" in metrics:
            score = None  # of those alone that something graded; of a few episodes, of which the best is the luckiest
        number = None if score is None or score != score else float(score)
        return Checkpoint(name, step, pin, number, frozenset(blocks))

    def choose(self, new: Checkpoint) -> list[Checkpoint]:
        """Return the checkpoints that stay once there is a new one."""
        there = [*self.all, new]
        scored = [k for k in there if k.score is not None]
        best = max(scored, key=lambda k: k.score or 0.0).name if scored else None  # the first of equals
        last = {k.name for k in there[-self.keep :]}
        return [k for k in there if k.pinned or k.name in last or k.name == best]

    def settle(self, kept: list[Checkpoint]) -> None:
        """Remove all but the kept checkpoints, which the database now names."""
        self.rings.settle(keep=True)
        there, self.all = self.all, kept
        names, blocks = (
            {k.name for k in kept},
            frozenset[str]().union(*(k.blocks for k in kept)),
        )
        gone = [k for k in there if k.name not in names]
        with suppress(OSError):  # what stays behind goes at the next opening
            for k in gone:
                shutil.rmtree(join_checkpoint(self.folder, k.name), ignore_errors=True)
            self.rings.delete(
                {
                    b
                    for k in gone
                    for b in k.blocks
                }
                - blocks
            )

    def read(self, db: sqlite3.Connection) -> None:
        """Read which checkpoints the database names, and delete any others in their folder."""
        known = {k.name: k.blocks for k in self.all}
        self.all, damaged = [], False
        for step, name, pinned, score in sorted(read_rows(db, "checkpoints"), key=lambda row: read_name(row[1])):
            blocks = known.get(name)
            if blocks is None:
                blocks, folder = frozenset(), join_checkpoint(self.folder, name)
                if checkpoint.find_fault(folder, self.rings.root):
                    damaged = True  # told when it is loaded; until then no block is removed that it may need
                else:
                    blocks = frozenset(checkpoint.list_blocks(folder))
            self.all.append(Checkpoint(name, step, bool(pinned), score, blocks))
        names = {k.name for k in self.all}
        for entry in self.folder.iterdir():
            if entry.name not in names and is_checkpoint(entry.name):
                remove(entry)
        if not damaged:
            self.rings.sweep({
                b
                for k in self.all
                for b in k.blocks
            })
