"""`runs`: lists runs on disk, selects some by words, and tags, renames or removes them on request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import NOTHING, format_number, note, print_json, print_table, say

NOTE = 80  # characters of a reason


READS = {"": "--json --size --all", "--rm": "--yes --all", "--rename": "", "--tag": "--untag --json --all",
         "--untag": "--tag --json --all"}  # fmt: skip


def runs(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(help="Only runs with each word in name, recipe, task or tags (`tag:x`).")
    ] = None,
    root: Annotated[Path, typer.Option(help="The folder that holds the runs.")] = Path("runs"),
    status: Annotated[str, typer.Option(help="Only those: running, complete, failed, stopped or unreadable.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that claims and studies have made.")] = False,
    rm: Annotated[bool, typer.Option("--rm", help="Remove the runs that the words or the status choose.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them without asking.")] = False,
    rename: Annotated[str, typer.Option(metavar="NAME", help="Give the one run of that name another.")] = "",
    tag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Give the chosen runs a tag.")] = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Take a tag from them.")] = None,
    size: Annotated[bool, typer.Option("--size", help="Show what each takes on disk.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs under runs/: recipe, task, date, status, steps, last score.

    Runs made by claims and studies are listed with --all, by method, arm and seed.

    Example: shuhari runs grpo --status failed
    """
    from dataclasses import asdict, replace

    from shuhari.data import nearest
    from shuhari.lab.plot import name_metric
    from shuhari.store import list_runs, tag_run
    from shuhari.store.listing import STATUSES, read_tags
    from shuhari.store.space import format_size, measure_size

    check_together(ctx, READS)
    if status and status not in STATUSES:
        raise typer.BadParameter(f"{status!r}: {nearest(status, STATUSES)}", param_hint="--status")
    for asked, option in ((rm, "--rm"), (tag, "--tag"), (untag, "--untag")):
        if asked and not (words or status):
            raise typer.BadParameter("which runs? give words of their names, or --status", param_hint=option)
    if rename:
        _rename(words or [], rename, root)
        return
    found = list_runs(root, words or (), status, everything)
    if tag or untag:
        for r in found:
            tag_run(r.path, tag or (), untag or ())
        found = [replace(r, tags=read_tags(r.path)) for r in found]
    sizes = [measure_size(r.path) for r in found] if size else []
    if json:
        listed = [asdict(r) for r in found]
        print_json([{**r, "bytes": n} for r, n in zip(listed, sizes, strict=True)] if size else listed)
    if not found and words and words[0] in ("rm", "remove", "delete") and words[1:]:
        raise typer.BadParameter(f"runs are removed by an option: shuhari runs {' '.join(words[1:])} --rm",
                                 param_hint=words[0])  # fmt: skip
    if not found:
        of = f" with {' '.join([*(words or ()), status]).strip()}" if words or status else ""
        near = [
            _guess(word, [r.name for r in list_runs(root)])
            for word in words or ()
        ]
        yet = "" if of else " yet: `shuhari train baselines/quickstart` makes one"
        note("; ".join([f"no run{of} is in {root}/{yet}", *filter(None, near), *_count_hidden(root, everything)]))
        if words:
            raise typer.Exit(NOTHING)
    if json or not found:
        return
    rows = list[tuple[str, ...]]()
    for r in found:
        steps = "-" if r.step < 0 else f"{r.step}/{r.total}" if r.total else str(r.step)
        score = "-" if r.score is None else f"{format_number(r.score)} ({name_metric(r.score_name, r.measure)})"
        rows.append((r.name, r.recipe, r.task, r.date, r.status, steps, score, " ".join(r.tags), _cut(r.note)))
    heads: tuple[str, ...] = ("run", "recipe", "task", "date", "status", "step", "score", "tags", "")
    if size:
        heads = ("run", "size", *heads[1:])
        rows = [(row[0], format_size(n), *row[1:]) for row, n in zip(rows, sizes, strict=True)]
        rows.append(("all", format_size(sum(sizes)), *[""] * (len(heads) - 2)))
    print_table(heads, rows)
    for line in _count_hidden(root, everything):
        note(line)
    if rm:
        _remove([r.path for r in found if r.status != "running"], yes)


def _count_hidden(root: Path, everything: bool) -> list[str]:
    """Return a line on how many runs made by claims or studies are not listed; empty if there are none."""
    from shuhari.store.directory import find_runs
    from shuhari.store.layout import is_child

    hidden = 0 if everything else sum(map(is_child, find_runs(root)))
    return [f"{hidden} more {'were' if hidden > 1 else 'was'} made by claims or studies: --all"] if hidden else []


def _guess(word: str, names: list[str]) -> str:
    """Return a suggestion for a word that matches no name; "" if it matches one."""
    from shuhari.data import nearest

    near = "" if any(word.lower() in name.lower() for name in names) else nearest(word, names)
    return near if near.startswith("did you mean") else ""


def _cut(note: str) -> str:
    """Return the first line of why a run failed, cut to a table cell; `show` and --json have all of it."""
    first, _, rest = note.strip().partition("\n")
    return f"{first[:NOTE].rstrip()}…" if rest or len(first) > NOTE else first


def _rename(words: list[str], name: str, root: Path) -> None:
    """Rename one run, given by its full name."""
    from shuhari.store import rename_run, resolve

    if len(words) != 1:
        raise typer.BadParameter("which run? give its name: shuhari runs OLD --rename NEW", param_hint="--rename")
    path = resolve(words[0], root)
    say(f"renamed {path} to {rename_run(path, name, root)}")


def _remove(paths: list[Path], yes: bool) -> None:
    """Remove runs, after a confirmation on the terminal."""
    from shuhari.store import remove_run

    if paths and not yes and not typer.confirm(f"remove {len(paths)} run{'s' * (len(paths) > 1)}?"):
        note("nothing was removed")
        return
    for path in paths:
        left = remove_run(path)
        say(f"removed {path}" + (f", but for {', '.join(left)}, which the library has not written" if left else ""))
