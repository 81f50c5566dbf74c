"""The rule: Student's interval against scipy's, and each corner of the table of verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from shuhari.claims.verdict import Rule, Verdict, overall
from shuhari.stats import t_interval

H, F, O = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN  # noqa: E741
SPREAD = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])  # mean 0; half a 95 % interval is 0.982


@pytest.mark.parametrize("n", [2, 5, 8, 40])
def test_the_interval_is_scipys(n: int) -> None:
    x = np.random.default_rng(n).normal(0.3, 1.0, n)
    found, theirs = t_interval(x), ttest_1samp(x, 0).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), (theirs.low, theirs.high), rtol=1e-12)
    assert found.n == n


def test_an_interval_leaves_nan_out_and_needs_two() -> None:
    assert t_interval([1.0, math.nan, 1.0]).n == 2
    assert math.isnan(t_interval([1.0]).low) and math.isnan(t_interval([math.nan]).value)


@pytest.mark.parametrize(
    ("direction", "margin", "effect", "verdict"),
    [
        ("up", 0.0, 2.0, H),
        ("up", 0.0, 0.5, O),  # [-0.48, 1.48]
        ("up", 0.0, -0.5, O),
        ("up", 0.0, -2.0, F),
        ("up", 1.5, 0.5, F),  # it may be anything up to 1.48, which falls short of 1.5
        ("up", 1.4, 0.5, O),
        ("down", 0.0, -2.0, H),
        ("down", 0.0, 2.0, F),
        ("down", 1.5, -0.5, F),
        ("not lower", 1.0, 0.0, H),  # [-0.98, 0.98] > -1
        ("not lower", 0.9, 0.0, O),
        ("not lower", 0.9, -2.0, F),
        ("not higher", 1.0, 0.0, H),
        ("not higher", 0.9, 2.0, F),
    ],
)
def test_the_table(direction: str, margin: float, effect: float, verdict: Verdict) -> None:
    theirs = np.arange(5.0)
    assert Rule(direction, margin).judge(theirs + effect + SPREAD, theirs)[0] is verdict


def test_arms_that_do_the_same_show_nothing() -> None:
    same = [0.4] * 8
    assert Rule("up").judge(same, same)[::2] == (O, "both sides are the same in every pair")
    nearly = [*same[:-1], same[-1] + 1]
    why = f"both sides are the same in {len(same) - 1} of {len(same)} pairs"
    assert Rule("up").judge(nearly, same)[::2] == Rule("down", factor=0.5).judge(nearly, same)[::2] == (O, why)
    assert Rule("not lower", 0.01).judge(same, same)[0] is H
    assert Rule("up", against=0.4).judge(same, same)[0] is F  # a number is no arm: it was not reached


def test_a_factor_scales_what_is_compared_with() -> None:
    theirs = np.full(5, 10.0)
    verdict, found, _ = Rule("down", factor=0.8).judge(theirs * 0.7 + SPREAD / 10, theirs)
    assert verdict is H and found.value == pytest.approx(-1.0)


def test_few_pairs_are_open_and_say_so() -> None:
    verdict, found, why = Rule().judge([1, 2, 3, 4, math.nan], [0, 0, 0, 0, math.nan])
    assert verdict is O and found.n == 4 and "4 of 5" in why


def test_runs_without_a_value_on_one_side_alone_leave_it_open() -> None:
    """Those that are left may be the lucky ones."""
    verdict, found, why = Rule("down").judge([5.0] * 5 + [math.nan] * 3, [10.0] * 8)
    assert verdict is O and found.n == 5 and "3 runs" in why


def test_equality_is_not_beyond_a_tolerance_of_nothing() -> None:
    assert Rule("not lower").judge([1.0] * 8, [1.0] * 8)[0] is H
    assert Rule("not higher").judge([1.0] * 8, [1.0] * 8)[0] is H


def test_no_room_for_an_effect_tells_nothing_but_that_it_is_the_other_way() -> None:
    rule, near = Rule("up", margin=0.02, range=(0.0, 1.0)), [0.99, 0.992, 0.988, 0.99, 0.99]
    assert rule.judge([0.97, 1.0, 0.98, 0.93, 1.0], near)[::2] == (O, "baseline leaves 0.01 of the range")
    assert rule.judge([0.9, 0.91, 0.89, 0.9, 0.9], near)[0] is F
    assert Rule("down", margin=0.02, range=(0.0, 1.0)).judge([0.9, 0.91, 0.89, 0.9, 0.9], near)[0] is H
    steps = Rule("down", margin=5, range=(0.0, 100.0))  # to reach something
    assert steps.judge([1.0, 4, 2, 3, 2], [2.0, 4, 3, 2, 2])[::2] == (O, "baseline leaves 2.6 of the range")


def test_both_arms_at_an_end_tell_nothing() -> None:
    rule = Rule("up", range=(0.0, 1.0))
    assert rule.judge([1.0] * 5, [0.985] * 5)[0] is O
    assert rule.judge([0.0] * 5, [0.01] * 5)[::2] == (O, "both arms sit at 0")
    assert rule.judge([1.0] * 5, [0.9] * 5)[0] is H
    assert Rule("up", against=0.5, range=(0.0, 1.0)).judge([1.0] * 5, [0.5] * 5)[0] is H  # a number sits nowhere


@pytest.mark.parametrize(
    ("of", "verdict"), [((H, H), H), ((H, O), O), ((H, F), F), ((O, F), F), ((O,), O)]
)  # fmt: skip
def test_several_checks(of: tuple[Verdict, ...], verdict: Verdict) -> None:
    assert overall(of) is verdict


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'up'"):
        Rule("upp")
    with pytest.raises(ValueError, match="margin is -1"):
        Rule(margin=-1)
    with pytest.raises(ValueError, match="range is"):
        Rule(range=(1.0, 0.0))
