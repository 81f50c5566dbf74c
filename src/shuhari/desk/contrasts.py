"""Several arms against a first one: differences, and intervals at levels that hold for all of them together.

Where nothing varies (every seed of two arms is right, say) there is no interval, and a sentence says why: one of no
width would claim a certainty that a few equal numbers do not give. No torch.
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

ALPHA = 0.05  # of an interval that is read alone


@dataclass(frozen=True)
class Pair:
    """The values of two arms; paired: entry i of both belongs together. alpha: the chance of an interval without 0
    where there is no difference, if it is read alone."""

    first: Sequence[float]
    second: Sequence[float]
    paired: bool
    alpha: float = ALPHA


def contrast(pairs: Mapping[str, Pair], least: int = 2) -> dict[str, dict[str, Any]]:
    """{difference, low, high, level, p, paired, why} of the second of each pair less the first, the intervals at levels
    that hold for all together (`stats.find_levels`). Ends, level and p are NaN below `least` values, and where nothing
    varies, which `why` says."""
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
    """Why two arms tell nothing of their difference, though they have values; "" where they do."""
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
    """{value, n, own_low, own_high}: the mean of an arm's values and its own 95 % interval, NaN below `least` values
    or where they are all the same. `shares`: of problems, as `stats.interval` has it; else Student's."""
    graded = [v for v in values if v == v]
    mean = fmean(graded) if graded else math.nan
    known = len(graded) >= max(least, 2) and len({*graded}) > 1
    e = (stats.interval if shares else stats.t_interval)(graded) if known else None
    return {"value": mean, "n": len(graded), "own_low": e.low if e else math.nan, "own_high": e.high if e else math.nan}


def compare_with_first(
    found: Mapping[str, tuple[list[float], list[Any]]], least: int = 2, shares: bool = False
) -> dict[str, dict[str, Any]]:
    """Values by their ids, of each arm: what `describe_arm` has, and of all but the first what `contrast` has;
    intervals from `least` values an arm on."""
    (first, names), *_ = found.values()
    pairs = {
        name: Pair(first, values, ids == names and len(set(ids)) == len(ids))
        for name, (values, ids) in list(found.items())[1:]
    }
    told = contrast(pairs, least)
    return {name: describe_arm(values, least, shares) | told.get(name, {}) for name, (values, _) in found.items()}


def format_level(level: float) -> str:
    """Return the level of an interval as per cent; "" if there is none."""
    return "" if math.isnan(level) else f"{100 * level:.4g} %"


def explain_levels(found: Mapping[str, Mapping[str, Any]], first: str) -> str:
    """How several comparisons are read together; "" of a single one."""
    levels = [entry["level"] for entry in found.values() if not math.isnan(entry.get("level", math.nan))]
    if len(levels) < 2:
        return ""
    told = ", ".join(map(format_level, sorted({*levels}, reverse=True)))
    return (f"{len(levels)} comparisons with {first} are read together, so their intervals are at {told} (Holm's "
            "correction): by chance any of them leaves 0 out no more often than one that is read alone")  # fmt: skip


def find_stuck(found: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    """The end of its range that all arms sit at, where the metric is a share; "" where they do not."""
    name = metric.partition(":")[0]
    for end in (0.0, 1.0) if is_share(f"{name}:final") and found else ():
        if all(abs(entry["value"] - end) <= NEAR for entry in found.values()):
            return f"all arms sit within {NEAR:g} of {end:g}: there is hardly room for them to differ in {name}"
    return ""
