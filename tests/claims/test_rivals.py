"""Planted claims that must not hold: a better rate, given information, a method that never acts, an open guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from in_process import stay_in_process, write_changed
from shuhari.config.overlay import RecipeError
from shuhari.lab.claims import runs
from shuhari.lab.claims.board import headline, make_line, ruled
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.gaps import find_gaps, find_spending
from shuhari.lab.claims.knobs import UNEQUAL, UNTRIED, find_shared_knobs, is_untried, list_ours, list_turned
from shuhari.lab.claims.measure import measure
from shuhari.lab.claims.verdict import WORST, Effect, Headline, Rule, Verdict, join_comparisons
from shuhari.lab.claims.wording import describe_verdict

RECIPE = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
worth = "half a reward is what the best arm pays more than the next"
budget = {steps = 12}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.lr = 0.02
arms.turned.part.policy.optimiser.lr = 0.29
arms.slow.part.policy.optimiser.lr = 0.03
looks = [5]
check = [
  {role = "premise", metric = "reward/mean:last=5", against = "baseline", arm = "turned", direction = "up"},
  {role = "dose", metric = "policy/grad_norm:mean", against = 0.0},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.05},
  {role = "rival", against = "slow", kind = "knob"},
  {role = "guard", metric = "reward/mean:last=5", direction = "not lower", margin = 0.5},
]
"""


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stay_in_process(patch, runs)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def state(tmp_path: Path, *changes: tuple[str, str]) -> str:
    return write_changed(tmp_path, RECIPE, *changes)


def test_a_claim_without_gaps_holds_against_its_rivals(tmp_path: Path, root: Path) -> None:
    claim = read(state(tmp_path))
    assert find_gaps(claim) == ()
    found = measure(claim, root)
    assert (found["verdict"], found["gaps"], found["seen"]) == ("holds", [], False)
    assert [(r["name"], r["kind"], r["word"]) for r in found["rivals"]] == [
        ("baseline", "paper", "holds"), ("slow", "knob", "holds")
    ]  # fmt: skip
    assert found["dose"]["verdict"] == "met" and found["worth"] == claim.worth
    assert found["rivals"][0]["effect"] > found["rivals"][1]["effect"] > 0.05


@pytest.mark.parametrize("kind", ["knob", "information", "compute"])
def test_a_method_that_is_the_baseline_at_a_better_rate_does_not_hold(tmp_path: Path, root: Path, kind: str) -> None:
    found = measure(read(state(tmp_path, ('"slow", kind = "knob"', f'"turned", kind = "{kind}"'))), root)
    assert found["rivals"][0]["word"] == "holds" and found["rivals"][1]["word"] in ("below margin", "open")
    assert found["verdict"] == found["rivals"][1]["word"] and found["because"] == "not asked"
    assert "against turned" in describe_verdict(found)
    rival = found["rivals"][1]
    assert headline(found).endswith(f"; against turned {rival['effect']:.3g} [{rival['low']:.3g}, {rival['high']:.3g}]")
    line = make_line(found)
    assert line is not None and line.ends is not None and line.ends[0] == pytest.approx(rival["effect"] / 0.05)


def test_a_method_that_never_acts_is_not_tested(tmp_path: Path, root: Path) -> None:
    idle = ("part.policy.optimiser.lr = 0.3\n", "part.policy.optimiser = {lr = 0.02, clip = 1e9}\n")
    base = ("baseline.part.policy.optimiser.lr = 0.02", "baseline.part.policy.optimiser = {lr = 0.02, clip = 1e8}")
    found = measure(read(state(tmp_path, idle, base)), root)
    assert found["verdict"] == "not tested"
    assert found["premise"]["failing"][-1].endswith("every number of 'method' and 'baseline' is the same")


def test_a_dose_below_its_floor_is_not_tested(tmp_path: Path, root: Path) -> None:
    found = measure(read(state(tmp_path, ("against = 0.0}", "against = 1e6}"))), root)
    assert found["verdict"] == "not tested" and found["dose"]["verdict"] == "not met"
    assert "does not act here: policy/grad_norm:mean at least 1e+06" in found["premise"]["failing"][0]


def test_an_open_guard_makes_the_claim_open(tmp_path: Path, root: Path) -> None:
    guard = ('"reward/mean:last=5", direction = "not', '"policy/grad_norm:last=1", direction = "not')
    found = measure(read(state(tmp_path, ("margin = 0.5}", "margin = 0.0}"), guard)), root)
    assert found["guard"] in ("open", "fails") and found["verdict"] != "holds"


