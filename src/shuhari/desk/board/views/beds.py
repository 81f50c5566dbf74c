"""Beds: the numbers of each card about its baseline, and the methods measured there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from shuhari.config.library import BEDS, list_recipes
from shuhari.data import nearest
from shuhari.desk.board import results
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.serving.refusals import Refused

MEANS = ("evaluate/exact.mean", "evaluate/mean", "evaluate/greedy")  # scores of a card, the first one counts
Results = Mapping[str, Mapping[str, Any]]


def list_beds(runs: Catalogue, bed: str = "", metric: str = "", wait: bool = False) -> dict[str, Any]:
    """Without `bed`, return {beds}: every bed, its card's score, and the number of methods measured there. With it,
    return {card, numbers, curves, by, metrics, methods}: its card number by number, and its methods, best first, by a
    `metric` such as evaluate/mean:area (default: the bed's own score)."""
    claimed = {name: found for name, (found, _) in results.read_all()[0].items()}
    explored = results.read_elsewhere("explore")
    counts = Counter(str(r["bed"]) for r in [*claimed.values(), *explored] if r.get("bed"))
    summaries = {m.name: m.summary for m in list_recipes() if m.family == BEDS and m.problem is None}
    summaries = {name: text for name, text in summaries.items() if "/control/" not in name}
    names = sorted({*summaries, *counts})
    if bed:
        if bed not in names:
            raise Refused(f"no bed {bed[:200]!r}; {nearest(bed[:100], names)}", "bed", status=404)
        here = {r["method"]: r for r in explored if r["bed"] == bed}
        here |= {name: r for name, r in claimed.items() if r.get("bed") == bed}
        summary = summaries.get(bed) or str(results.describe(bed).get("summary", ""))
        return {"bed": bed, "summary": summary, **_describe_bed(bed, metric, here, results.knows_core(wait=wait))}
    return {"beds": [{"bed": name, "summary": summaries.get(name) or results.describe(name).get("summary", ""),
                      "methods": counts[name], **_describe_card(name)} for name in names]}  # fmt: skip


def _describe_bed(bed: str, metric: str, here: Results, known: bool) -> dict[str, Any]:
    from shuhari.lab.claims.board import put_in_order
    from shuhari.lab.claims.wording import describe_verdict

    try:
        found = put_in_order(here, bed, metric)
    except ValueError as error:
        raise Refused(str(error), "metric") from None
    name = found.by.partition(":")[0]
    stated = {m.name for m in results.list_claimed()}
    told = {n: {"method": n, "claim": n in stated, "verdict": r["verdict"], "words": describe_verdict(r, now=known)}
            for n, r in here.items()}  # fmt: skip
    rows = [{**told[n], "value": e.value, "low": e.low, "high": e.high, "seeds": e.n} for n, e in found.methods.items()]
    others = [row for n, row in told.items() if n not in found.methods]
    card = results.find_card(bed)
    curves = card.arms["baseline"]["curves"] if card is not None else ()
    chance: dict[str, float] = {}
    for result in here.values():
        chance = {f"evaluate/{k}": v for k, v in (result.get("chance") or {}).items() if v is not None} | chance
    return {
        "by": found.by, "metrics": found.metrics, "methods": rows, "others": others, "card": _describe_card(bed),
        "numbers": [_describe_number(card, one, chance.get(one)) for one in curves],
        "curves": {} if card is None else _read_curves(card, name), "metric": name,
        "unit": next(iter(card.table["budget"])) if card is not None else "",
    }  # fmt: skip


def _describe_card(bed: str) -> dict[str, Any]:
    """Return a bed's score from its card; {card: false} if it has none."""
    card = results.find_card(bed)
    if card is None:
        return {"card": False}
    curves = card.arms["baseline"]["curves"]
    metric = next((m for m in MEANS if m in curves), next(iter(curves), ""))
    run, warm = card.seconds
    about = {"card": True, "seeds": len(card.table["seeds"]), "budget": card.table["budget"], "run_s": run,
             "warm_s": warm, "metric": metric}  # fmt: skip
    return {**about, **(_describe_number(card, metric) if metric else {})}


def _describe_number(card: Any, metric: str, chance: float | None = None) -> dict[str, Any]:
    """Return a number of a card: of an untrained policy (`random`), at the start and the end of the baseline and at the
    end of the control, which must gain; and for its mean over the budget the standard deviation of a pair's difference
    (`spread`) and the smallest effect that the looks would find (`mde`)."""
    keep = results.keep(card.file, f"number {metric}", lambda: _measure_number(card, metric)) if card.file else None
    return {"metric": metric, "random": chance, **(keep or {})}


def _measure_number(card: Any, metric: str) -> dict[str, Any]:
    from dataclasses import replace

    from shuhari.lab.claims.cards import REDRAW
    from shuhari.lab.claims.looks import LOOKS, compute_mde
    from shuhari.lab.claims.quantities import Metric

    def read(arm: str, place: int) -> float:
        curves = card.arms.get(arm, {}).get("curves", {}).get(metric, ())
        ends = [
            [y for y in c["y"] if y is not None]
            for c in curves
        ]
        return fmean(y[place] for y in ends if y) if any(ends) else math.nan

    out = {"start": read("baseline", 0), "end": read("baseline", -1), "control": read("control", -1),
           "spread": math.nan, "mde": math.nan}  # fmt: skip
    if metric in card.arms.get(REDRAW, {}).get("curves", {}):
        arms = {arm: {"curves": {metric: card.arms[arm]["curves"][metric]}} for arm in ("baseline", REDRAW)}
        small = replace(card, table={**card.table, "arms": arms})
        out["spread"] = small.measure_spread(Metric(f"{metric}:area"))
        out["mde"] = compute_mde(out["spread"], LOOKS, "up") or math.nan
    return out


def _read_curves(card: Any, metric: str) -> dict[str, Any]:
    """Return arm -> the mean of a metric with its band over the seeds of a card."""
    from shuhari.lab.plot import compute_band

    out = {}
    for name, arm in card.arms.items():
        if (band := compute_band(arm["curves"].get(metric, ()))) is not None:
            x, mean, low, high, n = band
            out[name] = {"x": x, "mean": mean, "low": low, "high": high, "n": n}
    return out
