"""Results side by side: by hand-made results, what a line says and where the picture draws it."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from shuhari.claims.board import count_tries, detectable, draw, false_holds, headline, rank, read_by_seed, subtract


def result(method: str, verdict: str, ends: tuple[float, float, float] | None, **more: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"margin": 0.02, "direction": "down", "n": 8, "level": 0.99}
    head |= dict(zip(("effect", "low", "high"), ends, strict=True)) if ends else {}
    history = [{"try": 1, "verdict": "not tested"}, {"try": 2, "verdict": verdict}]
    mde = {"planned": 0.01, "achieved": 0.015}
    return {"method": method, "verdict": verdict, "headline": head, "mde": mde, "history": history, **more}


FOUND = [
    result("a/small", "holds, small", (0.01, 0.005, 0.015)),
    result("a/far", "holds", (0.2, 0.1, 0.3)),
    result("a/none", "not tested", None),
    {
        "method": "a/old",
        "verdict": "holds",
        "history": [{"verdict": "holds"}],
        "checks": [{"margin": 0.1, "direction": "down", "difference": -0.1, "low": -0.2, "high": -0.05}],
    },
]


def test_a_line_says_effect_interval_and_what_could_be_found() -> None:
    assert headline(FOUND[0]) == "0.01 [0.005, 0.015] at 99.0%, margin 0.02, 8 seeds"
    assert headline(FOUND[2]) == "margin 0.02"
    assert detectable(FOUND[0]) == "planned 0.5, achieved 0.75"


def test_false_holds_count_tries_whose_premises_were_met() -> None:
    assert [count_tries(r) for r in FOUND] == [1, 1, 0, 0]
    again = {
        **FOUND[1],
        "history": [*FOUND[1]["history"], {"try": 3, "verdict": "open"}, {"try": 3, "verdict": "open"}],
    }
    assert count_tries(again) == 2
    equal = {**again, "headline": {**again["headline"], "direction": "equal"}}  # where nothing is, it holds
    assert false_holds([again, equal]) == false_holds([again])
    assert "0.075 of their 3 tries" in false_holds([FOUND[0], again, FOUND[2]])


def test_methods_on_a_bed_are_ranked_by_their_paired_difference() -> None:
    def on(bed: str, method: str, *ends: float) -> dict[str, Any]:
        arms = {
            name: {"curves": {"score": [{"x": [0.0, 10.0], "y": [0.0, end + i]} for i, end in enumerate(side)]}}
            for name, side in (("method", ends), ("baseline", [0.0] * len(ends)))
        }
        seeds = list(range(len(ends)))
        return {"method": method, "bed": bed, "arms": arms, "budget": {"steps": 10}, "seeds": seeds}

    found = [on("beds/a/b", "worse", 0.1, 0.3), on("beds/a/b", "better", 0.5, 0.7), on("beds/c/d", "else", 9.0, 9.0)]
    ranked = rank(
        [*found, {**found[0], "arms": {}, "method": "untested"}, FOUND[3] | {"arms": {}}], "beds/a/b", "score:area"
    )
    assert list(ranked) == ["better", "worse"]  # the ends halved: 0.3 and 0.1
    assert [e.value for e in ranked.values()] == pytest.approx([0.3, 0.1]) and ranked["worse"].n == 2
    half = 12.706 * 0.05  # of two differences, 0.05 and 0.15
    assert (ranked["worse"].low, ranked["worse"].high) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-3)


def test_a_picture_has_every_effect_in_margins() -> None:
    picture = ElementTree.fromstring(draw(FOUND))
    names = [t.text for t in picture.findall(".//{*}text") if t.get("text-anchor") == "end"]
    assert names == ["a/far", "a/small", "a/none", "a/old"]  # the largest first, those of the older rule last
    ticks = {
        t.text: float(str(t.get("x"))) for t in picture.findall(".//{*}text") if re.fullmatch(r"-?\d", str(t.text))
    }
    margin = ticks["1"] - ticks["0"]
    at = [(float(str(c.get("cx"))) - ticks["0"]) / margin for c in picture.findall(".//{*}circle")]
    assert at == pytest.approx([0.5, 1.0], abs=0.01)  # of the small one, and of the old one, whose claim was "down"
    (old,) = [p.get("d") for p in picture.findall(".//{*}path") if p.get("stroke") == "#9db4cf"]
    low, high = map(float, re.findall(r"[\d.]+", str(old))[::2])
    assert [(low - ticks["0"]) / margin, (high - ticks["0"]) / margin] == pytest.approx([0.5, 2.0], abs=0.01)
    assert sum(str(p.get("d")).endswith("Z") for p in picture.findall(".//{*}path")) == 1  # beyond the picture's end


def test_two_results_are_compared_over_the_seeds_that_both_have() -> None:
    def of(*ends: float) -> dict[str, Any]:
        arms = {"method": {"curves": {"score": [{"x": [0.0, 10.0], "y": [end, end]} for end in ends]}}}
        return {"arms": arms, "budget": {"steps": 10}, "seeds": list(range(len(ends)))}

    both, alone = (read_by_seed(of(*ends), "method", "score:area") for ends in ((0.5, 0.75, 1.0), (0.25, 0.25)))
    assert both == {0: 0.5, 1: 0.75, 2: 1.0} and read_by_seed(of(1.0), "method", "other:area") == {}
    found = subtract(both, alone)
    assert (found.value, found.n) == (0.375, 2)
