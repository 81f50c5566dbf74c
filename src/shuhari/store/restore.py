"""Loading a run's checkpoint, by the database that names it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from shuhari.store import checkpoint
from shuhari.store.files import CheckpointError, StoreError
from shuhari.store.names import join_checkpoint, read_name
from shuhari.store.ring import RingFiles
from shuhari.store.rows import read_cursor, read_rows


def load_tree(run: Path, db: sqlite3.Connection, rings: RingFiles, step: int | None = None) -> Any:
    """Return the tree of the checkpoint that the cursor names, or of the one at `step`. StoreError if there is none,
    CheckpointError if it cannot be read."""
    rows = [(name, at) for at, name, *_ in sorted(read_rows(db, "checkpoints"), key=lambda row: read_name(row[1]))]
    cursor = read_cursor(db)
    if step is None:
        name = None if cursor is None else cursor["checkpoint"]
    else:
        name = next((n for n, s in reversed(rows) if s == step), None)
    folder = run / "checkpoints"
    if name is None:
        of = "" if step is None else f" of step {step}"
        raise StoreError(f"{run} has no checkpoint{of}; {_list_others(folder, rows)}")
    try:
        return checkpoint.read(join_checkpoint(folder, name), rings)
    except CheckpointError as error:
        others = _list_others(folder, [row for row in rows if row[0] != name])
        hint = f"; start from one of them as `--init {run}@STEP`" if "steps" in others else ""
        message = f"{others}{hint}, or go back to the last that is whole: `shuhari doctor {run} --repair`"
        raise CheckpointError(f"{error}. {message}") from error


def _list_others(folder: Path, rows: list[tuple[str, int]]) -> str:
    """Return a sentence on the checkpoints that can be read."""
    steps = [str(s) for name, s in rows if not checkpoint.find_fault(join_checkpoint(folder, name), folder / "rings")]
    return f"checkpoints there: steps {', '.join(steps)}" if steps else "no other checkpoint is there"
