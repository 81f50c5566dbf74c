"""`diagnose`: what is wrong with a run, by rules over its stored numbers; read-only, also during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.desk.cli.text import make_printable, note, print_json, say

if TYPE_CHECKING:
    from shuhari.lab.diagnosis import Finding


def diagnose(
    run: Annotated[str, typer.Argument(help="A path, a name under runs/, or `latest`.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Diagnose a run: each number out of its healthy range, the likely cause, and what helps.

    Example: shuhari diagnose latest
    """
    from shuhari.lab.diagnosis import RULES
    from shuhari.lab.diagnosis import diagnose as judged
    from shuhari.store import Run, resolve

    path = Path(resolve(run))
    opened = Run(path)
    columns, problems = opened.metrics(), list(dict.fromkeys(str(e["data"]) for e in opened.events("problem")))
    if json:
        from shuhari.desk.causes import try_causes

        found = [
            finding.to_json() | {"tried": try_causes(finding, path)}
            for finding in judged(columns, opened.recipe, opened.get("began", {}))
        ]
        print_json(
            {"run": str(path), "step": opened.step, "rules": len(RULES), "findings": found, "problems": problems}
        )
        return
    if not columns["step"]:
        note("no step is stored yet")
        return
    say_findings(columns, opened.recipe, path)
    for text in problems[-5:]:
        note(f"problem: {make_printable(text, 500)}")


def describe_finding(word: str, finding: Finding, path: Path) -> str:
    """Return a finding in three lines, with commands ready to copy, and a fourth if the stored answers show the
    cause."""
    from shuhari.desk.causes import try_causes

    tried = try_causes(finding, path)
    lines = [*finding.list_lines(), *[f"Tried: {tried}"] * bool(tried)]
    return f"{word}: " + "\n    ".join(lines).replace("show RUN", f"show {path}")


def say_findings(columns: Mapping[str, Sequence[Any]], recipe: Mapping[str, Any], path: Path) -> None:
    """Print the findings of the rules in a run, or that there are none."""
    from shuhari.lab.diagnosis import describe_health
    from shuhari.lab.diagnosis import diagnose as judged
    from shuhari.store import Run

    found = judged(columns, recipe, Run(path).get("began", {}))
    for finding in found:
        say(describe_finding("diagnosis", finding, path))
    if not found:
        say(f"diagnosis: {describe_health(columns, recipe)}")

