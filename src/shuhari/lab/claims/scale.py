"""The same claim on other beds: does a verdict hold at another size of the policy, or on another task?

A method's claim keeps its headline, margin, guard and budget on another bed (`beds/trie/twins4_400k`), whose learning
rate was fixed on the baseline there. Results are stored apart (`results/scale/<bed>/claims/<family>/<method>.json`) and
do not change verdicts; together with the claim's own they show whether effects keep their sign and order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from shuhari.config.recipe import load
from shuhari.kernel.stats import Estimate
from shuhari.lab.claims import cards
from shuhari.lab.claims.claim import Claim, read
from shuhari.lab.claims.verdict import HELD, Rule

FOLDER = "scale"
LEAST = 5  # methods; with fewer a rank correlation has no interval


def read_on(reference: str, bed: str, *, smoke: bool = False, beds: Path | None = None) -> Claim:
    """Return the claim of a method on another bed than its own: its headline, guard and premises. Ablations are
    dropped, and so are premises about arms that neither the claim nor this bed's card has. beds: the folder of cards.
    Raises RecipeError."""
    claim = read(reference, smoke=smoke, bed=bed)
    card = cards.find(claim.bed, beds)
    known = cards.list_arms(claim, card)
    asked = [c for c in claim.checks if c.rule.role != "because"]
    kept = [c for c in asked if c.rule.role != "premise" or {*c.arms} <= known]
    notes = [f"On {claim.bed}; ablations were not asked."]
    if gone := len(asked) - len(kept):
        notes.append(f"It has no card: {gone} premises about other arms than the claim's were not asked.")
    return replace(claim, checks=tuple(kept), notes=(*claim.notes, *notes))


def folder_of(bed: str, out: Path) -> Path:
    """Return the folder of results on another bed, apart from those of claims."""
    return out / FOLDER / load(bed).name


def find_beds(out: Path, method: str = "") -> list[str]:
    """Return the other beds on which anything, or the given method, was measured."""
    found = (out / FOLDER).rglob(f"claims/{method or '*/*'}.json")
    return sorted({path.relative_to(out / FOLDER).as_posix().partition("/claims/")[0] for path in found})


def read_results(out: Path) -> list[dict[str, Any]]:
    """Read the results on other beds."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / FOLDER).rglob("claims/**/*.json"))]


@dataclass(frozen=True)
class Sized:
    """A result of a method: the number of its policy's weights, and its effect with the interval in units of the
    margin; NaN if nothing was measured."""

    bed: str
    weights: int
    effect: float
    low: float
    high: float
    verdict: str


def by_size(claimed: Iterable[Mapping[str, Any]], elsewhere: Iterable[Mapping[str, Any]]) -> dict[str, list[Sized]]:
    """Return method -> its results, for methods measured on their own bed and on others by the same headline and
    margin: the claim's own first, then by number of weights."""
    own = {result["method"]: result for result in claimed}
    others: dict[str, list[Sized]] = {}
    for result in elsewhere:
        if result["method"] in own and _asked(result) == _asked(own[result["method"]]):
            others.setdefault(result["method"], []).append(_sized(result))
    sizes = {name: sorted(found, key=lambda s: (s.weights, s.bed)) for name, found in others.items()}
    return {name: [_sized(own[name]), *sizes[name]] for name in sorted(sizes)}


def correlate_ranks(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Estimate:
    """Return Spearman's rank correlation of two series [N] with an interval by Fisher's z, with variance 1.06 / (N - 3)
    (Fieller, Hartley and Pearson 1957). The interval is NaN with fewer than `LEAST` pairs, everything if a series is
    constant. Pairs with a NaN are left out."""
    from scipy.stats import spearmanr

    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    n = len(pairs)
    if n < 2 or any(len({*side}) < 2 for side in zip(*pairs, strict=True)):
        return Estimate(math.nan, math.nan, math.nan, n)
    rho = float(spearmanr(pairs).statistic)
    if n < LEAST:
        return Estimate(rho, math.nan, math.nan, n)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(1.06 / (n - 3))
    z = math.atanh(max(-1 + 1e-9, min(1 - 1e-9, rho)))
    return Estimate(rho, math.tanh(z - half), math.tanh(z + half), n)


def _asked(result: Mapping[str, Any]) -> tuple[Any, ...]:
    head = result["headline"]
    return tuple(head.get(key) for key in ("metric", "use", "direction", "margin", "ratio"))


def _sized(result: Mapping[str, Any]) -> Sized:
    head = result["headline"]
    ends = [math.nan if v is None or not head["margin"] else v / head["margin"] for v in _find_effect(result)]
    effect, low, high = ends
    guard = ", its guard open" if result["verdict"] in HELD and result.get("guard") == "open" else ""
    stale = " (stale)" if result.get("stale") else ""
    return Sized(result["bed"], result["model"]["parameters"], effect, low, high, result["verdict"] + guard + stale)


def _find_effect(result: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the headline's effect and interval of the method as it stands, also if its own bed has one with a knob
    turned: other beds have no such arms."""
    check = result["checks"][result["headline"]["check"]]
    if "ours" not in check:
        return tuple(result["headline"].get(key) for key in ("effect", "low", "high"))
    values = {
        side: [math.nan if v is None else v for v in vs]
        for side, vs in check["values"].items()
    }
    rule = Rule(check["direction"], check["margin"], factor=check["factor"], role="headline",
                ratio=check.get("ratio", False))  # fmt: skip
    effect = rule.estimate(values[check["arm"]], values[check["against"]], check["level"])
    return effect.value, effect.low, effect.high
