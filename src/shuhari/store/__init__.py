"""Runs on disk: `Store` writes one, `Run` reads it (also while it is being written), `resolve` finds it by name.

Modules are imported on first use: listing runs needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuhari.store.damage import Report, inspect_run
    from shuhari.store.database import Store
    from shuhari.store.directory import NoRunError, Run, find_checkpoint, metrics, resolve
    from shuhari.store.files import CheckpointError, DamageError, LockedError, StoreError
    from shuhari.store.listing import list_runs, remove_run, rename_run, tag_run
    from shuhari.store.repair import repair_run
    from shuhari.store.ring import Ring
    from shuhari.store.rollouts import pick

__all__ = [
    "CheckpointError",
    "DamageError",
    "LockedError",
    "NoRunError",
    "Report",
    "Ring",
    "Run",
    "Store",
    "StoreError",
    "find_checkpoint",
    "inspect_run",
    "list_runs",
    "metrics",
    "pick",
    "remove_run",
    "rename_run",
    "repair_run",
    "resolve",
    "tag_run",
]
_HOME = {
    "CheckpointError": "files",
    "DamageError": "files",
    "LockedError": "files",
    "NoRunError": "directory",
    "Report": "damage",
    "Ring": "ring",
    "Run": "directory",
    "Store": "database",
    "StoreError": "files",
    "inspect_run": "damage",
    "list_runs": "listing",
    "metrics": "directory",
    "pick": "rollouts",
    "remove_run": "listing",
    "rename_run": "listing",
    "repair_run": "repair",
    "find_checkpoint": "directory",
    "resolve": "directory",
    "tag_run": "listing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
