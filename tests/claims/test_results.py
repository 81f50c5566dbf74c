"""The results that are kept: of the recipes and modules as they are, within the bar, and judged by the rule."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shuhari.claims.claim import digest, read
from shuhari.claims.curve import Reading
from shuhari.claims.result import stale
from shuhari.claims.verdict import Rule, Verdict, overall
from shuhari.cli.claiming import BEGIN, CHANCE
from shuhari.config.library import names, result, results
from shuhari.config.recipe import load
from shuhari.config.settings import Settings

CLAIMS = [name for name in names() if load(name).tree.get("claim")]
RESULTS = [p.relative_to(results()).with_suffix("").as_posix() for p in sorted(results().rglob("*.json"))]


@pytest.mark.parametrize("smoke", [False, True], ids=["full", "smoke"])
@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_can_be_read(name: str, smoke: bool) -> None:
    claim = read(name, smoke=smoke)
    assert claim.says and claim.method.tree["paper"]["title"]
    arms = [digest(arm) for arm in claim.arms.values()]
    assert len({*arms}) == len(arms), "an arm that is another's copy"
    for check in claim.checks:
        Settings().component("quantity", check.quantity, name, "metric")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_of_the_claim_as_it_stands_or_says_that_it_is_not(name: str) -> None:
    found = kept(name)
    assert found.get("stale") or stale(read(name), found) == "", f"shuhari claim --prove {name}"


@pytest.mark.parametrize("name", RESULTS)
def test_a_verdict_follows_from_the_values(name: str) -> None:
    found, verdicts = kept(name), []
    for check in found["checks"]:
        table = {k: check[k] for k in ("direction", "margin", "arm", "against", "factor")}
        rule = Rule(**table, range=tuple(check.get("range", ())))
        ours = numbers(check["values"][rule.arm])
        fixed = not isinstance(rule.against, str)
        theirs = [float(rule.against)] * len(ours) if fixed else numbers(check["values"][rule.against])
        verdict, estimate, _ = rule.judge(ours, theirs)
        assert verdict == check["verdict"], check
        if estimate.n > 1:
            scale = max(map(abs, [*ours, *theirs, 1e-9]))
            told = [check[k] for k in ("difference", "low", "high")]
            assert [estimate.value, estimate.low, estimate.high] == pytest.approx(
                told, abs=1e-4 * scale
            )  # of roundings
        verdicts.append(verdict)
    assert overall(map(Verdict, verdicts)) == found["verdict"] == found["history"][-1]["verdict"]


@pytest.mark.parametrize("name", RESULTS)
def test_values_are_those_of_the_curves(name: str) -> None:
    found = kept(name)
    amount = next(iter((found["budget"] or {"": math.nan}).values()))
    for check in found["checks"]:
        if check.get("use", "metric") != "metric" or "study" in load(name).tree:
            continue
        reading = Reading.of(check["metric"])
        for arm, values in check["values"].items():
            for i, value in enumerate(numbers(values)):
                points = {m: found["arms"][arm]["curves"][m][i] for m in reading.names}
                xs = sorted({x for p in points.values() for x in p["x"]})
                columns = {m: [dict(zip(p["x"], p["y"], strict=True)).get(x) for x in xs] for m, p in points.items()}
                assert reading(columns, xs, {}, amount) == pytest.approx(value, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize("name", RESULTS)
def test_no_claim_sits_at_the_floor_or_the_ceiling(name: str) -> None:
    found = kept(name)
    if found["chance"]:  # a warm-started policy of a task with a score
        assert found["chance"]["mean"] < CHANCE
        starts = [start["mean"] for start in found["start"].values() if start]
        assert all(BEGIN[0] <= s <= BEGIN[1] for s in starts) and max(starts) - min(starts) < 0.02


def kept(name: str) -> dict[str, Any]:
    found = result(name)
    assert found is not None
    return found


def numbers(values: list[float | None]) -> list[float]:
    return [math.nan if v is None else v for v in values]
