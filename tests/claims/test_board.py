"""Results side by side: by hand-made results, what a line says and where the picture draws it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from shuhari.lab.claims.board import (
    COLOURS,
    choose_reading,
    count_tries,
    detectable,
    draw,
    falls,
    false_holds,
    headline,
    list_metrics,
    rank,
    read_by_seed,
    subtract,
)
from shuhari.lab.claims.verdict import Headline


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
]


def test_a_line_says_effect_interval_and_what_could_be_found() -> None:
    assert headline(FOUND[0]) == "0.01 [0.005, 0.015] at 99.0%, margin 0.02, 8 seeds"
    assert headline(FOUND[2]) == "margin 0.02"
    assert detectable(FOUND[0]) == "planned 0.5, achieved 0.75"


def test_false_holds_count_tries_whose_premises_were_met() -> None:
    assert [count_tries(r) for r in FOUND] == [1, 1, 0]
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
        [*found, {**found[0], "arms": {}, "method": "untested"}], "beds/a/b", "score:area"
    )
    assert list(ranked) == ["better", "worse"]  # the ends halved: 0.3 and 0.1
    assert [e.value for e in ranked.values()] == pytest.approx([0.3, 0.1]) and ranked["worse"].n == 2
    half = 12.706 * 0.05  # of two differences, 0.05 and 0.15
    assert (ranked["worse"].low, ranked["worse"].high) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-3)


def test_a_picture_has_every_effect_in_margins() -> None:
    picture = ElementTree.fromstring(draw(FOUND))
    names = [t.text for t in picture.findall(".//{*}text") if t.get("text-anchor") == "end"]
    assert names == ["a/far", "a/small", "a/none"]  # the largest first, what was not measured last
    ticks = {
        t.text: float(str(t.get("x"))) for t in picture.findall(".//{*}text") if re.fullmatch(r"-?\d", str(t.text))
    }
    margin = ticks["1"] - ticks["0"]
    at = [(float(str(c.get("cx"))) - ticks["0"]) / margin for c in picture.findall(".//{*}circle")]
    assert at == pytest.approx([0.5], abs=0.01)  # of the small one
    (small,) = [p.get("d") for p in picture.findall(".//{*}path") if p.get("stroke") == COLOURS[Headline.SMALL]]
    low, high = map(float, re.findall(r"[\d.]+", str(small))[::2])
    assert [(low - ticks["0"]) / margin, (high - ticks["0"]) / margin] == pytest.approx([0.25, 0.75], abs=0.01)
    assert sum(str(p.get("d")).endswith("Z") for p in picture.findall(".//{*}path")) == 1  # beyond the picture's end


def test_two_results_are_compared_over_the_seeds_that_both_have() -> None:
    def of(*ends: float) -> dict[str, Any]:
        arms = {"method": {"curves": {"score": [{"x": [0.0, 10.0], "y": [end, end]} for end in ends]}}}
        return {"arms": arms, "budget": {"steps": 10}, "seeds": list(range(len(ends)))}

    both, alone = (read_by_seed(of(*ends), "method", "score:area") for ends in ((0.5, 0.75, 1.0), (0.25, 0.25)))
    assert both == {0: 0.5, 1: 0.75, 2: 1.0} and read_by_seed(of(1.0), "method", "other:area") == {}
    found = subtract(both, alone)
    assert (found.value, found.n) == (0.375, 2)


METHODS = (("rlvr/apo", 0.1), ("rlvr/campo", 0.2))  # which answers of are cut


def on_loops(method: str, cut: float) -> dict[str, Any]:
    def arm(rate: float) -> dict[str, Any]:
        curves = {"evaluate/mean": [1.0 - rate] * 2, "rollout/truncated": [rate] * 2}
        return {"curves": {name: [{"x": [0.0, 10.0], "y": y}] * 2 for name, y in curves.items()}}

    check = {"metric": "rollout/truncated:area", "direction": "down"}
    made = result(method, "holds", None, bed="beds/work/loops", seeds=[0, 1], budget={"steps": 10}, stale="older")
    more = {"because": "not asked", "guard": "holds", "premise": {"failing": []}, "kind": "trained", "exploratory": []}
    return {**made, **more, "checks": [check], "arms": {"method": arm(cut), "baseline": arm(0.3)}}


def test_a_bed_is_ranked_by_its_own_score_and_less_is_better_where_checks_say_so() -> None:
    results = [on_loops(*made) for made in METHODS]
    assert list_metrics(results) == {"evaluate/mean": 2, "rollout/truncated": 2}
    assert choose_reading("beds/work/loops", list_metrics(results)) == "evaluate/mean:area"
    assert choose_reading("beds/trie/twins", {"evaluate/mean": 1}) == "evaluate/mean:area"  # no exact one
    assert choose_reading("no/bed", {}) == ""
    assert falls(results, "rollout/truncated") and not falls(results, "evaluate/mean")
    assert [*rank(results, "beds/work/loops", "rollout/truncated:final")] == ["rlvr/campo", "rlvr/apo"]


def test_the_board_of_a_bed_names_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shuhari.desk.cli import main
    from shuhari.lab.claims import on_bed

    found = {name: on_loops(name, cut) for name, cut in METHODS}
    monkeypatch.setattr(on_bed, "read_kept", lambda name, at=None: found.get(name))

    def board(bed: str, *more: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["claim", "--board", bed, "--out", str(tmp_path), *more])
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = board("beds/work/loops", "--json")
    told = json.loads(out)
    assert code == 0 and told["by"] == "evaluate/mean:area" and len(told["metrics"]) == 2
    assert [m["method"] for m in told["methods"]] == ["rlvr/apo", "rlvr/campo"]
    assert [m["less_baseline"] for m in told["methods"]] == pytest.approx([0.2, 0.1])
    assert told["methods"][0]["verdict"] == "holds (stale)" and told["methods"][0]["value"] == pytest.approx(0.9)
    assert told["baseline"] == {"arm": "beds/work/loops (baseline)", "value": pytest.approx(0.7), "seeds": 2}
    cut = json.loads(board("beds/work/loops", "--json", "--by", "rollout/truncated:area")[1])
    assert [m["method"] for m in cut["methods"]] == ["rlvr/apo", "rlvr/campo"]  # fewest first
    for by, near in (("truncated", "did you mean 'rollout/truncated'"), ("evaluate/mean:aera", "did you mean 'area'"),
                     ("evaluate/meen:area", "There are evaluate/mean (2 methods), rollout/truncated")):  # fmt: skip
        code, _, err = board("beds/work/loops", "--by", by)
        assert code == 2 and near in err, err
    assert board("beds/wrk/loops")[0] == 2
    with pytest.raises(SystemExit) as ended:
        main(["claim", "rlvr/luspo", "--dry-run", "--by", "evaluate/mean:area"])
    assert ended.value.code == 2 and "of --board, which is not given" in capsys.readouterr().err
    code, _, err = board("beds/trie/twins")
    assert code == 1 and "nothing was measured on 'beds/trie/twins'" in err
