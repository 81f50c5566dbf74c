"""A `checkpoints` that is a link, to a disk with more room: allowed if the folder behind it belongs to this run.

The folder has its owner in `owner.json`: the run's id, a fact of its database, and the run's path. It is locked for as
long as the run is written, as the lock in the run's own folder does not protect it. No torch.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from shuhari.store import schema
from shuhari.store.files import DamageError, Lock, StoreError, read_file, replace_file
from shuhari.store.names import list_folders
from shuhari.store.rows import read_fact, read_rows

OWNER, ID = "owner.json", "id"


def is_linked(run: Path) -> bool:
    """Whether the checkpoints of a run lie behind a link."""
    return (run / "checkpoints").is_symlink()


def find_foreign(run: Path) -> str:
    """Return why the folder behind `checkpoints` is not this run's; "" if it is, or if there is no link."""
    if not is_linked(run) or not (folder := (run / "checkpoints").resolve()).is_dir():
        return ""
    own: object = None
    named = set[str]()
    with suppress(StoreError, sqlite3.Error, FileNotFoundError), closing(schema.connect(run)) as db:
        own, named = read_fact(db, ID), {name for _, name, *_ in read_rows(db, "checkpoints")}
    what = f"{run / 'checkpoints'} is a link to {folder}, which"
    if folder.name == "checkpoints" and folder.parent != run.resolve() and (folder.parent / schema.FILE).exists():
        return f"{what} are the checkpoints of the run {folder.parent}"
    owner = _read_owner(folder)
    if owner is None:  # of a new run, or of one that was linked before there were owners
        theirs = [step for name, step in list_folders(run) if name not in named]
        own_too = any(name in named for name, _ in list_folders(run))  # beside which a kill leaves one without a name
        if len(theirs) > own_too:
            return f"{what} holds checkpoints that the run does not name, of steps {theirs[:8]}"
        return ""
    if owner.get("id") != own:
        return f"{what} is, by its {OWNER}, of another run ({str(owner.get('run'))!r:.200})"
    other = Path(str(owner.get("run")))
    with suppress(OSError, ValueError):
        if other.resolve() != run.resolve() and (other / "checkpoints").resolve() == folder:
            return f"{what} is of the run {other}, which this one is a copy of"
    return ""


def claim(run: Path, db: sqlite3.Connection) -> Lock | None:
    """Lock the folder behind a link, and write its owner into it, before anything in it is removed; None if there is no
    link. DamageError if it belongs to another run, LockedError while another process writes there."""
    if not is_linked(run):
        return None
    folder = (run / "checkpoints").resolve()
    lock = Lock(folder)
    try:
        if fault := find_foreign(run):
            raise DamageError(fault, "nothing was changed")
        own = read_fact(db, ID)
        if not isinstance(own, str):
            own = secrets.token_hex(8)
            schema.write_fact(db, ID, own)
        owner = {"id": own, "run": str(run.resolve())}
        if _read_owner(folder) != owner:
            replace_file(folder / OWNER, [json.dumps(owner).encode()])
        lock.sign()
    except BaseException:
        lock.release()
        raise
    return lock


def _read_owner(folder: Path) -> dict[str, Any] | None:
    """Return the owner that a folder names; None if it names none."""
    try:
        found = json.loads(read_file(folder / OWNER))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}
