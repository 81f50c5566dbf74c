"""The map of the field: docs/field.toml as tables by survey, and as a picture. `tables.py` writes both."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent
WIDE, CELL, ROW, LEFT = 900, 21, 30, 118  # of the picture, in pixels
SHADES = ("#e0e0e0", "#b7d3ea", "#5b9bd0", "#1f5f99")  # none, one, some, many


def read_surveys() -> list[dict[str, Any]]:
    """The surveys with their branches."""
    found: list[dict[str, Any]] = tomllib.loads((PAGES / "field.toml").read_text(encoding="utf-8"))["survey"]
    return found


def describe(name: str) -> str:
    """A thing that the library has, as a link, with what is known of it in brackets."""
    from shuhari.desk.analyzing import running
    from shuhari.lab import demonstrations
    from shuhari.lab.claims.kept_results import read_result
    from shuhari.lab.claims.wording import describe_verdict

    if ":" in name:
        kind, _, own = name.partition(":")
        return f"[`{own}`](settings.md#{kind}-{own})"
    page = f"src/shuhari/methods/{name}/README.md"
    if not (PAGES.parent / page).is_file():
        return f"`{name}`"
    link, kept = f"[`{name}`](../{page})", read_result(name)
    if kept is not None:
        return f"{link} ({describe_verdict(kept, because=False)})"
    if name in running.list_packaged():
        return f"{link} (finding)"
    return f"{link} (demonstration)" if demonstrations.read_result(name) is not None else link


def field() -> Iterator[str]:
    """Each survey: its question, its branches, what is here of each, and what is missing."""
    from reference import row  # beside this file

    for survey in read_surveys():
        yield f"## {survey['question']}"
        yield ""
        paper = f"[{survey['title']}](https://arxiv.org/abs/{survey['arxiv']})"
        yield f"{paper}, {survey['arxiv']}. Begin: `{survey['begin']}`."
        yield ""
        yield row("", "branch", "here", "missing")
        yield row("---", "---", "---", "---")
        last = ""
        for branch in survey["branch"]:
            axis = "" if branch["axis"] == last else branch["axis"]
            last = branch["axis"]
            here = ", ".join(map(describe, branch["has"])) or "nothing"
            yield row(axis, branch["cell"], here, branch["missing"] or "-")
        yield ""


def picture() -> str:
    """The map as SVG: a row an axis, a cell a branch, darker the more there is; a mark where something is missing."""
    lines, y = [], 10
    for survey in read_surveys():
        lines.append(_write(8, y + 14, survey["title"].partition(":")[0], bold=True))
        y += 24
        axes: dict[str, list[Mapping[str, Any]]] = {}
        for branch in survey["branch"]:
            axes.setdefault(branch["axis"], []).append(branch)
        for axis, branches in axes.items():
            lines.append(_write(8, y + 15, axis))
            wide = (WIDE - LEFT - 8) / max(len(branches), 1)
            for i, branch in enumerate(branches):
                lines += _draw(LEFT + i * wide, y, wide - 3, branch)
            y += ROW
        y += 10
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {y}" width="{WIDE}" height="{y}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="10">')  # fmt: skip
    return "\n".join([head, f'<rect width="{WIDE}" height="{y}" fill="#ffffff"/>', *lines, "</svg>"]) + "\n"


def _draw(x: float, y: float, wide: float, branch: Mapping[str, Any]) -> list[str]:
    count = len(branch["has"])
    shade = SHADES[0 if not count else 1 if count == 1 else 2 if count < 4 else 3]
    dark = shade == SHADES[-1]
    most = max(4, int(wide / 5.2))
    text = branch["cell"] if len(branch["cell"]) <= most else branch["cell"][: most - 1] + "…"
    title = f"{branch['cell']}: {count} here; missing: {branch['missing'] or 'nothing'}"
    out = [f"<g><title>{escape(title)}</title>",
           f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{CELL}" fill="{shade}" rx="2"/>',
           _write(x + 4, y + 14, text, fill="#ffffff" if dark else "#000000")]  # fmt: skip
    if branch["missing"]:
        out.append(f'<rect x="{x + wide - 6:.1f}" y="{y}" width="6" height="6" fill="#d55e00"/>')
    return [*out, "</g>"]


def _write(x: float, y: float, text: str, *, bold: bool = False, fill: str = "#000000") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{weight}>{escape(text)}</text>'