# `idle` learns nothing, and so keeps most of the gradient that the headline asks for
PAID = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.1
[claim]
says = "keeps more of its gradient"
budget = {steps = 12}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.lr = 0.3
arms.idle.part.policy.optimiser.lr = 1e-6
looks = [5]
check = [
  {role = "premise", metric = "reward/mean:last=5", against = "baseline", arm = "idle", direction = "down"},
  {role = "headline", metric = "policy/grad_norm:mean", direction = "up", margin = 0.05},
  {role = "rival", against = "idle", kind = "knob"},
  {role = "guard", metric = "reward/mean:last=5", direction = "not lower", margin = 0.25},
]
"""


@pytest.mark.parametrize(
    ("margin", "guard", "rivals", "aside", "verdict"),
    [
        (0.25, "kept", "fails", True, "holds, small"),  # the method loses 0.18 [0.12, 0.23] of reward, the rival 0.35
        (0.5, "kept", "kept", False, "reversed, small"),
        (0.3, "kept", "open", False, "reversed, small"),  # only a guard that fails sets a rival aside
        (0.1, "fails", "fails", False, "reversed, small"),  # a method that pays too is compared
    ],
)
def test_a_rival_that_pays_where_the_method_does_not_is_set_aside(
    tmp_path: Path, root: Path, margin: float, guard: str, rivals: str, aside: bool, verdict: str
) -> None:
    found = measure(read(write_changed(tmp_path, PAID, ("margin = 0.25", f"margin = {margin}"))), root)
    rival = found["rivals"][1]
    assert (found["guard"], rival["guard"], rival["aside"], found["verdict"]) == (guard, rivals, aside, verdict)
    assert rival["word"] == "reversed, small" and "guard" not in found["rivals"][0]
    assert ("against idle" in describe_verdict(found)) is not aside
    assert any("set aside: it fails the guard" in ruled(check) for check in found["checks"]) is aside


def test_a_rival_without_the_guards_metric_counts(tmp_path: Path, root: Path) -> None:
    idle = "arms.idle.part.policy"
    imitates = (f"{idle}.optimiser.lr = 1e-6", f'{idle} = {{optimiser.lr = 1e-6, terms.loss = {{use = "nll"}}}}')
    guard = ('"reward/mean:last=5", direction = "not', '"policy/loss/clip:final", direction = "not')
    rival = measure(read(write_changed(tmp_path, PAID, imitates, guard)), root)["rivals"][1]
    assert "aside" not in rival and rival["word"]


# a method that changes next to nothing, at the rate of its baseline; `fast` has a better one
TUNED = """extends = "baselines/bandit"
part.policy.optimiser = {lr = 0.02, weight_decay = 1e-4}
[claim]
says = "learns sooner"
budget = {steps = 12}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.weight_decay = 0.0
arms.fast.part.policy.optimiser = {lr = 0.3, weight_decay = 0.0}
arms.method_fast.part.policy.optimiser.lr = 0.3
arms.other = {part.policy = {optimiser.weight_decay = 0.0, terms.entropy = {use = "entropy", weight = 0.01}}}
arms.taught = {part.policy = {optimiser.weight_decay = 0.0, terms.more = {use = "nll", weight = 0.01}}}
looks = [5]
check = [
  {role = "premise", metric = "reward/mean:last=5", against = "baseline", arm = "fast", direction = "up"},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.05},
  {role = "rival", against = "fast", kind = "knob"},
]
"""


def test_a_rival_by_a_knob_that_the_method_has_too_asks_for_the_method_with_it_turned(
    tmp_path: Path, root: Path
) -> None:
    untried = measure(read(write_changed(tmp_path, TUNED)), root)["checks"][2]
    assert untried["effect"] < -0.05 and (untried["verdict"], untried["why"]) == ("open", UNTRIED)
    turned = ('kind = "knob"}', 'kind = "knob", turned = "method_fast"}')
    found = measure(read(write_changed(tmp_path, TUNED, turned)), root)
    check = found["checks"][2]
    assert check["ours"] == "method_fast" and {*check["values"]} == {"method", "method_fast", "fast"}
    ours, theirs = check["values"]["method_fast"], check["values"]["fast"]
    assert check["effect"] == pytest.approx(sum(ours) / 5 - sum(theirs) / 5, abs=1e-4)
    assert check["verdict"] == found["rivals"][1]["word"] and "method_fast - fast" in ruled(check)


# a rival that has information, at the method's first rate and at its second
MORE = 'terms.more = {use = "nll", weight = 0.01}'
INFORMED = (
    f"arms.taught = {{part.policy = {{optimiser.weight_decay = 0.0, {MORE}}}}}",
    "\n".join(
        f"arms.{arm}.part.policy = {{optimiser = {{lr = {rate}, weight_decay = 0.0}}, {MORE}}}"
        for arm, rate in (("taught", 0.15), ("taught_fast", 0.3))
    ),
)
ASKED = 'kind = "knob", turned = "method_fast"},\n  {role = "rival", against = "taught", kind = "information"}'
TOO = ',\n  {role = "rival", against = "taught_fast", kind = "information", turned = "method_fast"}'


def test_each_rival_is_compared_with_the_best_of_the_method_that_is_its_equal(tmp_path: Path, root: Path) -> None:
    rates = ("{lr = 0.02, weight", "{lr = 0.1, weight")  # the method's as it stands; the baseline has it too
    asked = ('kind = "knob"}', f"{ASKED}")
    claim = read(write_changed(tmp_path, TUNED, INFORMED, rates, asked))
    assert list_turned(claim) == ("method_fast",)
    assert [list_ours(claim, i) for i in (1, 2, 3)] == [("method", "method_fast")] * 2 + [("method",)]
    found = measure(claim, root)
    assert [rival.get("ours") for rival in found["rivals"]] == [None, "method_fast", None]
    taught = found["checks"][3]
    assert taught["effect"] < 0.05 and (taught["verdict"], taught["why"]) == ("open", UNEQUAL)
    too = read(write_changed(tmp_path, TUNED, INFORMED, rates, (asked[0], f"{ASKED}{TOO}")))
    assert [list_ours(too, i) for i in (3, 4)] == [("method", "method_fast")] * 2
    checks = measure(too, root)["checks"]
    assert checks[3]["ours"] == checks[4]["ours"] == "method_fast" and checks[3]["effect"] > checks[4]["effect"]


def test_knobs_that_the_method_has_too(tmp_path: Path) -> None:
    claim = read(write_changed(tmp_path, TUNED, ('against = "fast", kind', 'against = "other", kind')))
    assert [knob.rpartition(".")[2] for knob in find_shared_knobs(claim, "fast")] == ["lr"]
    assert [knob.rpartition(".")[2] for knob in find_shared_knobs(claim, "other")] == ["entropy"]  # a weight of 0
    assert is_untried(claim, 2)
    assert find_shared_knobs(claim, "taught") == ()  # another loss is another way to the same end
    rates = ("{lr = 0.02, weight", "{lr = 0.05, weight")
    kept = ("optimiser.weight_decay = 0.0\narms.fast", "optimiser = {lr = 0.02, weight_decay = 0.0}\narms.fast")
    own = read(write_changed(tmp_path, TUNED, rates, kept))
    assert find_shared_knobs(own, "fast") == () and not is_untried(own, 2)  # it has a rate of its own


@pytest.mark.parametrize(
    ("change", "gap"),
    [
        (('{role = "rival", against = "slow", kind = "knob"},', ""), "no rival with the baseline's own knob turned"),
        (('  {role = "dose", metric = "policy/grad_norm:mean", against = 0.0},\n', ""), "no dose"),
        (('worth = "half a reward is what the best arm pays more than the next"\n', ""), "no reason for the margin"),
        (('against = "baseline", arm = "turned", direction = "up"', 'against = 5, direction = "down"'), "nobody is"),
        (('  {role = "guard", metric = "reward/mean:last=5", direction = "not lower", margin = 0.5},\n', ""), "no gua"),
        (('direction = "not lower", margin', 'direction = "not lower", against = "slow", margin'), "other arms"),
        (('"reward/mean:area", direction', '"reward/mean:to=0.5", direction'), "a guard at the end"),
    ],
)
def test_what_a_claim_lacks_is_listed(tmp_path: Path, change: tuple[str, str], gap: str) -> None:
    more = [('reward/mean:last=5", direction = "not lower"', 'reward/mean:area", direction = "not lower"')]
    claim = read(state(tmp_path, *(more if "to=" in change[1] else []), change))
    assert len(gaps := find_gaps(claim)) == 1 and gap in gaps[0]


def test_the_tasks_own_score_needs_no_guard(tmp_path: Path) -> None:
    guard = '  {role = "guard", metric = "reward/mean:last=5", direction = "not lower", margin = 0.5},\n'
    for metric, needed in (("evaluate/exact.mean@hard:area", False), ("evaluate/greedy:final", False),
                           ("evaluate/mean:to=0.5", True), ("evaluate/exact.entropy:final", True)):  # fmt: skip
        claim = read(state(tmp_path, (guard, ""), ('"reward/mean:area", direction', f'"{metric}", direction')))
        assert any("no guard" in gap for gap in find_gaps(claim)) is needed, metric


def test_more_samples_than_the_baseline_need_a_rival_with_as_many() -> None:
    result = {"arms": {"method": {"ledger": {"steps": 9, "probe/tokens": 50.0, "tokens": 10}},
                       "baseline": {"ledger": {"steps": 3, "tokens": 10}}}, "rivals": []}  # fmt: skip
    assert find_spending(result).startswith("the method spent 60 tokens, the baseline 10")
    assert find_spending(result | {"rivals": [{"kind": "compute"}]}) == ""
    ours = {"ledger": {"tokens": 4.0, "probe/tokens": 6.0}}
    assert find_spending(result | {"arms": {**result["arms"], "method": ours}}) == ""  # as many with its probes


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('kind = "knob"', 'kind = "nob"', r"\.kind \(rival\): 'nob': did you mean 'knob'"),
        (', kind = "knob"', "", r"\.kind \(rival\): missing: expected knob \(the baseline's own setting turned\), "),
        ('against = "slow", kind', "kind", r"\.against \(rival\): missing: expected the name of an arm"),
        (", against = 0.0}", "}", r"\.against \(dose\): missing: expected the floor of the dose, a number"),
        ('kind = "knob"', 'kind = "knob", margin = 1.0', "a rival is compared as the headline is"),
        ('kind = "knob"', 'kind = "knob", turned = "turnd"', r"turned \(rival\): no arm 'turnd'; did you mean 't"),
        ('kind = "knob"', 'kind = "knob", turned = "slow"', "'slow' is a rival; expected an arm that is the method"),
        ('kind = "knob"', 'kind = "knob", turned = "baseline"', "'baseline' is the baseline; expected"),
        ('kind = "knob"', 'kind = "compute", turned = "turned"', "of kind 'knob'"),
        ('kind = "knob"', 'kind = "knob", turned = 3', "the arm that is the method with the knob"),
        ('against = "slow", kind', 'against = 0.5, kind', "the name of an arm"),
        ('against = "slow", kind', 'against = "slwo", kind', r"against \(rival\): no arm 'slwo'; did you mean 'slow'"),
        ("against = 0.0}", 'against = "slow"}', "the floor of the dose"),
    ],
)
def test_mistakes_of_a_rival_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        read(state(tmp_path, (old, new)))


def test_the_verdict_is_that_of_the_worst_comparison() -> None:
    assert set(WORST) == set(Headline)
    H = Headline
    assert join_comparisons([H.HOLDS, H.BELOW, H.OPEN]) is H.BELOW
    assert join_comparisons([H.HOLDS, H.OPEN, H.SMALL]) is H.OPEN
    assert join_comparisons([H.LESS, H.REVERSED, H.HOLDS]) is H.REVERSED
    assert join_comparisons([H.COST, H.HOLDS]) is H.COST


def test_a_small_effect_the_other_way_is_small() -> None:
    rule = Rule("up", 1.0, role="headline")
    found = [rule.judge_headline(Effect(0.0, low, high, 8, 1.0), 0.9) for low, high in ((-0.9, -0.1), (-1.1, -0.1))]
    assert found == [Headline.LESS, Headline.REVERSED]
    assert rule.judge_headline(Effect(0.5, 0.2, 1.5, 8, 1.0), 0.9, Verdict.OPEN) is Headline.OPEN
    assert rule.judge_headline(Effect(0.5, 0.2, 0.7, 8, 1.0), 0.9, Verdict.OPEN) is Headline.OPEN


def test_a_floor_that_another_arm_leaves_is_a_finding() -> None:
    rule = Rule("up", 0.1, role="headline", range=(0.0, 1.0))
    zeros, near = [0.0, 0.0, 0.001, 0.0, 0.0], [0.001, 0.002, 0.0, 0.001, 0.002]
    assert rule.estimate(zeros, near).why == "both arms sit at 0"
    assert rule.estimate(zeros, near, solvable=True).why == ""
    low = rule.estimate([0.0] * 5, [0.01, 0.011, 0.009, 0.01, 0.012])
    assert low.why == "" and rule.judge_headline(low, 0.05) is Headline.LESS
    ones = [1.0, 0.999, 1.0, 1.0, 1.0]
    assert rule.estimate(ones, [0.999] * 5, solvable=True).why  # at the other end there is no room
