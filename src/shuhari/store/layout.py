"""The kinds of what is in a run's folder: the library's files are plain files, its folders are folders.

Anything else in the place of one (a named pipe, which blocks for ever; a folder, which no file can replace) would fail
at the end of a run, so it is checked at the start. Links lead out of the folder, so what is written or removed behind
one could be anybody's: a link in the place of `checkpoints` is examined (`linked`), others are refused. Files of others
are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shuhari.store import linked, schema
from shuhari.store.files import DamageError, Lock, describe_kind

TEXTS = ("recipe.toml", "summary.json", "data.json", "curves.png", "profile.json", "trace.json", "tags.json")
FOLDERS = ("checkpoints", "needs", "children")
TAGS_LOCK = "tags.lock"  # held, and there, while tags are written
MADE = "made_for.json"  # of a run that claims have made: for which, and as what
OF_CLAIMS = (MADE, "cpu.json", "diverged.txt", "error.txt")
CLAIMED = re.compile(r"[0-9a-f]{16}-s\d+")  # the folder of such a run: a digest of what it does, and its seed
OWN = (*schema.FILES, Lock.NAME, TAGS_LOCK, *TEXTS, *OF_CLAIMS, *FOLDERS)  # and `damaged-<n>`, of a repair


def find_odd(run: Path) -> dict[str, str]:
    """Return name below the run's folder -> what is wrong with it, for files and folders that are not of their kind."""
    wanted = [*((name, "file") for name in (*schema.FILES, Lock.NAME, *TEXTS, "needs/needs.json")),
              *((name, "folder") for name in (*FOLDERS, "checkpoints/rings"))]  # fmt: skip
    found = {}
    for name, kind in wanted:
        there = describe_kind(run / name)
        if there and there != kind:
            found[name] = f"{run / name} is a {there}: expected a {kind}"
    if why := linked.find_foreign(run):
        found["checkpoints"] = why
    for path in _list_links(run):
        found[str(path.relative_to(run))] = f"{path} is a link: expected none, as what is there is written or removed"
    for name in TEXTS:
        if describe_kind(run / f".tmp-{name}") == "folder":  # where the file is written before it is renamed
            found[f".tmp-{name}"] = f"{run / f'.tmp-{name}'} is a folder, and {name} is written there first"
    return {name: what for name, what in found.items() if not name.startswith(("needs/", "checkpoints/"))
            or name.partition("/")[0] not in found}  # fmt: skip


def _list_links(run: Path) -> Iterator[Path]:
    """Yield the links in places where the library writes or removes directly: the database, which SQLite would write to
    behind a link, and all folders except `checkpoints`, with the entries that are another ring, or another run."""
    rings, children = run / "checkpoints" / "rings", run / "children"
    for path in (*(run / name for name in (*schema.FILES, "needs", "needs/modules", "shared")), rings, children):
        if path.is_symlink():
            yield path
        elif path in (rings, children) and path.is_dir():
            yield from (p for p in sorted(path.iterdir()) if p.is_symlink())


def refuse_odd(run: Path) -> None:
    """Raise DamageError if something is not of its kind."""
    for name, what in find_odd(run).items():
        begun = name != Lock.NAME and (run / schema.FILE).exists()
        raise DamageError(what, hint_at(run) if begun else "move it away, or choose another folder with --run")


def hint_at(run: Path) -> str:
    """Return what to do about a damaged run."""
    return f"`shuhari doctor {run}` says what is whole, and can repair it; nothing was changed"


def is_child(run: Path) -> bool:
    """Whether a run was made by a claim, which names it by a digest and its seed, or by a study, in whose folder it
    is."""
    if CLAIMED.fullmatch(run.name):
        return True
    return run.parent.name == "children" and (run.parent.parent / schema.FILE).exists()
