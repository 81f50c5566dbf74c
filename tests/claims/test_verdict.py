"""The rule: Student's interval against scipy's, and each corner of the table of verdicts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from shuhari.kernel.stats import t_interval
from shuhari.lab.claims.verdict import Because, Effect, Headline, Rule, Verdict, join_reasons

H, F, O = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN  # noqa: E741
SPREAD = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])  # mean 0; half a 95 % interval is 0.982


def rule(direction: str = "up", margin: float = 0.0, **more: Any) -> Rule:
    """That of an ablation, or of a guard, which alone may go `not lower`."""
    return Rule(direction, margin, role="because" if direction in ("up", "down") else "guard", **more)


def judged(by: Rule, ours: Any, theirs: Any) -> tuple[Verdict, Effect]:
    found = by.estimate(ours, theirs)
    return by.judge(found), found


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
    assert judged(rule(direction, margin), theirs + effect + SPREAD, theirs)[0] is verdict


def test_arms_that_do_the_same_show_nothing() -> None:
    same = [0.4] * 8
    verdict, found = judged(rule("up"), same, same)
    assert (verdict, found.why) == (O, "both sides are the same in every pair")
    nearly = [*same[:-1], same[-1] + 1]
    for one in (rule("up"), rule("down", factor=0.5)):
        verdict, found = judged(one, nearly, same)
        assert (verdict, found.why) == (O, "both sides are the same in 7 of 8 pairs")
    assert judged(rule("not lower", 0.01), same, same)[0] is H
    assert judged(rule("up", against=0.4), same, same)[0] is F  # a number is no arm: it was not reached


def test_a_factor_scales_what_is_compared_with() -> None:
    theirs = np.full(5, 10.0)
    verdict, found = judged(rule("down", factor=0.8), theirs * 0.7 + SPREAD / 10, theirs)
    assert verdict is H and found.value == pytest.approx(1.0)  # as it is claimed: down


def test_few_pairs_are_open_and_say_so() -> None:
    verdict, found = judged(rule(), [1, 2, 3, 4, math.nan], [0, 0, 0, 0, math.nan])
    assert verdict is O and found.n == 4 and "4 of 5" in found.why


def test_runs_without_a_value_on_one_side_alone_leave_it_open() -> None:
    """Those that are left may be the lucky ones."""
    verdict, found = judged(rule("down"), [5.0] * 5 + [math.nan] * 3, [10.0] * 8)
    assert verdict is O and found.n == 5 and "3 runs" in found.why


def test_equality_is_not_beyond_a_tolerance_of_nothing() -> None:
    assert judged(rule("not lower"), [1.0] * 8, [1.0] * 8)[0] is H
    assert judged(rule("not higher"), [1.0] * 8, [1.0] * 8)[0] is H


def test_no_room_for_an_effect_tells_nothing_but_that_it_is_the_other_way() -> None:
    up, near = rule("up", 0.02, range=(0.0, 1.0)), [0.99, 0.992, 0.988, 0.99, 0.99]
    verdict, found = judged(up, [0.97, 1.0, 0.98, 0.93, 1.0], near)
    assert (verdict, found.why) == (O, "baseline leaves 0.01 of the range")
    assert judged(up, [0.9, 0.91, 0.89, 0.9, 0.9], near)[0] is F
    assert judged(rule("down", 0.02, range=(0.0, 1.0)), [0.9, 0.91, 0.89, 0.9, 0.9], near)[0] is H
    verdict, found = judged(rule("down", 5, range=(0.0, 100.0)), [1.0, 4, 2, 3, 2], [2.0, 4, 3, 2, 2])  # steps to reach
    assert (verdict, found.why) == (O, "baseline leaves 2.6 of the range")


def test_both_arms_at_an_end_tell_nothing() -> None:
    up = rule("up", range=(0.0, 1.0))
    assert judged(up, [1.0] * 5, [0.985] * 5)[0] is O
    verdict, found = judged(up, [0.0] * 5, [0.01, 0.0, 0.0, 0.0, 0.0])
    assert (verdict, found.why) == (O, "both sides are the same in 4 of 5 pairs")
    verdict, found = judged(up, [0.0] * 5, [0.01, 0.0, 0.0, 0.01, 0.01])
    assert (verdict, found.why) == (O, "both arms sit at 0")
    assert judged(up, [0.0] * 5, [0.01] * 5)[0] is F  # the other way, which is a finding at any end
    assert judged(up, [1.0] * 5, [0.9] * 5)[0] is H
    assert judged(rule("up", against=0.5, range=(0.0, 1.0)), [1.0] * 5, [0.5] * 5)[0] is H  # a number sits nowhere


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'up'"):
        rule("upp")
    with pytest.raises(ValueError, match="margin is -1"):
        rule(margin=-1)
    with pytest.raises(ValueError, match="range is"):
        rule(range=(1.0, 0.0))
    with pytest.raises(ValueError, match="'becuase'; did you mean 'because'"):
        Rule(role="becuase")


def effect(low: float, high: float, why: str = "") -> Effect:
    return Effect((low + high) / 2, low, high, 8, 1.0, why)


M = 1.0  # the margin of the headlines below; what the seeds could find is 0.9 unless told


@pytest.mark.parametrize(
    ("direction", "low", "high", "found"),
    [
        ("up", 0.1, 1.0, Headline.HOLDS),  # an effect, and the margin is not excluded
        ("up", 2.0, 3.0, Headline.HOLDS),
        ("up", 0.1, 0.9, Headline.SMALL),
        ("up", 0.0, 0.9, Headline.BELOW),  # none was seen, and one of the margin is excluded
        ("up", -0.5, 1.0, Headline.BELOW),
        ("up", -0.5, 1.1, Headline.OPEN),
        ("up", -0.5, -0.1, Headline.LESS),
        ("up", -1.5, -0.1, Headline.REVERSED),
        ("up", -0.5, 0.0, Headline.BELOW),
        ("not lower", -0.9, 0.5, Headline.HOLDS),
        ("not lower", -0.9, -0.5, Headline.HOLDS),  # lower, by less than the tolerance
        ("not lower", -1.0, 0.5, Headline.OPEN),
        ("not lower", -3.0, -1.1, Headline.REVERSED),
        ("equal", -1.0, 1.0, Headline.HOLDS),
        ("equal", 0.5, 1.1, Headline.OPEN),
        ("equal", 1.1, 1.2, Headline.REVERSED),
        ("equal", -1.2, -1.1, Headline.REVERSED),
    ],
)
def test_a_headline_is_the_first_that_matches(direction: str, low: float, high: float, found: Headline) -> None:
    assert Rule(direction, M, role="headline").judge_headline(effect(low, high), 0.9) is found


def test_below_margin_needs_seeds_that_could_have_found_it() -> None:
    rule = Rule("up", M, role="headline")
    assert rule.judge_headline(effect(-3.0, 0.5), 1.1) is Headline.OPEN  # 0 inside, and an effect of 1 may be missed
    assert rule.judge_headline(effect(-3.0, -0.5), 1.1) is Headline.REVERSED
    assert rule.judge_headline(effect(0.1, 0.5), 1.1) is Headline.SMALL
    assert rule.judge_headline(effect(0.1, 1.5, "both arms sit at 1"), 0.1) is Headline.OPEN


def test_a_guard_that_fails_makes_it_cost_and_one_that_is_open_makes_it_open() -> None:
    rule = Rule("up", M, role="headline")
    told = {guard: rule.judge_headline(effect(0.5, 1.5), 0.9, guard) for guard in (H, F, O, None)}
    assert told == {H: Headline.HOLDS, F: Headline.COST, O: Headline.OPEN, None: Headline.HOLDS}
    assert rule.judge_headline(effect(0.5, 0.9), 0.9, F) is Headline.SMALL


@pytest.mark.parametrize(("direction", "gain"), [("up", 0.3), ("down", -0.3), ("not higher", -0.3), ("not lower", 0.3)])
def test_an_effect_is_signed_so_that_up_is_good(direction: str, gain: float) -> None:
    x, y = np.arange(6.0) + gain + [0, 0.1, -0.1, 0, 0.1, -0.1], np.arange(6.0)
    found = Rule(direction, M, role="guard" if "not" in direction else "headline").estimate(x, y, 0.99)
    theirs = ttest_1samp(abs(gain) + np.sign(gain) * (x - y - gain), 0).confidence_interval(0.99)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high)) and found.value == pytest.approx(0.3)
    assert found.sd == pytest.approx(np.std(x - y, ddof=1)) and found.n == 6


def test_a_ratio_is_in_shares_of_what_is_compared_with() -> None:
    y, rule = np.array([10.0, 20, 40, 10, 20]), Rule("down", 0.2, role="headline", ratio=True)
    found = rule.estimate(0.75 * y + SPREAD / 9, y)
    assert found.n == 5 and found.value == pytest.approx(0.25, abs=0.01)  # a quarter less
    assert rule.judge_headline(found, 0.1) is Headline.HOLDS
    some = rule.estimate([*(0.75 * y + SPREAD / 9), 1.0, 2.0], [*y, 0, 0])
    assert some.value == found.value and some.why == "baseline is 0 in 2 of 7 pairs, of which there is no share"
    assert rule.judge_headline(some, 0.1) is Headline.OPEN


def test_room_for_a_ratio_is_room_for_a_share() -> None:
    """A baseline of 0.05 under a most of 0.1 has room for 30 % more, which is 0.015."""
    y = np.full(5, 0.05) + SPREAD / 1000
    rule = Rule("up", 0.2, role="headline", ratio=True, range=(0.0, 0.1))
    assert rule.judge_headline(rule.estimate(1.3 * y + SPREAD / 2000, y), 0.1) is Headline.HOLDS
    tight = Rule("up", 1.1, role="headline", ratio=True, range=(0.0, 0.1))
    assert tight.estimate(1.3 * y + SPREAD / 2000, y).why == "baseline leaves 0.05 of the range"


@pytest.mark.parametrize(
    ("direction", "margin", "against", "met"),
    [("up", 0.5, 1.0, H), ("up", 1.4, 1.0, F), ("down", 0.0, 3.5, H), ("up", 0.0, 1.9, O), ("not lower", 1.2, 2.1, H)],
)
def test_a_premise_has_its_margin_in_it(direction: str, margin: float, against: float, met: Verdict) -> None:
    rule = Rule(direction, margin, "baseline", against, role="premise")
    values = 2.0 + SPREAD / 3  # the 95 % interval is 2 -+ 0.33
    assert rule.judge(rule.estimate(values, [against] * 5)) is met


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ((), Because.UNASKED), ((H,), Because.BY), ((H, O), Because.OPEN), ((O, F), Because.NOT), ((H, F), Because.NOT)
    ],
)  # fmt: skip
def test_every_ablation_must_say_that_the_reason_is_the_reason(of: tuple[Verdict, ...], told: Because) -> None:
    assert join_reasons(of) is told


def test_an_ablation_says_no_where_it_is_as_good_or_better() -> None:
    rule = Rule("up", 0.2, against="ablated", role="because")
    found = [rule.judge(effect(*ends)) for ends in ((0.1, 0.3), (-0.1, 0.2), (-0.2, -0.1), (-0.1, 0.3))]
    assert found == [H, F, F, O]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"role": "headlin", "margin": 1.0}, "did you mean 'headline'"),
        ({"role": "headline"}, "margin is missing"),
        ({"role": "headline", "margin": 1.0, "factor": 0.8}, "ratio = true"),
        ({"role": "guard"}, "expected 'not lower'"),
        ({"role": "because", "direction": "not lower"}, "expected 'up' or 'down'"),
        ({"role": "premise"}, "arm is 'method', and the check is a premise"),
        ({"role": "", "direction": "equal"}, "a role of a check"),
    ],
)
def test_mistakes_of_a_role_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Rule(**given)
