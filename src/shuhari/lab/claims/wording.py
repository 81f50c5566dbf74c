"""A result in words: its verdict with qualifications, the same wherever it is shown.

Left out: numbers (`board`), tables of checks (`cli.verdicts`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuhari.lab.claims.sources import is_older
from shuhari.lab.claims.verdict import Because, Headline

EARLIER = "earlier version of the code"  # shown if the library has changed since the result was measured


def describe_verdict(result: Mapping[str, Any], *, because: bool = True, now: bool = False, stale: str = "") -> str:
    """Return the verdict, with qualifications in brackets: `holds (not by it, disputed, stale)`.

    because: include the outcome of the ablations (False if a column of its own shows it). now: include whether the
    library has changed since (`EARLIER`); not for pages that are written once. stale: the reason, if the result does
    not record it yet."""
    reason = result["because"]
    marks = [f"against {name}" for name in [find_decisive(result)] if name]
    held = (result["headline"].get("low") or 0.0) > 0  # an effect that only its guard keeps from holding
    marks += ["its guard open"] * (result["guard"] == "open" and result["verdict"] == Headline.OPEN and held)
    if because and reason != Because.UNASKED:
        marks.append("the reason open" if reason == Because.OPEN else str(reason))
    marks += [f"premise: {why}" for why in result["premise"]["failing"]] if because else []
    marks += [result["kind"]] if result["kind"] != "trained" and because else []
    marks += ["disputed"] * bool(result.get("objection"))
    marks += ["exploratory"] * bool(result["exploratory"])
    if stale or result.get("stale"):
        marks.append("stale")
    elif now and is_older(result["hashes"]):
        marks.append(EARLIER)
    return f"{result['verdict']} ({', '.join(marks)})" if marks else str(result["verdict"])


def find_decisive(result: Mapping[str, Any]) -> str:
    """Return the rival whose comparison gave the verdict; "" if that with the paper's baseline gave the same."""
    words = {rival["name"]: rival["word"] for rival in result.get("rivals", ()) if not rival.get("aside")}
    own = next(iter(words.values()), result["verdict"])
    worst = next((name for name, word in words.items() if word == result["verdict"]), "")
    return "" if own == result["verdict"] else worst
