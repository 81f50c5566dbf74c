"""Results of claims side by side: their summaries, how many would hold by chance, and a plot of all effects."""

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
from shuhari.lab.claims.checks import BASELINE, METHOD, name_quantity
from shuhari.lab.claims.explore import choose_metric
from shuhari.lab.claims.looks import LEVEL, LOOKS, simulate_power
from shuhari.lab.claims.on_bed import read_by_seed
from shuhari.lab.claims.result import format_factor
from shuhari.lab.claims.tries import count_tries
from shuhari.lab.claims.verdict import Headline
from shuhari.lab.claims.wording import find_decisive


def headline(result: Mapping[str, Any]) -> str:
    """Return a headline's effect with its interval, level and margin as text."""
    head = result["headline"]
    unit = " of its value" if head.get("ratio") else ""
    if head.get("low") is None:
        return f"margin {head['margin']:g}{unit}"
    effect = describe_effect(head)
    text = f"{effect} at {head['level']:.1%}, margin {head['margin']:g}{unit}, {head['n']} seeds"
    worst = find_decisive(result) or _find_least(result)
    rival = next((rival for rival in result.get("rivals", ()) if rival["name"] == worst), None)
    return text if rival is None else f"{text}; against {worst} {describe_effect(rival)}"


def _find_least(result: Mapping[str, Any]) -> str:
    """Return the rival with the smallest effect, if that is smaller than the headline's; "" if none is."""
    found = [r for r in result.get("rivals", ()) if r["effect"] is not None and not r.get("aside")]
    least = min(found, key=lambda r: float(r["effect"]), default=None)
    return str(least["name"]) if least and found and least is not found[0] else ""


def describe_effect(of: Mapping[str, Any]) -> str:
    """Describe the effect of a check, a rival or a headline with its interval."""
    return f"{of['effect']:.3g} [{of['low']:.3g}, {of['high']:.3g}]"


def detectable(result: Mapping[str, Any]) -> str:
    """Return the minimum detectable effects, planned and achieved, in units of the margin, as text."""
    margin = result["headline"]["margin"]
    found = [f"{k} {v / margin:.2g}" for k, v in result["mde"].items() if v is not None and margin]
    return ", ".join(found) or "-"


def ruled(check: Mapping[str, Any]) -> str:
    """Describe a check in one line: role, quantity, direction, margin, both sides, effect with interval, verdict."""
    what = f"`{name_quantity(check)}` {check['direction']}"
    margin = f", margin {check['margin']:g}" if check["margin"] else ""
    ours, theirs = check.get("ours", check["arm"]), f"{format_factor(check['factor'])}{check['against']}"
    text = f"{check['role']}: {what}{margin}: {ours} - {theirs}"
    if check.get("low") is not None:
        text += f" = {describe_effect(check)}, {check['n']} pairs"
    why = f" ({check['why']})" if check.get("why") else ""
    card = f", by the card of {check['card']}" if check.get("card") else ""
    aside = "; set aside: it fails the guard, which the method does not" if check.get("aside") else ""
    own = f"; guard of {ours}: {check['guard_ours']['verdict']}" if "guard_ours" in check else ""
    return f"{text}: {check['verdict']}{why}{card}{aside}{own}"


def false_holds(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on how many of the results would be expected to hold if no method had any effect, and on how
    much early stopping inflates effects. Only claims of an effect count: a claim of no effect (`not lower`, `equal`)
    often holds when there is none."""
    some = [r for r in results if r["headline"]["direction"] in ("up", "down")]
    tries, share = sum(map(count_tries, some)), (1 - LEVEL) / 2
    text = f"If no method that claims an effect had any, {share * tries:.2g} of their {tries} tries would be expected"
    what = f"to hold all the same ({share:.1%} of each; a try is a protocol, with one version of the method's code,"
    text = f"{text} {what} whose premises were met)."
    more = simulate_power(LOOKS).enlarged - 1
    return f"{text} Effects that are found are overstated: one as large as the MDE by {more:.0%} on average."


def rank(results: Iterable[Mapping[str, Any]], bed: str, metric: str) -> dict[str, Estimate]:
    """Return the methods on a bed, best first: a reading of a curve minus the baseline's at the same seed, with a 95 %
    interval. Results without that curve are left out."""
    found = {}
    for result in results:
        ours, theirs = (read_by_seed(result, arm, metric) for arm in (METHOD, BASELINE))
        if result.get("bed") == bed and ours and theirs:
            found[result["method"]] = subtract(ours, theirs)
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def list_metrics(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return curve -> number of results that have it for both method and baseline, the most frequent first."""
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
    """Choose the default ranking metric of a bed: the bed's own score if some result has it, otherwise the curve that
    most results have."""
    try:
        own = choose_metric(load(bed).stages[-1])
    except RecipeError:  # its file is not available
        own = ""
    return own if not there or own.partition(":")[0] in there else f"{next(iter(there))}:area"


def falls(results: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Whether lower values of a metric are better, by the directions of the checks that read it."""
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
    """Methods on a bed, best first. `by`: the reading of a curve, minus the baseline's, that they are ranked by.
    `metrics`: curve -> number of results that have it."""

    bed: str
    by: str
    metrics: Mapping[str, int]
    methods: Mapping[str, Estimate]


def put_in_order(results: Mapping[str, Mapping[str, Any]], bed: str, metric: str = "") -> Ranking:
    """Rank the methods of some results on a bed by `metric`, or by the bed's own score if that is "". Raises ValueError
    if no result has the metric, or the reading is unknown."""
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
    """Return the mean difference of values by seed, over the seeds that both have, with a 95 % interval."""
    return t_interval([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


@dataclass(frozen=True)
class Line:
    """A line of the plot: an effect and its interval in units of the margin, None if nothing was measured."""

    method: str
    label: str
    ends: tuple[float, float, float] | None
    colour: str


COLOURS = {Headline.HOLDS: "#1a7f37", Headline.COST: "#7a8b1a", Headline.SMALL: "#6cab7f", Headline.REVERSED: "#c0362c",
           Headline.LESS: "#cf7b74",
           Headline.BELOW: "#d98b2b", Headline.OPEN: "#6b7280", Headline.UNTESTED: "#b0b4ba"}  # fmt: skip
REACH, WIDE, HIGH, LEFT, RIGHT = 4.0, 980, 22, 190, 200  # margins to either side; pixels


def draw(results: Iterable[Mapping[str, Any]]) -> str:
    """Return an SVG with all effects and intervals on one axis, in units of the margin. Deterministic."""
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
    """Return a result's line, of the comparison that gave its verdict; None if its headline has no margin."""
    head, label = result["headline"], result["verdict"]
    if not head["margin"]:
        return None
    worst, ends = find_decisive(result), None
    shown = next((rival for rival in result.get("rivals", ()) if rival["name"] == worst), head)
    if shown.get("low") is not None:
        ends = (shown["effect"] / head["margin"], shown["low"] / head["margin"], shown["high"] / head["margin"])
    return Line(result["method"], label, ends, COLOURS[Headline(label)])
