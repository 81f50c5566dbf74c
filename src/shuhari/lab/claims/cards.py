"""Cards of beds: what a bed's baseline does over many seeds, made and committed before any method runs on it.

`results/beds/<bed>/<variant>.json`, of the recipe `beds/<bed>/<variant>`:

- `format`: 1; `bed`: `<bed>/<variant>`, as the file is called; `budget`: `{unit: amount}`, up to which curves are read.
- `seeds`: [S] of the runs, apart from those of claims.
- `arms`: by name. `baseline`; `redraw`, the baseline again from the same warm starts with other draws, whose paired
  differences are the noise of a claim; `control`, which must gain; more, where premises are about them.
- `arms.<name>.curves`: metric -> [S] `{x: [T] spent, y: [T] value}`, the score before the first step at x = 0.
- `arms.<name>.cpu_s`: [S] seconds of processor time of each run, without its warm start; `warm_cpu_s`: [S] of these.
- `hashes`: what it was made with, as of a result of a claim: by these a card is refused that is stale, or of another
  baseline than a claim's.
- `rates`: what was fixed on it for claims to use (learning rates, fractions, levels).

More keys are the maker's. Curves are as those of results, so a quantity reads both alike.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.library import BEDS
from shuhari.config.overlay import RecipeError
from shuhari.data import nearest
from shuhari.lab.claims.checks import BASELINE, START, Check
from shuhari.lab.claims.claim import WARM, Claim
from shuhari.lab.claims.curve import Reading
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.kept_results import find_cards
from shuhari.lab.claims.looks import compute_mde
from shuhari.lab.claims.quantities import Evidence, Metric, Quantity, read_values
from shuhari.lab.claims.sources import find_changed
from shuhari.lab.claims.verdict import Effect, Verdict

FORMAT = 1
REDRAW = "redraw"
WHOLE = ("bed", "budget", "seeds", "arms", "hashes")


@dataclass(frozen=True, eq=False)
class Card:
    """A card as it was read; `digest`: of its whole text; `file`: where it lies."""

    table: Mapping[str, Any]
    digest: str = ""
    file: Path | None = None

    @property
    def bed(self) -> str:
        return str(self.table["bed"])

    @property
    def arms(self) -> Mapping[str, Any]:
        arms: Mapping[str, Any] = self.table["arms"]
        return arms

    @property
    def seconds(self) -> tuple[float, float]:
        """(of a baseline's run, of a warm start) of processor time, the median; NaN where it is not known."""
        run, warm = self.arms[BASELINE].get("cpu_s"), self.table.get("warm_cpu_s")
        return (float(np.median(run)) if run else math.nan, float(np.median(warm)) if warm else math.nan)

    def read_runs(self, arm: str) -> list[Evidence]:
        """[S] the runs of an arm, as far as the card has their curves."""
        if arm not in self.arms:
            raise RecipeError("claim.bed", f"the card of {self.bed} has no arm {arm!r}; {nearest(arm, self.arms)}")
        (amount,) = self.table["budget"].values()
        curves = self.arms[arm]["curves"]
        return [
            restore(s, {m: c[i] for m, c in curves.items()}, amount)
            for i, s in enumerate(self.table["seeds"])
        ]

    def measure_noise(self, quantity: Quantity, ratio: bool = False) -> np.ndarray:
        """[S] paired differences of the baseline from its own redraw, with `ratio` in shares of the redraw's value; NaN
        if a run has no value."""
        x, y = (np.array(read_values(quantity, self.read_runs(arm), arm, 0)) for arm in (BASELINE, REDRAW))
        return (x - y) / np.abs(y) if ratio else x - y

    def measure_spread(self, quantity: Quantity, ratio: bool = False) -> float:
        """The standard deviation of one pair's difference."""
        there = self.measure_noise(quantity, ratio)
        there = there[np.isfinite(there)]
        return float(there.std(ddof=1)) if len(there) > 1 else math.nan


def find(bed: str, root: Path | None = None) -> Card | None:
    """The card of the bed that a recipe `beds/<bed>/<variant>` is; None where it is no bed, or has no card yet."""
    family, _, name = bed.partition("/")
    path = (root or find_cards()) / f"{name}.json"
    return read(path) if family == BEDS and path.is_file() else None


def read(path: Path) -> Card:
    """A card of a bed. RecipeError where it is no whole one."""
    try:
        text = path.read_bytes()
        table = json.loads(text)
        if table.get("format") != FORMAT:
            raise ValueError(f"format {table.get('format')!r}, not {FORMAT}")
        if gone := [key for key in WHOLE if key not in table]:
            raise ValueError(f"without {', '.join(gone)}")
        if BASELINE not in table["arms"]:
            raise ValueError("without a baseline")
    except (ValueError, AttributeError) as error:  # AttributeError: no table at all
        raise RecipeError("claim.bed", f"{path} is no card of a bed ({error})") from None
    return Card(table, hashlib.blake2b(text, digest_size=8).hexdigest(), path)


def list_arms(claim: Claim, card: Card | None) -> set[str]:
    """The arms that premises can be about: those of a claim, and those of its card."""
    return {*claim.arms, *(card.arms if card else ())}


def check(card: Card | None, claim: Claim, used: Mapping[str, str]) -> None:
    """RecipeError where a card is of another baseline than the claim's, or older than that is."""
    if card is not None and BASELINE in claim.arms and (why := find_change(card.table, claim, used)):
        hint = f"`shuhari claim --card {claim.bed}` makes it anew"
        raise RecipeError("claim.bed", f"the card of {card.bed} does not tell of this claim's baseline: {why}; {hint}")


def find_change(card: Mapping[str, Any], claim: Claim, used: Mapping[str, str]) -> str:
    """In what the runs of a card are not those that a claim would make of the same arms; "" where in nothing. used: the
    modules of the claim as they are now. As of a result, a change of modules that others share makes a card older, and
    it still tells."""
    budget = dict([claim.budget]) if claim.budget else {}
    if card["budget"] != budget:
        return f"its budget is {card['budget']}, the claim's {budget}"
    then, prepares = card["hashes"], claim.warm.get(BASELINE)
    now = {name: compute_digest(arm) for name, arm in claim.arms.items() if name in card["arms"]}
    now |= {WARM: compute_digest(prepares)} if prepares is not None else {}
    for name in dict.fromkeys((BASELINE, WARM, *now)):
        if now.get(name) != then["recipes"].get(name):
            return f"recipe {name!r} has changed"
    return find_changed(then["modules"], used)


def judge_premise(
    check: Check, number: int, quantity: Quantity, runs: Mapping[str, Sequence[Evidence]]
) -> tuple[Effect, Verdict, dict[str, list[float]]]:
    """(effect, whether it is met, the values by side) of a premise over runs: a card's, or a claim's own."""
    rule = check.rule
    sides = {side: read_values(quantity, runs[side], side, number) for side in rule.sides if side != START}
    if rule.against == START:
        sides[START] = read_values(read_start(check, number), runs[rule.arm], rule.arm, number)
    effect = rule.estimate(*rule.pick_sides(sides))
    return effect, rule.judge(effect), sides


def plan(card: Card | None, check: Check, quantity: Quantity, looks: Sequence[int]) -> float | None:
    """The smallest effect that looks would find, by the noise that a card tells of; None where none tells."""
    if card is None or REDRAW not in card.arms or not check.trains:
        return None
    return compute_mde(card.measure_spread(quantity, check.rule.ratio), looks, check.rule.direction)


def read_start(check: Check, number: int) -> Quantity:
    """What a reading of a curve was before the first step."""
    if check.quantity.get("use", "metric") != "metric":
        raise RecipeError(f"claim.check.{number}.against", "'start': only of a metric, which has a curve")
    return Metric(f"{Reading.of(check.quantity['metric']).metric}:first")


def restore(seed: int, curves: Mapping[str, Mapping[str, Sequence[Any]]], amount: float) -> Evidence:
    """A run from its curves, as a card or a result keeps them: a column each over all that any of them has spent."""
    spent = sorted(
        {
            x
            for c in curves.values()
            for x in c["x"]
        }
    )
    columns = {
        m: [dict(zip(c["x"], c["y"], strict=True)).get(x) for x in spent]
        for m, c in curves.items()
    }
    return Evidence(seed, columns, spent, {}, float(amount))
