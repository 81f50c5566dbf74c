"""Any method on any bed: what is looked at beside the claims, and all results as methods by beds.

An exploratory measurement lays a method over a bed (any recipe that samples) and compares it with the bed alone: the
score of the bed, averaged over its own budget, eight paired seeds, a 95 % interval. Nobody fixed a protocol for it, so
it decides nothing, and its results are kept apart (`results/explore/<bed>/`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shuhari.claims.arms import METHOD, check_arms
from shuhari.claims.checks import BASELINE, read_checks
from shuhari.claims.claim import FIRST, Claim, part_stages
from shuhari.config.overlay import RecipeError, budgets
from shuhari.config.recipe import load, read_method
from shuhari.data import EMPTY

SEEDS = 8
WHY = "any method on any bed: no protocol was fixed before"
FOLDER = "explore"


@dataclass(frozen=True)
class Cell:
    """What a result says of a method on a bed: the effect of its first check or headline, and its interval."""

    method: str
    bed: str
    metric: str
    effect: float | None
    low: float | None
    high: float | None
    verdict: str
    exploratory: bool

    def __str__(self) -> str:
        if self.effect is None or self.low is None or self.high is None:
            return self.verdict
        return f"{self.effect:+.3g} [{self.low:.2g}, {self.high:.2g}]{'?' if self.exploratory else ''}"


def explore(reference: str, bed: str, metric: str = "") -> Claim:
    """The comparison of a method on a bed with the bed alone. metric: a reading of a curve; default: the first score
    that the bed reports, as an area. RecipeError where it cannot be laid there, or the bed has no budget of its own."""
    change, base = read_method(reference), load(bed)
    laid = replace(base.laid([change]), name=change.name)
    last = base.stages[-1]
    ((unit, amount),) = list(budgets(last).items())[:1] or [("", 0)]
    if unit in ("", "seconds"):
        raise RecipeError("", f"{bed}: expected a budget in steps, tokens or the like of its last stage, not in {unit}")
    checks = read_checks([{"metric": metric or score(last), "direction": "up"}], (unit, float(amount)))
    whole = {METHOD: laid, BASELINE: base}
    check_arms(checks, whole, "")
    names = list(base.tree.get("stage") or ())
    warm, arms = part_stages(whole, names[-2] if len(names) > 1 else "")
    says = f"{change.name} on {base.name}, against that alone"
    return Claim(laid, says, arms, checks, tuple(range(FIRST, FIRST + SEEDS)), (unit, float(amount)), warm, (WHY,),
                 bed=base.name)  # fmt: skip


def score(stage: Mapping[str, Any]) -> str:
    """The area of the score that a stage is measured by: exact where it is, else of samples, else greedy."""
    told = stage.get("evaluate") or EMPTY
    exact = next((name for name, one in (told.get("metrics") or EMPTY).items() if one.get("use", name) == "exact"), "")
    name = f"evaluate/{exact}.mean" if exact else "evaluate/mean" if told.get("samples", 1) > 1 else "evaluate/greedy"
    return f"{name}:area"


def folder_of(bed: str, out: Path) -> Path:
    """Where results on a bed are kept, apart from those of claims."""
    return out / FOLDER / bed


def cells(out: Path) -> Iterator[Cell]:
    """What the results under `out` say, claims first."""
    claims = sorted((out / "claims").rglob("*.json"))
    for path in [*claims, *sorted((out / FOLDER).rglob("*.json"))]:
        result = json.loads(path.read_text(encoding="utf-8"))
        check = result.get("headline") or result["checks"][0]
        effect = check.get("effect", check.get("difference"))
        bed = result.get("bed") or f"task {result['task'].get('name', '-')}"
        metric, low, high = check.get("metric") or check.get("use", ""), check.get("low"), check.get("high")
        yield Cell(result["method"], bed, metric, effect, low, high, result["verdict"], path not in claims)


def matrix(out: Path) -> list[tuple[str, ...]]:
    """Rows of text: the beds, then a method a row with what was found on each. Of a claim and an exploration of one
    method on one bed the claim stands."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells(out):
        found.setdefault((cell.method, cell.bed), cell)
    beds, methods = ({key[i]: None for key in sorted(found)} for i in (1, 0))
    rows = [(m, *(str(found[m, b]) if (m, b) in found else "" for b in beds)) for m in methods]
    return [("method", *beds), *rows]
