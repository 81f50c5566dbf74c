"""A result in words: its verdict and what belongs to it, the same wherever it is told.

Left out: numbers (`board`), tables of checks (`cli.verdicts`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuhari.lab.claims.sources import is_older
from shuhari.lab.claims.verdict import HELD, Because

EARLIER = "earlier version of the code"  # what a result was measured on, where the library has changed since


def describe_verdict(result: Mapping[str, Any], *, because: bool = True, now: bool = False, stale: str = "") -> str:
    """The verdict, and in brackets what it hangs on: `holds (its guard open, not by it, exploratory, stale)`.

    because: with what ablations say of the paper's reason (not where that has a column of its own). now: whether the
    library has changed since, `EARLIER`, which a page that is written once cannot say. stale: why, where the result
    itself does not say it yet."""
    reason = result["because"]
    marks = ["its guard open"] * (result["verdict"] in HELD and result["guard"] == "open")
    if because and reason != Because.UNASKED:
        marks.append("the reason open" if reason == Because.OPEN else str(reason))
    marks += [f"premise: {why}" for why in result["premise"]["failing"]] if because else []
    marks += [result["kind"]] if result["kind"] != "trained" and because else []
    marks += ["exploratory"] * bool(result["exploratory"])
    if stale or result.get("stale"):
        marks.append("stale")
    elif now and is_older(result["hashes"]):
        marks.append(EARLIER)
    return f"{result['verdict']} ({', '.join(marks)})" if marks else str(result["verdict"])
