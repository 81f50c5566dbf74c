"""A run as HTML for notebooks: facts, held-out scores, alarms, a sample, and its plot inline.

Plain tables and one image, without scripts or styles. All text from outside (a model's answers, error messages, names)
is escaped. Nothing is measured, and the run does not change.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from shuhari.desk.ends import draw, tabulate_ends
from shuhari.lab.diagnosis import diagnose
from shuhari.store import Run

CUT = 300  # characters of a text from outside
MESSAGES = 3  # the most problems that are shown, the last ones


def make_page(path: Path) -> str:
    """Return the HTML of a run on disk, also of one in training."""
    run = Run(path)
    columns, recipe, summary = run.metrics(), run.recipe, run.summary or {}
    began = run.get("began", {})
    parts = [_make_facts(run, columns), _make_ends(summary)]
    alarms = [" ".join(finding.list_lines()[:2]) for finding in diagnose(columns, recipe, began)]
    wrong = dict.fromkeys(str(event["data"]) for event in run.events("problem"))
    parts += [_make_list("alarms", alarms), _make_list("problems", list(wrong)[-MESSAGES:]), _make_sample(run)]
    picture = BytesIO()
    try:
        draw(recipe, columns, summary, picture)
    except ValueError:  # no step with a number yet
        pass
    else:
        data = b64encode(picture.getvalue()).decode("ascii")
        parts.append(f'<img alt="curves of the run" style="max-width: 100%" src="data:image/png;base64,{data}">')
    return f"<div>{''.join(parts)}</div>"


def make_table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of plain text; the first cell of a row is its header. None is an empty cell."""
    top = "".join(f"<th>{spell(head)}</th>" for head in heads)
    body = "".join(
        f"<tr><th>{spell(first)}</th>{''.join(f'<td>{spell(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"


def spell(value: object) -> str:
    """Return a value as escaped text: numbers short, long text cut, control characters replaced."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= CUT else f"{text[:CUT]}…"
    return escape("".join(c if c.isprintable() or c == "\n" else "�" for c in text))


def _make_facts(run: Run, columns: Mapping[str, Sequence[Any]]) -> str:
    recipe = run.recipe
    wall = columns.get("wall", ())
    seconds = f"{wall[-1]:.0f} s" if len(wall) and wall[-1] is not None else None
    rows = [("recipe", recipe.get("name", "")), ("seed", recipe.get("seed", 0)), ("status", run.status)]
    rows += [("steps", max(run.step, 0)), ("time", seconds), ("folder", run.path)]
    return make_table((), [row for row in rows if row[1] is not None])


def _make_ends(summary: Mapping[str, Any]) -> str:
    heads, rows = tabulate_ends(summary)
    return make_table(heads, rows) if rows else ""


def _make_list(head: str, lines: Sequence[str]) -> str:
    return f"<p>{head}</p><ul>{''.join(f'<li>{spell(line)}</li>' for line in lines)}</ul>" if lines else ""


def _make_sample(run: Run) -> str:
    """Return a table with a text sample from the last step's first stored group: the best one, unless the recipe
    changes it."""
    group = next(iter(run.rollouts()), None)
    steps = group["trajectories"][0].steps if group else ()
    said = [step.info["text"] for step in steps if isinstance(step.info.get("text"), str)]
    if group is None or not said:
        return ""
    prompt = group["trajectories"][0].request.problem.prompt
    return make_table((), [("prompt", str(prompt)), ("a sample", "\n".join(said))])
