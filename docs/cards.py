"""The table of what the cards of beds show (`tables.py`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from reference import row

FLOOR = 0.03
Curves = Mapping[str, list[Mapping[str, Any]]]


def cards() -> Iterator[str]:
    """Of every card the mean, and the number in which its control differs most from the baseline."""
    from shuhari.lab.claims.cards import REDRAW, find
    from shuhari.lab.claims.kept_results import find_cards

    yield row("bed", "seeds", "mean", "groups all alike", "the control differs most in", "there, baseline",
              "there, control", "seconds a run", "a warm start")  # fmt: skip
    yield row(*["---"] * 9)
    for path in sorted(find_cards().glob("*/*.json")):
        card = find(f"beds/{path.parent.name}/{path.stem}")
        if card is None:
            continue
        base, redraw, control = (card.arms[arm]["curves"] for arm in ("baseline", REDRAW, "control"))
        mean = next(m for m in ("evaluate/exact.mean", "evaluate/mean") if m in base)
        shown = [m for m in base if m.startswith("evaluate/") and m in control]
        told = max(shown, key=lambda m: compare_ends(control[m], base[m], redraw[m]))
        alike = show(base, "rollout/alike") if "rollout/alike" in base else "-"
        seconds = [f"{s:.0f}" if s == s else "-" for s in card.seconds]
        yield row(f"`{card.bed}`", str(len(card.table["seeds"])), show(base, mean), alike,
                  f"`{told.removeprefix('evaluate/')}`", show(base, told), show(control, told), *seconds)  # fmt: skip


def show(curves: Curves, metric: str) -> str:
    """The first and the last value of a metric, means over seeds."""
    first, last = (statistics.fmean(read_ends(curves[metric], place)) for place in (0, -1))
    return f"{first:.3g} to {last:.3g}"


def read_ends(curves: list[Mapping[str, Any]], place: int) -> list[float]:
    """Of each seed the first (0) or the last (-1) value."""
    return [[y for y in c["y"] if y is not None][place] for c in curves]


def compare_ends(control: Any, base: Any, redraw: Any) -> float:
    """How far the control's mean end lies from the baseline's, in standard deviations of the baseline less its redraw;
    at least FLOOR, so that a number at its ceiling, which has no noise, is not taken for the one that tells most."""
    ends = read_ends(base, -1)
    noise = statistics.pstdev(x - y for x, y in zip(ends, read_ends(redraw, -1), strict=True))
    gap = abs(statistics.fmean(read_ends(control, -1)) - statistics.fmean(ends))
    return gap / max(noise, FLOOR)
