"""A table of arms for a paper: LaTeX (booktabs), CSV or Markdown, by the file's suffix.

Each arm has its mean with a 95 % interval over seeds, its difference to the first arm with an interval, the number of
seeds, and the level of that interval, which is corrected for several comparisons. Labels that somebody gives to metrics
are written as they are, so that they may hold LaTeX.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuhari.desk.contrasts import format_confidence
from shuhari.kernel.printable import make_cell
from shuhari.store.files import replace_file, translate_errors

if TYPE_CHECKING:
    from shuhari.desk.sides import Sides

Rows = list[list[str]]


def write_table(sides: Sides, to: Path) -> None:
    """Write a table and create its folder. Raises ValueError for an unknown suffix, with the known ones."""
    if to.suffix.lower() not in WRITERS:
        raise ValueError(f"{to.name} ends with {to.suffix or 'nothing'}: expected {', '.join(WRITERS)}")
    text = WRITERS[to.suffix.lower()](sides)
    with translate_errors(f"write {to}"):
        to.parent.mkdir(parents=True, exist_ok=True)
        replace_file(to, [text.encode()])


def _list_metrics(sides: Sides) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    return {sides.metric: sides.arms, **sides.guards}


def _tabulate(sides: Sides, dash: str, show: Callable[[str], str]) -> tuple[list[str], Rows]:
    """Return (header, rows) as text, with further columns for each guard."""
    heads, rows = ["arm", "seeds"], [[show(name), str(entry["n"])] for name, entry in sides.arms.items()]
    for metric, arms in _list_metrics(sides).items():
        heads += [sides.labels.get(metric) or show(metric), show(f"difference to {sides.first}"), "level"]
        for row, name in zip(rows, sides.arms, strict=True):
            entry = arms.get(name, {})
            row.append(_write(entry, "value", "own_low", "own_high", dash))
            row.append(_write(entry, "difference", "low", "high", dash))
            row.append(format_confidence(entry.get("level", math.nan)) or dash)
    return heads, rows


def _write(entry: Mapping[str, Any], value: str, low: str, high: str, dash: str) -> str:
    """Format a number with its interval, to two digits of half the interval's width; a dash if there is none."""
    x = entry.get(value, math.nan)
    if math.isnan(x):
        return dash
    a, b = entry.get(low, math.nan), entry.get(high, math.nan)
    if math.isnan(a) or math.isnan(b):
        return f"{x:.4g}"
    half = (b - a) / 2
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 4
    return f"{x:.{digits}f} [{a:.{digits}f}, {b:.{digits}f}]"


def _describe(sides: Sides) -> list[str]:
    """Return the notes below the table."""
    paired = all(entry.get("paired", True) for entry in sides.arms.values())
    how = "paired by seed" if paired else "not paired"
    told = [f"Means over seeds with 95 % intervals; differences to {sides.first} {how}; Student's intervals.",
            *(f"{text[0].upper()}{text[1:]}." for text in sides.caveats)]  # fmt: skip
    return ["".join(filter(str.isprintable, line)) for line in told]


def _write_latex(sides: Sides) -> str:
    heads, rows = _tabulate(sides, "--", _escape)
    lines = [f"% {line}" for line in [*_describe(sides), r"needs \usepackage{booktabs}"]]
    lines += [f"\\begin{{tabular}}{{lr{'llr' * (1 + len(sides.guards))}}}", "\\toprule"]
    body = [re.sub(r"(?<!\\)%", r"\\%", " & ".join(row)) + r" \\" for row in (heads, *rows)]
    lines += [body[0], "\\midrule", *body[1:]]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
           **{c: f"\\{c}" for c in "&$#_{}"}}  # fmt: skip


def _escape(text: str) -> str:
    """Escape one line of text for LaTeX, except `%`, which the caller escapes."""
    return "".join(ESCAPED.get(c, c) for c in text if c.isprintable())


def _write_markdown(sides: Sides) -> str:
    heads, rows = _tabulate(sides, "–", lambda text: text.replace("|", r"\|").replace("\n", " "))
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join([*lines, "", *_describe(sides), ""])


def _write_csv(sides: Sides) -> str:
    """Return all numbers unrounded, a line for each arm and metric."""
    keys: Sequence[str] = ("value", "own_low", "own_high", "difference", "low", "high", "level", "p", "n")
    heads = ("metric", "arm", "mean", "mean_low", "mean_high", "difference", "difference_low", "difference_high",
             "level", "p", "seeds")  # fmt: skip
    to = io.StringIO()
    out = csv.writer(to, lineterminator="\n")
    out.writerow(heads)
    for metric, arms in _list_metrics(sides).items():
        for name, entry in arms.items():
            out.writerow([make_cell(metric), make_cell(name), *(_plain(entry.get(key)) for key in keys)])
    return to.getvalue()


def _plain(value: Any) -> str:
    return "" if value is None or value != value else repr(value)


WRITERS: Mapping[str, Callable[[Any], str]] = {".tex": _write_latex, ".csv": _write_csv, ".md": _write_markdown}
