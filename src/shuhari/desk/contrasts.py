"""Several arms against a first one: differences, and intervals at levels that hold for all of them together.

If nothing varies (such as if every seed of two arms is right), there is no interval but a sentence with the reason: an
interval of width 0 would claim a certainty that a few equal numbers cannot give. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shuhari.kernel import stats
from shuhari.lab.claims.checks import is_share
from shuhari.lab.claims.verdict import NEAR

ALPHA = 0.05  # of a single interval


@dataclass(frozen=True)
class Pair:
    """The values of two arms; paired: entries i belong together. alpha: the false-positive rate of a single
    interval."""

    first: Sequence[float]
    second: Sequence[float]
    paired: bool
    alpha: float = ALPHA


def contrast(pairs: Mapping[str, Pair], least: int = 2) -> dict[str, dict[str, Any]]:
    """Return {difference, low, high, level, p, paired, why} for each pair, second minus first, with intervals at levels
    that hold for all together (`stats.find_levels`). Low, high, level and p are NaN with fewer than `least` values, and
    if nothing varies, with the reason in `why`."""
    found = {name: stats.difference(pair.first, pair.second, paired=pair.paired) for name, pair in pairs.items()}
    why = {name: _explain_alike(pair) if found[name].n >= least else "" for name, pair in pairs.items()}
    p = {
        name: math.nan if why[name] or found[name].n < least else stats.p_value(a.first, a.second, paired=a.paired)
        for name, a in pairs.items()
    }
    levels = stats.find_levels([*p.values()], [pair.alpha for pair in pairs.values()])
    out = {}
    for (name, pair), level in zip(pairs.items(), levels, strict=True):
        known = not math.isnan(level)
        e = stats.difference(pair.first, pair.second, paired=pair.paired, level=level) if known else found[name]
        ends = (e.low, e.high) if known else (math.nan, math.nan)
        out[name] = {"difference": e.value, "low": ends[0], "high": ends[1], "level": level, "p": p[name],
                     "paired": pair.paired, "why": why[name]}  # fmt: skip
    return out


def _explain_alike(pair: Pair) -> str:
    """Return why the values of two arms allow no interval; "" if they do."""
    x, y = (
        [v for v in values if v == v]
        for values in (pair.first, pair.second)
    )
    if len(x) < 2 or len(y) < 2:
        return ""
    if len({*x, *y}) == 1:
        return f"every value of both is {x[0]:g}: there is no room to differ in"
    if pair.paired:
        differences = {round(b - a, 12) for a, b in zip(pair.first, pair.second, strict=True) if a == a and b == b}
        return f"they differ by {differences.pop():g} in every pair" if len(differences) == 1 else ""
    return "neither arm varies" if len({*x}) == len({*y}) == 1 else ""


def describe_arm(values: Sequence[float], least: int = 2, shares: bool = False) -> dict[str, Any]:
    """Return {value, n, own_low, own_high}: the mean of an arm's values and its own 95 % interval, NaN with fewer than
    `least` values or if all are equal. `shares`: shares of problems, with the interval of `stats.interval`; otherwise
    Student's."""
    graded = [v for v in values if v == v]
    mean = fmean(graded) if graded else math.nan
    known = len(graded) >= max(least, 2) and len({*graded}) > 1
    e = (stats.interval if shares else stats.t_interval)(graded) if known else None
    return {"value": mean, "n": len(graded), "own_low": e.low if e else math.nan, "own_high": e.high if e else math.nan}


def compare_with_first(
    found: Mapping[str, tuple[list[float], list[Any]]], least: int = 2, shares: bool = False
) -> dict[str, dict[str, Any]]:
    """Compare arms, each given as (values, their ids), with the first: the entries of `describe_arm`, and for all but
    the first those of `contrast`. Intervals need `least` values an arm."""
    (first, names), *_ = found.values()
    pairs = {
        name: Pair(first, values, ids == names and len(set(ids)) == len(ids))
        for name, (values, ids) in list(found.items())[1:]
    }
    told = contrast(pairs, least)
    return {name: describe_arm(values, least, shares) | told.get(name, {}) for name, (values, _) in found.items()}


def find_word(entry: Mapping[str, Any]) -> str:
    """Return in a word how an arm differs from the first, by its interval: "higher", "lower", or "open" if it has 0
    inside; "" without an interval."""
    low, high = entry.get("low", math.nan), entry.get("high", math.nan)
    if math.isnan(low) or math.isnan(high):
        return ""
    return "higher" if low > 0 else "lower" if high < 0 else "open"


def format_confidence(level: float) -> str:
    """Return the level of an interval as per cent; "" if there is none."""
    return "" if math.isnan(level) else f"{100 * level:.4g} %"


def explain_levels(found: Mapping[str, Mapping[str, Any]], first: str) -> str:
    """Return a sentence on how several comparisons are read together; "" for a single one."""
    levels = [entry["level"] for entry in found.values() if not math.isnan(entry.get("level", math.nan))]
    if len(levels) < 2:
        return ""
    told = ", ".join(map(format_confidence, sorted({*levels}, reverse=True)))
    return (f"{len(levels)} comparisons with {first} are read together, so their intervals are at {told} (Holm's "
            "correction): by chance any of them leaves 0 out no more often than one that is read alone")  # fmt: skip


def find_stuck(found: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    """Return a sentence if the metric is a share and all arms are at the same end of its range; otherwise ""."""
    name = metric.partition(":")[0]
    for end in (0.0, 1.0) if is_share(f"{name}:final") and found else ():
        if all(abs(entry["value"] - end) <= NEAR for entry in found.values()):
            return f"all arms sit within {NEAR:g} of {end:g}: there is hardly room for them to differ in {name}"
    return ""
