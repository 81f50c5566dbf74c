"""`explain`: what a recipe changes compared to its base, and the resulting algorithm, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from shuhari.desk.cli.catalogue import Json
from shuhari.desk.cli.text import print_json, say

if TYPE_CHECKING:
    from shuhari.desk.algorithm import Item, Line
    from shuhari.desk.explaining import Change, Explanation, Method, Stage

WIDEST = 120  # columns


def explain(
    recipe: Annotated[str, typer.Argument(help="family/method, a .toml file, or the folder of a run.")],
    methods: Annotated[list[str] | None, typer.Option("--with", help="Lay a method over it; may be repeated.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b.c=value; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A key to take out, a.b.c; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """Explain what a method changes of its base, a recipe of the one that it extends, or --set of a recipe, and the
    algorithm in words.

    A star marks changes. `train --dry-run` has every value. If it would refuse the recipe, the reason is shown at the
    end, and the exit status is 2.

    Example: shuhari explain rlvr/clip_cov
    """
    from shuhari.config.overlay import RecipeError
    from shuhari.desk.explaining import explain as read

    try:
        found = read(recipe, sets or [], methods or [], remove or [])
    except RecipeError as error:
        raise RecipeError("", f"{error}{_point_to_setting(recipe)}") from None
    if json:
        print_json(_to_plain(found))
    else:
        for line in _write(found):
            say(line)
    if found.refused:
        raise typer.Exit(2)


def _point_to_setting(word: str) -> str:
    """Where a word that is no recipe is explained, if it is the name of a setting; "" otherwise."""
    from shuhari.config.named import find_name
    from shuhari.desk.sentences import find_owners

    owners = find_owners(word) if word.isidentifier() and find_name(word) is None else []
    return f"; {word!r} is a setting of {owners[0]}: `shuhari components {word}`" if owners else ""


def _to_plain(found: Explanation) -> dict[str, object]:
    from dataclasses import asdict

    def change(one: Change) -> dict[str, object]:
        return {"key": one.key, **{k: v for k, v in asdict(one).items() if k != "path"}}

    stages = [{**asdict(stage), "changes": [change(one) for one in stage.changes],
               "loop": [{**asdict(line), "changed": line.changed} for line in stage.loop]}
              for stage in found.stages]  # fmt: skip
    return {**asdict(found), "run": [change(one) for one in found.run], "stages": stages}


def _write(found: Explanation) -> Iterator[str]:
    yield f"# {found.name}: {found.summary}" if found.summary else f"# {found.name}"
    yield f"# what differs from {found.base}:" if found.base else "# it builds on no other recipe; all that it sets:"
    yield from _write_changes(found.run)
    for name in found.gone:
        yield f"  without the stage {name}"
    for stage in found.stages:
        yield ""
        yield from _write_stage(stage, found.base)
    for method in found.methods:
        yield ""
        yield from _write_method(method)
    if found.base and not found.refused:
        yield f"{'' if found.methods else chr(10)}to use   {found.command}"
    for note in found.notes:
        yield _wrap("note     ", note, 9)
    if found.refused:
        yield _wrap("", f"would be refused: {found.refused}", 9)


def _write_stage(stage: Stage, base: str) -> Iterator[str]:
    name = f"## {stage.name}{f', {stage.times} times' if stage.times > 1 else ''}"
    if not stage.changes:
        yield f"{name}: as in {base}"
        return
    yield f"{name}{': the base has no such stage' if stage.new else ''}"
    yield from _write_changes(stage.changes)
    yield ""
    width = max(len(line.section) for line in stage.loop)
    for line in stage.loop:
        yield _wrap(f"{'*' if line.changed else ' '} {line.section:<{width}}  ", _write_line(line), width + 4)


def _write_changes(changes: Sequence[Change]) -> Iterator[str]:
    from shuhari.desk.plain import format_value

    for one in changes:
        if one.kind == "removed":
            value = "" if one.base is None else format_value(one.base)
            known = f" ({_annotate(value, one.base_note)})" if one.base not in (None, one.path[-1]) else ""
            text = f"without {one.key}{known}"
        elif one.kind == "kept":
            text = f"{one.key} = what the base has in its place ({one.value})"
        else:
            text = f"{one.key} = {_annotate(format_value(one.value), one.note)}"
            text += "" if one.base is None else f"  (base: {_annotate(format_value(one.base), one.base_note)})"
        yield _wrap("  ", f"{text}{f'  {one.says}' if one.says else ''}  [{one.origin}]", 6)


def _annotate(value: str, note: str) -> str:
    return f"{value}, {note}" if note else value


def _write_line(line: Line) -> str:
    return "; ".join(_write_item(item, len(line.items) > 1) for item in line.items)


def _write_item(item: Item, several: bool) -> str:
    star = "*" if item.changed and several else ""
    detail = f" ({item.detail})" if item.detail else ""
    says = f": {item.says.rstrip('.')}" if item.says else ""
    return f"{star}{item.name}{detail}{says}"


def _write_method(method: Method) -> Iterator[str]:
    if method.title:
        yield _wrap("paper    ", f"{method.title}{f', arXiv {method.arxiv}' if method.arxiv else ''}", 9)
    if method.page:
        yield f"page     {method.page}"


def _wrap(head: str, text: str, indent: int) -> str:
    width = min(WIDEST, max(60, get_terminal_size((WIDEST, 24)).columns))
    return fill(text, width, initial_indent=head, subsequent_indent=" " * indent, break_on_hyphens=False,
                break_long_words=False)  # fmt: skip
