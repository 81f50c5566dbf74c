"""Results of claims side by side: their words, how many hold by chance, and a picture of all effects on one axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.data import EMPTY, nearest
from shuhari.kernel.stats import Estimate, t_interval
from shuhari.lab.claims.arms import METHOD
from shuhari.lab.claims.checks import BASELINE, name_quantity
from shuhari.lab.claims.explore import choose_metric
from shuhari.lab.claims.looks import LEVEL, LOOKS, simulate_power
from shuhari.lab.claims.on_bed import read_by_seed
from shuhari.lab.claims.result import format_factor
from shuhari.lab.claims.verdict import Headline


def headline(result: Mapping[str, Any]) -> str:
    """The effect of a headline with its interval, of which level, and its margin."""
    head = result["headline"]
    unit = " of its value" if head.get("ratio") else ""
    if head.get("low") is None:
        return f"margin {head['margin']:g}{unit}"
    effect = f"{head['effect']:.3g} [{head['low']:.3g}, {head['high']:.3g}]"
    return f"{effect} at {head['level']:.1%}, margin {head['margin']:g}{unit}, {head['n']} seeds"


def detectable(result: Mapping[str, Any]) -> str:
    """The smallest effects that could be found, in margins: as planned, and by the claim's own pairs."""
    margin = result["headline"]["margin"]
    found = [f"{k} {v / margin:.2g}" for k, v in result["mde"].items() if v is not None and margin]
    return ", ".join(found) or "-"


def count_tries(result: Mapping[str, Any]) -> int:
    """How many tries of a claim could have held: each on seeds of its own, its premises met."""
    return len({h["try"] for h in result["history"] if "try" in h and h["verdict"] != Headline.UNTESTED})


def ruled(check: Mapping[str, Any]) -> str:
    """One check by roles: what, which way and how far, both sides, the effect with its interval, what it says."""
    what = f"`{name_quantity(check)}` {check['direction']}"
    margin = f", margin {check['margin']:g}" if check["margin"] else ""
    text = f"{check['role']}: {what}{margin}: {check['arm']} - {format_factor(check['factor'])}{check['against']}"
    if check.get("low") is not None:
        text += f" = {check['effect']:.3g} [{check['low']:.3g}, {check['high']:.3g}], {check['n']} pairs"
    why = f" ({check['why']})" if check.get("why") else ""
    card = f", by the card of {check['card']}" if check.get("card") else ""
    return f"{text}: {check['verdict']}{why}{card}"


def false_holds(results: Sequence[Mapping[str, Any]]) -> str:
    """How many of some results are expected to hold if no method had any effect, and what early stops do. Of those
    that claim an effect alone: one that claims none (`not lower`, `equal`) holds often where there is none."""
    some = [r for r in results if r["headline"]["direction"] in ("up", "down")]
    tries, share = sum(map(count_tries, some)), (1 - LEVEL) / 2
    text = f"If no method that claims an effect had any, {share * tries:.2g} of their {tries} tries would be expected"
    what = f"to hold all the same ({share:.1%} of each; a try is a protocol, with one version of the method's code,"
    text = f"{text} {what} whose premises were met)."
    more = simulate_power(LOOKS).enlarged - 1
    return f"{text} Effects that are found are overstated: one as large as the MDE by {more:.0%} on average."


