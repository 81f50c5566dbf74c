"""Replacing a folder that was written here before: no foreign file is removed, and at each moment the old one or the
new one exists as a whole. No torch.

`replace_folder` leaves a manifest, `written.json`, in the new folder: the names of the files that were written. Only a
folder that holds nothing else is replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from shuhari.store.files import read_file, replace_file, sync_directory

MANIFEST = "written.json"
_NAMED, _LARGEST = 8, 2**24  # names in a message; bytes of a manifest


def replace_folder(target: Path, new: Path, own: Collection[str] = ()) -> None:
    """Move the folder `new`, which lies beside it, to `target`, which need not exist. The old one is renamed to
    `.old-<name>` first, and its files are removed last.

    own: patterns of names, such as `tensors*.safetensors`, of files that count as written here in an old folder without
    a manifest. FileExistsError for a target that holds anything else; then nothing is changed."""
    old = find_old(target)
    for folder in (target, old):
        refuse_foreign(folder, own)
    text = json.dumps({"written": _list_files(new)}, indent=1)
    replace_file(new / MANIFEST, [text.encode(), b"\n"])
    if os.path.lexists(target):
        _remove(old, own)
        target.rename(old)
    new.rename(target)
    with suppress(OSError):  # what cannot be removed is seen to the next time
        sync_directory(target.parent)
        _remove(old, own)


def refuse_foreign(target: Path, own: Collection[str] = ()) -> None:
    """Raise FileExistsError if `replace_folder` would not replace what is at `target`, naming the foreign files."""
    if target.is_symlink() or (os.path.lexists(target) and not target.is_dir()):
        kind = "link" if target.is_symlink() else "file"
        raise FileExistsError(f"{target} is a {kind}: expected a folder, or a name that is free")
    if others := _list_others(target, own):
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        names = ", ".join(map(repr, others[:_NAMED])) + more
        raise FileExistsError(f"{target} holds what was not written there by shuhari ({names}): nothing was changed; "
                              "move it away, or choose another folder")  # fmt: skip


def find_old(target: Path) -> Path:
    """Return the path of the old folder while the new one is moved in, and after a kill between the two renames."""
    return target.with_name(f".old-{target.name}")


def _list_others(folder: Path, own: Collection[str]) -> list[str]:
    """Return the files of a folder that were not written here, by their names in it."""
    there = [name for name in _list_files(folder) if name != f".tmp-{MANIFEST}"]  # which a kill leaves
    written: Collection[str] | None = None
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        if MANIFEST in there and (folder / MANIFEST).stat().st_size <= _LARGEST:
            found = json.loads(read_file(folder / MANIFEST))["written"]
            written = {name for name in found if isinstance(name, str)} | {MANIFEST}
    if written is not None:  # names are compared, and make no path: whatever the manifest says, only what is there goes
        return [name for name in there if name not in written]
    return [
        name
        for name in there
        if not any(fnmatchcase(name, pattern) for pattern in own)
    ]


def _list_files(folder: Path) -> list[str]:
    """Return everything below a folder except folders; links are included, and not followed."""
    found = []
    for at, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        found += [(Path(at) / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(found)


def _remove(folder: Path, own: Collection[str]) -> None:
    """Remove a folder of ours; if it got something else meanwhile, it stays as it is."""
    if not folder.is_dir() or _list_others(folder, own):
        return
    for name in sorted(_list_files(folder), key=MANIFEST.__eq__):  # the manifest last: until then all have a name
        (folder / name).unlink()
    for at, *_ in os.walk(folder, topdown=False):
        os.rmdir(at)
