"""Cards of beds: how a bed's baseline does over many seeds, measured and committed before any method runs on it.

A card is the file `results/beds/<bed>/<variant>.json`, for the recipe `beds/<bed>/<variant>`:

- `format`: 1; `bed`: `<bed>/<variant>`, like the file; `budget`: `{unit: amount}`, up to which curves are read.
- `seeds`: [S] seeds of the runs, none of which claims use.
- `arms`: by name. `baseline`; `redraw`, the baseline again from the same warm starts with other random draws, whose
  paired differences are the noise of a claim; `control`, a positive control that must gain; others that premises are
  about.
- `arms.<name>.curves`: metric -> [S] `{x: [T] spent, y: [T] value}`, with the score before the first step at x = 0.
- `arms.<name>.cpu_s`: [S] CPU seconds of each run, without its warm start; `warm_cpu_s`: [S] CPU seconds of the warm
  starts.
- `hashes`: what the card was made with, as in a result of a claim; a card that is stale, or whose baseline differs from
  the claim's, is refused.
- `rates`: values fixed on the baseline for claims to use (learning rates, fractions, levels).

Other keys belong to whoever made the card. Curves have the format of results, so a quantity reads both.
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
from shuhari.lab.claims.checks import BASELINE, START, Check, name_check
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
    """A card as read from its `file`. `digest`: of its whole text."""

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
        """Median CPU seconds (of a baseline's run, of a warm start); NaN if unknown."""
        run, warm = self.arms[BASELINE].get("cpu_s"), self.table.get("warm_cpu_s")
        return (float(np.median(run)) if run else math.nan, float(np.median(warm)) if warm else math.nan)

    def read_runs(self, arm: str) -> list[Evidence]:
        """Return [S] the runs of an arm, with the curves that the card has."""
        if arm not in self.arms:
            raise RecipeError("claim.bed", f"the card of {self.bed} has no arm {arm!r}; {nearest(arm, self.arms)}")
        (amount,) = self.table["budget"].values()
        curves = self.arms[arm]["curves"]
        return [
            restore(s, {m: c[i] for m, c in curves.items()}, amount)
            for i, s in enumerate(self.table["seeds"])
        ]

    def measure_noise(self, quantity: Quantity, ratio: bool = False) -> np.ndarray:
        """Return [S] paired differences between the baseline and its redraw; with `ratio`, as shares of the redraw's
        value. NaN if a run has no value."""
        x, y = (np.array(read_values(quantity, self.read_runs(arm), arm, 0)) for arm in (BASELINE, REDRAW))
        return (x - y) / np.abs(y) if ratio else x - y

    def measure_spread(self, quantity: Quantity, ratio: bool = False) -> float:
        """Return the standard deviation of one pair's difference."""
        there = self.measure_noise(quantity, ratio)
        there = there[np.isfinite(there)]
        return float(there.std(ddof=1)) if len(there) > 1 else math.nan


def find(bed: str, root: Path | None = None) -> Card | None:
    """Return the card of the bed `beds/<bed>/<variant>`; None if the recipe is not a bed, or has no card yet."""
    family, _, name = bed.partition("/")
    path = (root or find_cards()) / f"{name}.json"
    return read(path) if family == BEDS and path.is_file() else None


def read(path: Path) -> Card:
    """Read a bed's card. Raises RecipeError if it is incomplete or unreadable."""
    try:
        text = path.read_bytes()
        table = json.loads(text)
        if table.get("format") != FORMAT:
            raise ValueError(f"format {table.get('format')!r}, not {FORMAT}")
        if gone := [key for key in WHOLE if key not in table]:
            raise ValueError(f"without {', '.join(gone)}")
        if BASELINE not in table["arms"]:
            raise ValueError("without a baseline")
    except (ValueError, AttributeError) as error:  # AttributeError: it is not a table
        raise RecipeError("claim.bed", f"{path} is no card, as `shuhari claim --card` writes it ({error})") from None
    return Card(table, hashlib.blake2b(text, digest_size=8).hexdigest(), path)


def list_arms(claim: Claim, card: Card | None) -> set[str]:
    """Return the arms that premises can be about: those of the claim and those of its card."""
    return {*claim.arms, *(card.arms if card else ())}


def check(card: Card | None, claim: Claim, used: Mapping[str, str]) -> None:
    """Raises RecipeError if the card's baseline differs from the claim's, or is out of date."""
    if card is not None and BASELINE in claim.arms and (why := find_change(card.table, claim, used)):
        hint = f"`shuhari claim --card {claim.bed}` makes it anew"
        raise RecipeError("claim.bed", f"the baseline in the card of {card.bed} is not this claim's: {why}; {hint}")


def find_change(card: Mapping[str, Any], claim: Claim, used: Mapping[str, str]) -> str:
    """Return how a card's runs differ from those that the claim would make of the same arms; "" if they do not. used:
    the claim's modules as they are now. As with a result, a change in shared modules makes a card older but not
    invalid."""
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


def check_metrics(card: Card, claim: Claim, quantities: Sequence[Quantity]) -> None:
    """Raises RecipeError, before any run, for a check that reads what the card does not have: a premise about arms of
    the card, or the headline, whose noise is that of the redraw."""
    for number, (check, quantity) in enumerate(zip(claim.checks, quantities, strict=True)):
        read = {"premise": check.arms, "headline": (BASELINE, REDRAW)}.get(check.rule.role, ())
        for arm in read if check.trains and {*read} <= {*card.arms} else ():
            try:
                for run in card.read_runs(arm):
                    quantity(run)
            except KeyError as error:
                told = f"arm {arm!r}, by the card of {card.bed}: {error.args[0]}"
                raise RecipeError(name_check(number, check), told) from None


def judge_premise(
    check: Check, number: int, quantity: Quantity, runs: Mapping[str, Sequence[Evidence]]
) -> tuple[Effect, Verdict, dict[str, list[float]]]:
    """Judge a premise over runs of a card or of the claim. Returns (effect, verdict, the values by side)."""
    rule = check.rule
    sides = {side: read_values(quantity, runs[side], side, number) for side in rule.sides if side != START}
    if rule.against == START:
        sides[START] = read_values(read_start(check, number), runs[rule.arm], rule.arm, number)
    effect = rule.estimate(*rule.pick_sides(sides))
    return effect, rule.judge(effect), sides


def plan(card: Card | None, check: Check, quantity: Quantity, looks: Sequence[int]) -> float | None:
    """Return the smallest effect that the looks would find, given the card's noise; None without a card that has a
    redraw, or if nothing is trained."""
    if card is None or REDRAW not in card.arms or not check.trains:
        return None
    return compute_mde(card.measure_spread(quantity, check.rule.ratio), looks, check.rule.direction)


def read_start(check: Check, number: int) -> Quantity:
    """Return the quantity that reads a curve's value before the first step."""
    if check.quantity.get("use", "metric") != "metric":
        raise RecipeError(name_check(number, check, "against"), "'start': expected a check of a metric, as only a "
                          "metric has a curve")  # fmt: skip
    return Metric(f"{Reading.of(check.quantity['metric']).metric}:first")


def restore(seed: int, curves: Mapping[str, Mapping[str, Sequence[Any]]], amount: float) -> Evidence:
    """Rebuild a run from its curves, as a card or a result stores them: columns over every amount spent at which any
    curve has a point."""
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
