"""What stands in a run's folder, and of which kind: files of the library are plain files, its folders folders.

Anything else in the place of one (a named pipe, which waits for ever; a folder, which no file can replace) would be met
at the end of a run, so it is looked for at its start. Links lead out of the folder, so what is written or removed
behind one could be anybody's: one in the place of `checkpoints` is looked into (`linked`), others are refused. What
others have put there is nobody's business here.
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
    """Name below the run's folder -> what is wrong with it, of what is not of the kind that the library makes."""
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
    """The links in the place of what is written, or removed, where it is: the database, which SQLite would write to
    behind a link, and folders but that of the checkpoints, with those in them that are another ring, or another run."""
    rings, children = run / "checkpoints" / "rings", run / "children"
    for path in (*(run / name for name in (*schema.FILES, "needs", "needs/modules", "shared")), rings, children):
        if path.is_symlink():
            yield path
        elif path in (rings, children) and path.is_dir():
            yield from (p for p in sorted(path.iterdir()) if p.is_symlink())


def refuse_odd(run: Path) -> None:
    """DamageError where something is not of its kind."""
    for name, what in find_odd(run).items():
        begun = name != Lock.NAME and (run / schema.FILE).exists()
        raise DamageError(what, hint_at(run) if begun else "move it away, or choose another folder with --run")


def hint_at(run: Path) -> str:
    """What to do about a run that is not what was written."""
    return f"`shuhari doctor {run}` says what is whole, and can repair it; nothing was changed"


def is_child(run: Path) -> bool:
    """Whether a run was made by a claim, which names it by a digest and its seed, or by a study, in whose folder it
    lies."""
    if CLAIMED.fullmatch(run.name):
        return True
    return run.parent.name == "children" and (run.parent.parent / schema.FILE).exists()
