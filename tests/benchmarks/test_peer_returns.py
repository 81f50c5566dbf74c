"""Final returns beside a peer's: the interval against scipy's tests, the verdict by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scipy.stats import ttest_ind, ttest_rel


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/peers/returns.py, which is of no package and puts its folders on the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("returns", Path(__file__).parents[2] / "benchmarks/peers/returns.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OURS, THEIRS = [-150.0, -170.0, -160.0, -155.0, -180.0], [-150.0, -190.0, -140.0, -175.0, -260.0]


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_is_scipys(returns, paired):
    told = returns.judge(OURS, THEIRS, 1000.0, paired=paired)
    test = ttest_rel(OURS, THEIRS) if paired else ttest_ind(OURS, THEIRS, equal_var=False)
    expected = test.confidence_interval(0.95)
    assert told["difference"] == pytest.approx(20.0)
    assert (told["low"], told["high"]) == pytest.approx((expected.low, expected.high))


def test_the_verdict_by_hand(returns):
    """Five pairs that differ by d ± 4 · (-1, -1/2, 0, 1/2, 1): a deviation of sqrt(10), a half width of 2.776 · sqrt(2)
    = 3.926. The gap is 100, so the interval has to lie above -10."""
    base = [0.0] * 5
    for d, verdict in ((-6.0, "not worse"), (-6.1, "not shown"), (-13.9, "not shown"), (-14.0, "worse")):
        ours = [d + 4 * x for x in (-1, -0.5, 0, 0.5, 1)]
        told = returns.judge(ours, base, 100.0, paired=True)
        assert told["margin"] == pytest.approx(10.0)
        assert told["high"] - told["low"] == pytest.approx(2 * 3.926, abs=1e-3)
        assert told["verdict"] == verdict
    assert returns.judge(ours[:4], base[:4], 100.0, paired=True)["verdict"] == "too few seeds"


def test_a_summary_is_of_the_seeds_that_both_sides_have(returns):
    runs = [{"seed": s, "side": "ours", "return": x} for s, x in enumerate(OURS)]
    runs += [{"seed": s, "side": "theirs", "return": x} for s, x in enumerate(THEIRS[:3])]
    found = {"random": -1300.0, "expert": -300.0, "runs": {"IQL": runs, "SAC": runs[:1]}}
    (case,) = returns.summary(found)
    assert (case["case"], case["seeds"], case["ours"]) == ("IQL", [0, 1, 2], OURS[:3])
    assert case["verdict"] == "too few seeds" and case["difference"] == pytest.approx(0.0)
    assert returns.row(case)[:5] == ("IQL", "d3rlpy", "4,000 updates", "-160 ± 10", "-160 ± 26")
