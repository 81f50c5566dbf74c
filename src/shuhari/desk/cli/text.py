"""Printing for the commands: all output goes through here and is made printable, because names and texts of a run may
come from anybody. rich is imported when something is printed."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from shuhari.desk.plain import to_finite
from shuhari.kernel.printable import make_printable as make_printable

ROOT = str(Path(__file__).parents[2])  # of this library's code
NOTHING = 1  # exit code if nothing with the given name was found, as of grep


def say(text: str = "") -> None:
    """Print a line to stdout."""
    typer.echo(make_printable(text))


def note(text: str) -> None:
    """Print a line to stderr."""
    typer.echo(make_printable(text), err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON; types that JSON does not have become text, NaN becomes null."""
    text = json.dumps(to_finite(value), indent=2, default=str, allow_nan=False, ensure_ascii=False)
    say(_ODD.sub(lambda found: _spell(found[0]), text))


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_ODD = re.compile(r"[^\n -~]")  # characters that may have to be escaped


def _spell(c: str) -> str:
    """Return a character of a JSON text as it is, or as its JSON escape."""
    return c if c.isprintable() else json.dumps(c)[1:-1]


def print_csv(columns: Mapping[str, Sequence[Any]]) -> None:
    """Print columns as CSV to stdout; `write_csv` makes them printable."""
    from shuhari.lab.plot import write_csv

    write_csv(columns, sys.stdout)


def make_console(*, err: bool = False) -> Any:
    """Return rich's console; for texts of a run, use `make_text`."""
    from rich.console import Console

    return Console(stderr=err)


def make_text(text: str, style: str = "") -> Any:
    """Return a text for rich: printable, and without markup."""
    from rich.text import Text

    return Text(make_printable(text), style=style)


@contextmanager
def printable_log() -> Iterator[None]:
    """Make warnings, and log records without a handler, printable while inside. Warnings of this library and of
    Gymnasium, which has its own in colour, are a line; the same warning is printed once."""
    last, write, printed = logging.lastResort, warnings.formatwarning, set[str]()
    assert last is not None
    form = last.format
    last.format = lambda record: make_printable(form(record))  # type: ignore[method-assign]

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        text = _COLOUR.sub("", str(message))
        plain = text != str(message) or (category is UserWarning and filename.startswith(ROOT))
        told = f"warning: {text.removeprefix('WARN: ')}\n"
        told = make_printable(told if plain else write(message, category, filename, lineno, line))
        known = told in printed
        printed.add(told)
        return "" if known else told

    warnings.formatwarning = show
    try:
        yield
    finally:
        last.format = form  # type: ignore[method-assign]
        warnings.formatwarning = write


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; cells are plain text, and an empty column is left out. In a pipe it is as wide as needed."""
    from rich import box
    from rich.table import Table

    cells = [
        [format_number(cell) for cell in row]
        for row in rows
    ]
    used = [
        i
        for i in range(len(columns))
        if not cells or any(row[i] not in ("", "-") for row in cells)
    ]
    console = make_console()
    if not console.is_terminal:
        console.width = 100_000
    shown = Table(box=box.SIMPLE_HEAD, title=make_text(title) if title else None, title_justify="left", pad_edge=False)
    for i in used:
        shown.add_column(make_text(columns[i]), overflow="fold")
    for row in cells:
        shown.add_row(*(make_text(row[i]) for i in used))
    console.print(shown)


def format_number(value: object) -> str:
    """Format a cell: numbers short, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def describe(card: Mapping[str, Any]) -> str:
    """Return the card of a data set on one line."""
    of, length = card["return"], card["length"]
    low, _, middle, _, high = of["quantiles"]
    spread = f"median {format_number(middle)}, {format_number(low)} to {format_number(high)}"
    weights = " + ".join(f"{format_number(w)} x {name}" for name, w in of.get("weights", {}).items())
    whose = f"trained reward{f', {weights}' if weights else ''}" if of["of"] == "reward" else of["of"]
    return (
        f"{card['episodes']} episodes, {card['transitions']} transitions; return ({whose}) "
        f"{format_number(of['mean'])} ({spread}), length {format_number(length['mean'])}, "
        f"coverage {format_number(card['coverage'])}; {card['digest'][:8]}"
    )


def describe_error(error: BaseException) -> str:
    """Return the message of an error, with its notes (which environment, which step) and the line of the user's own
    code that raised it."""
    message = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if isinstance(error, MemoryError):  # Python and numpy mostly raise it without a message
        message = f"there is not enough memory{f': {message}' if message else ''}; expected a smaller model, buffer or "
        message += "micro_batch, or a higher limit (ulimit -v says which one there is)"
    message = message or f"{type(error).__name__}, without a word"
    about = [*vars(error).get("__notes__", ()), *_find_own_line(error)]
    return f"{message} ({', '.join(about)})" if about else message


def _find_own_line(error: BaseException) -> list[str]:
    """Return [`file.py:12`] if the error comes from a file in or below the current folder."""
    from traceback import extract_tb

    frames = extract_tb(error.__traceback__)
    own = find_own_file(frames[-1].filename) if frames else ""
    return [f"{own}:{frames[-1].lineno}"] if own else []


def find_own_file(name: str) -> str:
    """Return the path of a source file relative to the current folder, if it is the user's own: in or below that
    folder, and not part of a package or this library; otherwise ""."""
    from pathlib import Path

    path, here = Path(name), Path.cwd()
    own = path.is_relative_to(here) and not {"site-packages", "shuhari"} & set(path.parts)
    return str(path.relative_to(here)) if own else ""
