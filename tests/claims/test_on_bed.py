"""All that was measured on a bed, side by side: whose values, whose curves, and a bed that saturates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from shuhari.desk.comparison import ComparisonError
from shuhari.desk.sides import compare_bed, compare_together
from shuhari.lab.claims.on_bed import find_name, find_saturation, list_results, read_by_seed, read_curves
from shuhari.store import Store

BASE = [0.5, 0.6, 0.4, 0.55, 0.45]


def make(method: str, ends: list[float], base: list[float] = BASE, first: int = 1000, level: float = 0.95) -> Any:
    """A result on the bed `rev`: curves of evaluate/mean from 0 at 0 steps to these ends at 10."""

    def arm(side: list[float], kind: str) -> dict[str, Any]:
        curves = {"evaluate/mean": [{"x": [0.0, 10.0], "y": [0.0, end]} for end in side]}
        return {"curves": curves, "runs": [f"{kind}-s{first + i}" for i in range(len(side))]}

    return {"method": method, "bed": "rev", "budget": {"steps": 10}, "seeds": list(range(first, first + len(ends))),
            "arms": {"method": arm(ends, method[-1] * 16), "baseline": arm(base, "b" * 16)}, "checks": [],
            "headline": {"metric": "evaluate/mean:final", "level": level}, "task": {}}  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Path:
    found = [make("rlvr/a", [0.9, 0.95, 0.85, 0.9, 0.9]), make("rlvr/c", [0.5, 0.7, 0.4, 0.45, 0.47])]
    for one in found:
        path = tmp_path / "explore" / "rev" / "claims" / f"{one['method']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    return tmp_path


def test_arms_of_a_bed_are_its_baseline_and_the_methods_by_name(out: Path) -> None:
    sides = compare_bed("rev", out, out / "runs", "evaluate/mean:final")
    assert [*sides.arms] == ["rev (baseline)", "rlvr/a", "rlvr/c"] and sides.axis == "steps"
    assert sides.arms["rev (baseline)"]["value"] == pytest.approx(0.5) and "difference" not in sides.arms[sides.first]
    a = sides.arms["rlvr/a"]
    wanted = scipy.stats.ttest_rel([0.9, 0.95, 0.85, 0.9, 0.9], BASE).confidence_interval(0.975)
    assert (a["level"], a["low"], a["high"]) == pytest.approx((0.975, wanted.low, wanted.high))
    assert sides.arms["rlvr/c"]["level"] == 0.95 and "2 comparisons with rev (baseline)" in sides.caveats[0]
    [curves] = sides.panels.values()
    assert [*curves] == [*sides.arms] and all(x[0] == 0 and y[0] == 0 for x, y in curves["rlvr/a"])  # step 0
    half = compare_bed("rev", out, out / "runs", "evaluate/mean:area")
    assert half.arms["rlvr/a"]["value"] == pytest.approx(0.45)  # a line from 0


def test_a_look_at_another_level_is_divided_too(out: Path) -> None:
    told = compare_together([make("rlvr/a", [0.9] * 5, level=0.99), make("rlvr/c", [0.8] * 5, level=0.99)])
    assert [e["level"] for e in told[0].arms.values() if "level" in e] == pytest.approx([0.995, 0.99])
    assert compare_together([make("rlvr/a", [0.9] * 5)]) == []


def test_a_guard_that_results_do_not_keep_is_read_from_the_runs(out: Path) -> None:
    with pytest.raises(ComparisonError, match="no result on 'rev' has 'rollout/length:final', nor have the runs"):
        compare_bed("rev", out, out / "runs", guards=["rollout/length:final"])
    for kind in "acb":
        for seed in range(1000, 1005):
            with Store.open(out / "runs" / f"{kind * 16}-s{seed}") as store:
                store.write_text("recipe.toml", f"seed = {seed}\n")
                more = {"rollout/length": 3.0 + (kind == "a") * seed / 1000, "spent/steps": 10}
                store.commit(1, stage="rl", wall=1.0, metrics=more)
    sides = compare_bed("rev", out, out / "runs", guards=["rollout/length:final"])
    guard = sides.guards["rollout/length:final"]
    assert guard["rlvr/a"]["difference"] == pytest.approx(1.002)
    assert "no room" in guard["rlvr/c"]["why"] and len(sides.panels) == 2


def test_a_method_with_a_baseline_of_its_own_is_named(out: Path) -> None:
    path = out / "explore" / "rev" / "claims" / "rlvr" / "d.json"
    path.write_text(json.dumps(make("rlvr/d", [0.7] * 5, base=[0.1, 0.2, 0.3, 0.2, 0.1])))
    sides = compare_bed("rev", out, out / "runs", "evaluate/mean:final")
    assert any(text.endswith("compared with that: rlvr/d") for text in sides.caveats)
    assert sides.arms["rlvr/d"]["difference"] == pytest.approx(0.7 - 0.18)  # less its own


def test_a_bed_is_found_by_its_file_and_by_the_nearest_name(out: Path, tmp_path: Path) -> None:
    assert find_name("rev") == find_name("gone/rev.toml") == "rev"
    named = tmp_path / "x.toml"
    named.write_text('name = "mine"\nextends = "baselines/bandit"\n')
    assert find_name(str(named)) == "mine"
    assert [*list_results("rev", out)] == ["rlvr/a", "rlvr/c"]
    with pytest.raises(ValueError, match="did you mean 'rev'"):
        list_results("revv", out)


@pytest.mark.parametrize(
    ("curve", "told"),
    [
        ([0.2, 0.985, 0.99, 1.0, 1.0], "within 0.02 of 1 from 3 of 10 steps on"),
        ([0.2, 0.9, 0.97, 0.99, 1.0], ""),  # from 7 on
        ([0.01, 0.0, 0.0, 0.02, 0.01], "within 0.02 of 0 from 0 of 10 steps on"),
        ([0.2, 0.99, 0.5, 0.99, 1.0], ""),  # not to its end
        ([0.2, 0.3, 0.4, 0.5, 0.6], ""),
    ],
)
def test_a_bed_whose_baseline_sits_at_an_end_early_saturates(curve: list[float], told: str) -> None:
    found = make("rlvr/a", [0.9] * 5)
    found["arms"]["baseline"]["curves"]["evaluate/mean"] = [{"x": [0.0, 3.0, 5.0, 7.0, 10.0], "y": curve}] * 5
    assert told in find_saturation(found) and bool(told) == bool(find_saturation(found))
    returns = {**found, "headline": {"metric": "rollout/return:area"}}
    assert find_saturation(returns) == ""  # no share


def test_curves_of_runs_that_diverged_are_left_out(out: Path) -> None:
    found = make("rlvr/a", [0.9] * 5)
    found["arms"]["method"]["curves"]["evaluate/mean"][0] = {"x": [], "y": []}
    assert len(read_curves(found, "method", "evaluate/mean")) == 4
    values = read_by_seed(found, "method", "evaluate/mean:final")
    assert math.isnan(values.pop(1000)) and set(values.values()) == {0.9}  # no value, and no error
