"""Stored names and the paths made of them: one function turns a name in a row, or a document, of a run into a path. No
torch.

A run's folder may come from anybody. A name that is not of the library's form is damage: joined to a folder unchecked,
`../../thesis` or `/home/me/thesis` would be read, or removed.
"""

from __future__ import annotations

import re
from pathlib import Path

from shuhari.store.files import DamageError

BASED = "based"  # in the tree of a checkpoint: role -> where weights that it has not lie, and the digest of each
_STEP = re.compile(r"step-(\d{8,18})(?:\.(\d{1,18}))?", re.ASCII)
_BLOCK = re.compile(r"([\w-]{1,200})/(\w[\w.-]{0,200}\.safetensors)", re.ASCII)
_OWN_BLOCK = re.compile(r"\w{0,80}-[0-9a-f]{8}/\d{6,}-[\w.-]+\.safetensors", re.ASCII)  # as they are called here
_PART = re.compile(r"\.tmp-(.+)", re.DOTALL)  # of what was being written


def read_name(name: object) -> tuple[int, int]:
    """Return (step, number within that step) of a checkpoint's name, `step-00000012` or `step-00000012.1`; DamageError
    for any other."""
    found = _STEP.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise DamageError(f"{name!r:.80} is not the name of a checkpoint: expected one such as 'step-00000012'")
    return int(found[1]), int(found[2] or 0)


def join_checkpoint(checkpoints: Path, name: object) -> Path:
    """Return the folder of a checkpoint by its stored name; DamageError for a name that no checkpoint has."""
    read_name(name)
    return checkpoints / str(name)


def join_block(rings: Path, name: object) -> Path:
    """Return the file of a ring's block by its stored name, `<ring>/<block>.safetensors`; DamageError for a name that
    no block has."""
    found = _BLOCK.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise DamageError(f"{name!r:.80} is not the name of a block: expected <ring>/<block>.safetensors")
    return rings / found[1] / found[2]


def is_checkpoint(name: str) -> bool:
    """Whether an entry of the checkpoints' folder is a checkpoint by its name, or a part of one: nothing else is
    removed."""
    part = _PART.fullmatch(name)
    return _STEP.fullmatch(part[1] if part else name) is not None


def is_block(folder: str, name: str) -> bool:
    """Whether `folder/name` in the folder of rings is a block by its name, or a part of one: nothing else is
    removed."""
    part = _PART.fullmatch(name)
    return _OWN_BLOCK.fullmatch(f"{folder}/{part[1] if part else name}") is not None


def list_folders(run: Path) -> list[tuple[str, int]]:
    """Return (name, step) of the checkpoints on disk, oldest first, whether whole or not."""
    folder = run / "checkpoints"
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return [(name, read_name(name)[0]) for name in sorted(filter(_STEP.fullmatch, names), key=read_name)]
