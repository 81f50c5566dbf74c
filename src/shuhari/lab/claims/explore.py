"""Exploration: any method on any bed, measured without a protocol, and all results as a table of methods by beds.

A method, or several in order (`a+b`), is laid over a bed (any recipe that samples) and compared with the bed alone: by
the bed's score, averaged over its own budget, with a headline and no other checks. As no protocol was fixed beforehand,
the result does not count as a claim, and is stored apart (`results/explore/<bed>/`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError, read_budgets
from shuhari.config.recipe import load, read_method
from shuhari.data import EMPTY
from shuhari.lab.claims import cards
from shuhari.lab.claims.arms import check_arms
from shuhari.lab.claims.checks import BASELINE, METHOD, Check, is_share, name_quantity, read_checks
from shuhari.lab.claims.claim import FIRST, Claim, part_stages
from shuhari.lab.claims.looks import LOOKS
from shuhari.lab.claims.result import list_quantities
from shuhari.lab.claims.verdict import LEAST

JOINED = "+"  # joins methods that are applied together
SMALL, SMALL_SHARE = (
    0.02,
    0.05,
)  # margins without a card to measure noise: of a share in [0, 1]; otherwise, as a share of the bed's value
WHY = "any method on any bed: no protocol was fixed before"
FOLDER = "explore"


@dataclass(frozen=True)
class Cell:
    """A result of a method on a bed: the effect of its headline, and its interval."""

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


def explore(
    reference: str, bed: str, metric: str = "", margin: float = 0.0, seeds: int = 0, beds: Path | None = None
) -> Claim:
    """Return the comparison of a method, or of several joined by `+`, with the bed alone.

    metric: a reading of a curve (default: the bed's first score, as an area). margin: the smallest effect of interest
    (default: what the looks can find given the bed's card, otherwise `SMALL` or `SMALL_SHARE`). seeds: of a single
    look, which replaces the usual ones. beds: the folder of cards. Raises RecipeError if a method cannot be laid over
    the bed, or the bed has no budget of its own.
    """
    changes = [read_method(one) for one in ([reference] if Path(reference).is_file() else reference.split(JOINED))]
    base = load(bed)
    laid = replace(base.with_methods(changes), name=JOINED.join(change.name for change in changes))
    last = base.stages[-1]
    ((unit, amount),) = list(read_budgets(last).items())[:1] or [("", 0)]
    if unit in ("", "seconds"):
        raise RecipeError("", f"{bed}: expected a budget in steps, tokens or the like of its last stage, not in {unit}")
    whole = {METHOD: laid, BASELINE: base}
    names = list(base.tree.get("stage") or ())
    warm, arms = part_stages(whole, names[-2] if len(names) > 1 else "")
    if seeds and seeds < LEAST:
        raise RecipeError("", f"{seeds} seeds: expected {LEAST} or more")
    looks = (seeds,) if seeds else LOOKS
    numbers = tuple(range(FIRST, FIRST + looks[-1]))
    budget, says = (unit, float(amount)), f"{laid.name} on {base.name}, against that alone"
    made = Claim(laid, says, arms, (), numbers, budget, warm, (WHY,), looks=looks, bed=base.name)
    made = replace(made, checks=_check(metric or choose_metric(last), margin or SMALL, budget))
    check_arms(made.checks, whole, base.name)
    return made if margin else replace(made, checks=(_with_margin(made, beds),))


def _check(metric: str, margin: float, budget: tuple[str, float]) -> tuple[Check, ...]:
    table = {"role": "headline", "metric": metric, "direction": "up", "margin": margin}
    return read_checks([table], budget, premises=False)


def _with_margin(claim: Claim, beds: Path | None) -> Check:
    """Return the headline with a margin that can be detected given the noise of the bed's card; without a card, by the
    scale of the metric."""
    (check,), (quantity,) = claim.checks, list_quantities(claim)
    planned = cards.plan(cards.find(claim.bed, beds), check, quantity, claim.looks)
    if planned and math.isfinite(planned):
        return replace(check, rule=replace(check.rule, margin=float(f"{planned * 1.005:.3g}")))  # rounded up
    if is_share(str(check.quantity["metric"])):
        return check
    return replace(check, rule=replace(check.rule, margin=SMALL_SHARE, ratio=True, range=()))


def choose_metric(stage: Mapping[str, Any]) -> str:
    """Choose the score of a stage, as an area: exact if it is measured, otherwise of samples, otherwise greedy."""
    table = stage.get("evaluate") or EMPTY
    exact = next((name for name, one in (table.get("metrics") or EMPTY).items() if one.get("use", name) == "exact"), "")
    name = f"evaluate/{exact}.mean" if exact else "evaluate/mean" if table.get("samples", 1) > 1 else "evaluate/greedy"
    return f"{name}:area"


def folder_of(bed: str, out: Path) -> Path:
    """Return the folder of exploratory results on a bed."""
    return out / FOLDER / bed


def read_results(bed: str, out: Path) -> list[dict[str, Any]]:
    """Read the exploratory results on a bed."""
    return [result for result in read_every(out) if result["bed"] == bed]


def read_every(out: Path) -> list[dict[str, Any]]:
    """Read all exploratory results."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / FOLDER).rglob("claims/**/*.json"))]


def read_cells(out: Path) -> Iterator[Cell]:
    """Yield the cells of the results under `out`, claims first."""
    claims = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "claims").rglob("*.json"))]
    for i, result in enumerate([*claims, *read_every(out)]):
        head = result["headline"]
        bed = result.get("bed") or f"task {result['task'].get('name', '-')}"
        effect, low, high = (head.get(key) for key in ("effect", "low", "high"))
        yield Cell(result["method"], bed, name_quantity(head), effect, low, high, result["verdict"], i >= len(claims))


def arrange(out: Path) -> list[tuple[str, ...]]:
    """Return rows of text: a header of beds, then a row a method. If a claim and an exploration measured the same
    method on the same bed, the claim is shown."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in read_cells(out):
        found.setdefault((cell.method, cell.bed), cell)
    beds, methods = (
        {key[i]: None for key in sorted(found)}
        for i in (1, 0)
    )
    rows = [
        (m, *(str(found[m, b]) if (m, b) in found else "" for b in beds))
        for m in methods
    ]
    return [("method", *beds), *rows]
