"""Rounds: scripted policies that succeed from a known hint on, the curve against algebra and an independent fit."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit, minimize

from pupils import SOLUTION, Pupil, collected, context, request
from shuhari.data import ContractError, Problem, Step
from shuhari.kernel.pack import pack
from shuhari.models.text.causal import Causal
from shuhari.needs import Need, gather
from shuhari.rollouts.rounds import HintCurve, HintLadder, fit_curve, invert_curve, make_hint, predict_accuracy
from shuhari.rollouts.single import Single

# ---------------------------------------------------------------- the ladder


def test_a_policy_that_needs_half_the_solution_is_asked_three_times():
    ctx = context(model := Pupil(lambda hint, u: hint >= 4))
    group = collected(HintLadder(), ctx)
    assert len(group) == 4 and {t.info["hint"] for t in group} == {0.5}
    assert model.seen == [""] * 4 + ["ab"] * 4 + ["abcd"] * 4
    for t in group:
        assert t.steps[0].info["text"] == SOLUTION[: round(0.5 * 8)] and t.steps[1].info["text"] == "y"
        assert not t.steps[0].mask.any() and t.steps[0].logp is None and t.request.key == "k"
    batch = pack(group)
    assert batch["mask"].tolist() == [[False] * 4 + [True] * 2] * 4 and batch["hint"].tolist() == [0.5] * 4
    assert ctx.ledger["rounds"] == 3 and ctx.ledger["tokens"] == 3 * 4 * 2  # what was thrown away is charged


def test_one_success_is_enough_and_then_nothing_differs_from_asking_once():
    lucky = Pupil(lambda hint, u: u < 0.3)
    alone = collected(Single(), context(lucky), request(8))
    ladder = collected(HintLadder(), ctx := context(lucky), request(8))
    assert 0 < sum(t.steps[0].info["text"] == "y" for t in alone) < 8 and ctx.ledger["rounds"] == 1
    a, b = pack(alone), pack(ladder)
    assert b["hint"].tolist() == [0.0] * 8
    for name in a.names():
        assert torch.equal(a[name], b[name]), name


def test_only_the_measure_says_what_is_wrong():
    never = Pupil(lambda hint, u: False)
    ctx = context(never, format=0.5)
    (first, *_) = group = collected(HintLadder(), ctx)
    assert ctx.ledger["rounds"] == 4 and first.info["hint"] == 0.75 and len(group) == 4
    ctx = context(never, format=0.5)
    assert collected(HintLadder(measure="format"), ctx)[0].info["hint"] == 0.0 and ctx.ledger["rounds"] == 1


def scripted(*rounds, name="score"):
    """A context that gives the samples these rewards of a name in their order; None: none."""
    scores = iter([s for r in rounds for s in r])

    def grade(text):
        return {} if (s := next(scores)) is None else {name: s}

    return context(Pupil(lambda hint, u: False), grade)


def test_a_single_answer_above_zero_is_enough_whatever_the_others_lose():
    wrong, right = (-1.0, None, 0.0, -0.5), (-1.0, 0.0, 0.25, None)
    ctx = scripted(wrong, right, wrong, wrong, name="gain")
    hints = [t.info["hint"] for t in collected(HintLadder(measure="gain"), ctx)]
    assert hints == [0.25] * 4 and ctx.ledger["rounds"] == 2


def test_what_nothing_graded_is_not_wrong():
    ctx = context(Pupil(lambda hint, u: False), grade=lambda text: {})
    collected(HintLadder(), ctx)
    assert ctx.ledger["rounds"] == 1


def test_rounds_draw_their_own_noise():
    never = Pupil(lambda hint, u: never.noise.append(u) or False)
    never.noise = []
    collected(HintLadder(levels=(0.0, 0.01, 0.02)), context(never))  # a fiftieth of the solution is no token
    assert len(set(never.noise)) == 12 and never.seen == [""] * 12


def test_a_single_level_is_a_fixed_hint():
    ctx = context(model := Pupil(lambda hint, u: False))
    assert {t.info["hint"] for t in collected(HintLadder(levels=(0.5,)), ctx)} == {0.5} and model.seen == ["abcd"] * 4


def test_a_hint_goes_after_what_the_request_begins_with_in_the_words_of_who_is_asked():
    ctx = context(model := Pupil(lambda hint, u: False))
    ctx.engine.sync({"other": model}, 4)
    roles, text = set(), model.encode
    ctx.encode = lambda x, role: roles.add(role) or (text(x) if isinstance(x, str) else x)
    begun = request(prefix=(Step.of("", text("gh")),))
    collected(HintLadder(levels=(0.5,), of=Single(role="other")), ctx, begun)
    assert model.seen == ["ghabcd"] * 4 and roles == {"other"}


@pytest.mark.parametrize("levels", [(), (0.5, 0.25), (0.5, 0.5)])
def test_levels_that_do_not_rise_are_refused(levels):
    with pytest.raises(ValueError, match="and that they rise"):
        HintLadder(levels=levels)


def test_hints_need_a_solution():
    never = context(Pupil(lambda hint, u: False))
    for nothing in (None, "", 7):
        with pytest.raises(ContractError, match="problem 'p' of t has no solution in text"):
            collected(HintLadder(), never, request(solution=nothing))


def test_a_hint_is_the_rounded_share_of_the_solution_whatever_it_is_written_as():
    ctx = context(Pupil(lambda hint, u: False))
    for solution in (SOLUTION, ("abc", "defgh"), ctx.encode(SOLUTION, "policy")):
        problem = Problem("t", "p", "ab", "y", solution)
        for share, text in ((0.3, "ab"), (0.32, "abc"), (1.0, SOLUTION)):
            (step,), shown = make_hint(problem, share, ctx)
            assert step.info["text"] == text and shown == len(text) / 8
        assert make_hint(problem, 0.05, ctx) == ((), 0.0) == make_hint(problem, 0.0, ctx)


def test_hinted_samples_are_scored_in_the_context_that_they_were_drawn_in():
    model = Causal(hidden=16, layers=1, heads=2, intermediate=24, context=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(alphabet="abcdefghyn"))
        for p in model.module.parameters():
            torch.nn.init.normal_(p, std=0.5)
    ctx = context(model, grade=lambda text: {"score": 0.0})
    need = Need(("policy",), "log_prob")

    def gap(group):
        batch = gather(pack(group), [need], {"policy": model})
        return (batch[need] - batch["logp"])[batch["mask"]].abs().max()

    group = collected(HintLadder(), ctx)
    assert gap(group) < 1e-4
    plain = [t.__class__(t.request, (t.steps[1].__class__.of(
        t.steps[0].context, t.steps[1].action, t.steps[1].logp),)) for t in group]  # fmt: skip
    assert gap(plain) > 1e-2  # under the bare prompt these are other numbers


# ---------------------------------------------------------------- the curve


def test_the_share_for_a_target_by_hand():
    assert invert_curve(0.5, 10.0, 0.4, 0.0) == pytest.approx(0.4)
    assert invert_curve(0.5, 10.0, 0.4, 0.2) == pytest.approx(0.4 + np.log(0.6) / 10) == pytest.approx(0.3489, abs=1e-4)
    assert invert_curve(0.5, 10.0, 0.4, 0.6) == 0.0  # above the target whatever is shown
    assert invert_curve(0.5, 10.0, -0.2, 0.0) == 0.0 and invert_curve(0.5, 10.0, 1.3, 0.0) == 1.0
    for a, b, c, target in ((8.0, 0.6, 0.1, 0.5), (20.0, 0.3, 0.0, 0.75)):
        assert predict_accuracy(invert_curve(target, a, b, c), a, b, c) == pytest.approx(target)


def test_many_samples_give_the_curve_of_an_independent_fit():
    h = np.linspace(0, 1, 9)
    accuracy = np.clip(predict_accuracy(h, 13.0, 0.55, 0.12) + 0.03 * np.sin(9 * h), 0, 1)
    theirs, _ = curve_fit(predict_accuracy, h, accuracy, p0=(10.0, 0.5, 0.05))
    ours = fit_curve(tuple((x, y, 10_000) for x, y in zip(h.tolist(), accuracy.tolist(), strict=True)))
    assert ours == pytest.approx(theirs, rel=1e-2)


@pytest.mark.parametrize("a", [8.0, 10.0, 15.0])
@pytest.mark.parametrize("b", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_pupil_without_noise_is_understood_by_the_third_round(a, b):
    share, told = 0.5, []
    for _ in range(3):
        told.append((share, float(predict_accuracy(share, a, b, 0.0)), 4))
        share = invert_curve(0.5, *fit_curve(tuple(told)))
    assert told[-1][1] == pytest.approx(0.5, abs=0.05)


def test_who_can_do_it_alone_is_shown_nothing():
    assert invert_curve(0.5, *fit_curve(((0.5, 1.0, 4), (0.1, 1.0, 4), (0.0, 0.75, 4)))) == 0.0
    ctx = context(model := Pupil(lambda hint, u: True))
    group = collected(HintCurve(), ctx, request(16))
    assert [t.info["hint"] for t in group][-4:] == [0.0] * 4 and model.seen[:4] == ["abcd"] * 4


def test_all_rounds_are_one_group():
    ctx = context(Pupil(lambda hint, u: hint > 5))
    group = collected(HintCurve(rounds=4), ctx, request(10))
    batch = pack(group)
    assert len(group) == 10 and batch["group"].unique().numel() == 1 and ctx.ledger["rounds"] == 4
    hints = [t.info["hint"] for t in group]
    sizes = [hints.count(h) for h in dict.fromkeys(hints)]
    assert hints[:2] == [0.5] * 2 and hints[2] > 0.5 and sum(sizes) == 10
    assert ctx.ledger["tokens"] == 10 * 2


def by_hand(told, target):
    """The share after the rounds `told`, (share, accuracy, samples): the penalised squares of the documented model,
    minimised without their derivatives or residuals, and the curve read off where it is nearest to the target."""
    h, accuracy, n = np.array(told).T

    def says(x, h):
        a, b, c = 10 * np.exp(x[0]), x[1], x[2] ** 2 / (1 + x[2] ** 2)
        return c + (1 - c) / (1 + np.exp(-a * (h - b)))

    def loss(x):  # each prior weighs a hundredth of a sample
        return n @ (says(x, h) - accuracy) ** 2 + 0.01 * (x[0] ** 2 + (x[1] - h[0]) ** 2 + x[2] ** 2)

    options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 4000}
    x = min(
        (minimize(loss, (0.0, b, z), method="Nelder-Mead", options=options) for b in (h[0], 0.5) for z in (0.1, 0.6)),
        key=lambda found: found.fun,
    ).x
    shares = np.linspace(0, 1, 10_001)
    return float(shares[np.abs(says(x, shares) - target).argmin()])


@pytest.mark.parametrize("target", [0.3, 0.7])
def test_few_samples_are_read_with_the_documented_priors(target):
    for told in (((0.8, 0.5, 1),), ((0.2, 0.25, 1),), ((0.2, 0.0, 1), (0.6, 0.75, 1))):
        assert invert_curve(target, *fit_curve(told)) == pytest.approx(by_hand(told, target), abs=2e-4)


LONG = "abcdefgh" * 12 + "a"  # 97 tokens: a share that is a little off is another hint


CASES = [(LONG, 0.7, 0.3), (LONG, 0.35, 0.62), (SOLUTION, 0.7, 0.3)]


@pytest.mark.parametrize(("solution", "target", "first"), CASES, ids=["high", "low", "coarse"])
def test_each_hint_is_that_of_a_curve_fitted_by_hand_to_all_rounds_before(solution, target, first):
    rounds = (  # 33 samples in 6: the accuracies are 1/4, 1/2, none, 3/4, 7/20; of the last nothing follows
        (0.0, 1.0, 0.0, 0.25, 0.0),
        (1.0, 0.5, None, 0.0, 1.0, 0.0),
        (None,) * 5,
        (1.0, 1.0, 0.0, 1.0, None, 0.75),
        (0.0, 0.5, 1.0, 0.0, 0.25),
        (1.0, 0.0, 1.0, 0.5, 1.0, 0.25),
    )
    told, share, expected, edges = [], first, [], []
    for scores in rounds:
        tokens = share * len(solution)
        edges.append(abs(tokens % 1 - 0.5))
        expected += [round(tokens) / len(solution)] * len(scores)
        if graded := [s for s in scores if s is not None]:
            told.append((expected[-1], np.mean(graded), len(graded)))
            share = by_hand(told, target)
    assert min(edges) > 0.02  # no hint depends on the last digits of a fit
    asked = request(sum(map(len, rounds)), solution)
    group = collected(HintCurve(rounds=len(rounds), target=target, first=first), scripted(*rounds), asked)
    assert [t.info["hint"] for t in group] == expected
    assert all(t.request is asked for t in group)


def test_a_curriculum_may_say_where_to_begin():
    ctx = context(model := Pupil(lambda hint, u: True))
    rollout = HintCurve(rounds=2)
    assert rollout.accepts == {"hint": 0.5}
    collected(rollout, ctx, request(2, settings={"hint": 0.25}))
    assert model.seen[0] == "ab"


def test_each_round_needs_a_sample():
    with pytest.raises(ContractError, match="2 samples in 4 rounds"):
        collected(HintCurve(), context(Pupil(lambda hint, u: True)), request(2))