def rank(results: Iterable[Mapping[str, Any]], bed: str, metric: str) -> dict[str, Estimate]:
    """Methods on a bed, best first: a reading of a curve, less the baseline's of the same seed, with a 95 % interval.
    Without those whose results do not have the curve."""
    found = {}
    for result in results:
        ours, theirs = (read_by_seed(result, arm, metric) for arm in (METHOD, BASELINE))
        if result.get("bed") == bed and ours and theirs:
            found[result["method"]] = subtract(ours, theirs)
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def list_metrics(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The curves that results have of both method and baseline, with in how many, the most frequent first."""
    curves = (
        [set(r["arms"].get(arm, EMPTY).get("curves", EMPTY)) for arm in (METHOD, BASELINE)]
        for r in results
    )
    return dict(
        Counter(
            name
            for ours, theirs in curves
            for name in sorted(ours & theirs)
        ).most_common()
    )


def choose_reading(bed: str, there: Mapping[str, int]) -> str:
    """By what a bed's methods are ranked where nothing is said: its own score, where some result has it, else what
    most results have."""
    try:
        own = choose_metric(load(bed).stages[-1])
    except RecipeError:  # of a file that is not at hand
        own = ""
    return own if not there or own.partition(":")[0] in there else f"{next(iter(there))}:area"


def falls(results: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Whether less of a metric is better, as a check says that reads it."""
    checks = [
        check
        for r in results
        for check in r["checks"]
        if str(check.get("metric")).partition(":")[0] == name
    ]
    down = sum(check["direction"] in ("down", "not higher") for check in checks)
    return 2 * down > len(checks)


@dataclass(frozen=True)
class Ranking:
    """Methods on a bed, best first, `by` a reading of a curve less the baseline's; `metrics`: the curves that there
    are, with in how many results."""

    bed: str
    by: str
    metrics: Mapping[str, int]
    methods: Mapping[str, Estimate]


def put_in_order(results: Mapping[str, Mapping[str, Any]], bed: str, metric: str = "") -> Ranking:
    """The methods of some results on a bed, by `metric`, or where that is "" by the bed's own score. ValueError for
    what no result has, or no reading of a curve."""
    there = list_metrics(results.values())
    metric = metric or choose_reading(bed, there)
    name = metric.partition(":")[0]
    if there and name not in there:
        told = ", ".join(f"{one} ({n} methods)" if n > 1 else one for one, n in there.items())
        raise ValueError(f"no result on {bed!r} has {name!r}; {nearest(name, there)} There are {told}")
    ranked = rank(results.values(), bed, metric)
    order = [*reversed(ranked)] if falls(results.values(), name) else [*ranked]
    return Ranking(bed, metric, there, {name: ranked[name] for name in order})


def subtract(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """The difference of values by seed, over the seeds that both have, with a 95 % interval."""
    return t_interval([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


@dataclass(frozen=True)
class Line:
    """One line of the picture: an effect and its interval in margins, None where nothing was measured."""

    method: str
    label: str
    ends: tuple[float, float, float] | None
    colour: str


COLOURS = {Headline.HOLDS: "#1a7f37", Headline.COST: "#7a8b1a", Headline.SMALL: "#6cab7f", Headline.REVERSED: "#c0362c",
           Headline.BELOW: "#d98b2b", Headline.OPEN: "#6b7280", Headline.UNTESTED: "#b0b4ba"}  # fmt: skip
REACH, WIDE, HIGH, LEFT, RIGHT = 4.0, 980, 22, 190, 200  # margins to either side; pixels


def draw(results: Iterable[Mapping[str, Any]]) -> str:
    """All effects and intervals on one axis, in margins: an SVG, the same for the same results."""
    lines = [line for r in results if (line := make_line(r))]
    lines.sort(key=lambda line: (-line.ends[0] if line.ends else REACH * 9, line.method))
    height, width = HIGH * (len(lines) + 3), WIDE - LEFT - RIGHT

    def at(margins: float) -> float:
        return round(LEFT + (min(max(margins, -REACH), REACH) + REACH) / (2 * REACH) * width, 1)

    foot, words = HIGH * (len(lines) + 1), 'font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" {words}>']
    out.append(f'<rect width="{WIDE}" height="{height}" fill="white"/>')
    for tick in range(-int(REACH), int(REACH) + 1):
        style = {0: 'stroke="#374151"', 1: 'stroke="#1a7f37" stroke-dasharray="4 3"'}.get(tick, 'stroke="#e5e7eb"')
        out.append(f'<path d="M{at(tick)} {HIGH // 2}V{foot - 6}" {style}/>')
        out.append(f'<text x="{at(tick)}" y="{foot + 10}" text-anchor="middle">{tick}</text>')
    axis = "effect in margins, as claimed to the right; a triangle lies further out"
    out.append(f'<text x="{at(0)}" y="{foot + 28}" text-anchor="middle">{axis}</text>')
    for i, line in enumerate(lines):
        y = HIGH * (i + 1)
        out.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(line.method)}</text>')
        out.append(f'<text x="{WIDE - RIGHT + 8}" y="{y + 4}" fill="{line.colour}">{escape(line.label)}</text>')
        if line.ends:
            value, low, high = map(at, line.ends)
            out.append(f'<path d="M{low} {y}H{high}" stroke="{line.colour}" stroke-width="3"/>')
            way = 0 if abs(line.ends[0]) <= REACH else 7 if line.ends[0] > 0 else -7
            mark = f'path d="M{value - way} {y - 6}L{value} {y}L{value - way} {y + 6}Z"'
            point = f'circle cx="{value}" cy="{y}" r="4.5"'
            out.append(f'<{mark if way else point} fill="{line.colour}"/>')
    return "\n".join([*out, "</svg>", ""])


def make_line(result: Mapping[str, Any]) -> Line | None:
    """The line of a result; None if its headline has no margin."""
    head, label = result["headline"], result["verdict"]
    if not head["margin"]:
        return None
    ends = None
    if head.get("low") is not None:
        ends = (head["effect"] / head["margin"], head["low"] / head["margin"], head["high"] / head["margin"])
    return Line(result["method"], label, ends, COLOURS[Headline(label)])
