"""Wire data: what it accepts, what it refuses and how it says so."""

import dataclasses
import math

import numpy as np
import pytest

from shuhari.data import (
    EMPTY,
    Count,
    FrozenDict,
    Problem,
    Ramp,
    Request,
    Sampling,
    Step,
    Trajectory,
    code,
    is_tokens,
    nearest,
    with_article,
)


def tokens(*ids):
    return np.array(ids, np.int32)


def test_ramps_by_hand():
    line = Ramp(1.0, 0.0, over=10, after=5)
    assert [line(x) for x in (0, 5, 10, 15, 99)] == pytest.approx([1, 1, 0.5, 0, 0])
    cosine = Ramp(2.0, 0.0, over=4, shape="cosine")
    assert [cosine(x) for x in (0, 1, 2, 4)] == pytest.approx([2, 1 + np.cos(np.pi / 4), 1, 0])
    warm = Ramp(1.0, 1.0, over=1, warm=4)
    assert [warm(x) for x in (0, 1, 3, 9)] == pytest.approx([0.25, 0.5, 1, 1])
    assert line(np.array([0, 10])).tolist() == pytest.approx([1, 0.5]) and isinstance(line(3), float)
    with pytest.raises(ValueError, match="expected a number above 0"):
        Ramp(0, 1, over=0)
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        Ramp(0, 1, over=1, shape="cos")


def test_ramps_that_step_fall_by_factors_and_begin_again():
    stairs = Ramp(1.0, steps=((2, 0.5), (4, 0.25)))
    assert [stairs(x) for x in (0, 1.9, 2, 3, 4, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert stairs(np.array([0, 4])).tolist() == [1, 0.25]
    falling = Ramp(8.0, 1.0, over=3, after=1, shape="exponential")
    assert [falling(x) for x in (0, 1, 2, 3, 4, 9)] == pytest.approx([8, 8, 4, 2, 1, 1])
    assert Ramp(8.0, 2.0, shape="exponential")(at(2, 4)) == pytest.approx(4.0)
    saw = Ramp(0.0, 1.0, over=4, period=4)
    assert [saw(x) for x in (0, 3, 4, 5, 8)] == [0, 0.75, 0, 0.25, 0]
    turns = Ramp(16.0, steps=((2, 64.0),), period=4, warm=2)
    assert [turns(x) for x in (0, 1, 2, 4, 7)] == [8, 16, 64, 16, 64]  # the warm-up comes once
    for wrong, told in (
        ({"steps": ((3, 1.0), (3, 2.0))}, "ascending"),
        ({"steps": ((3, 1.0),), "over": 2.0}, "`steps` replace `to`"),
        ({"steps": ((3, 1.0),), "warm": 0.1}, "`warm` is 0.1: expected 0, or 1 or more"),
        ({"to": -1.0, "over": 2.0, "shape": "exponential"}, "one sign"),
        ({"to": 1.0, "over": 2.0, "period": -1.0}, "period"),
        ({"to": 1.0, "period": 2.0}, "with `over` of 1 or more"),
        ({}, "expected finite numbers"),
    ):
        with pytest.raises(ValueError, match=told):
            Ramp(1.0, **wrong)


def at(step: int, whole: int) -> Count:
    return Count(step, step, whole, in_steps=True)


def test_a_ramp_without_over_ends_with_its_stage() -> None:
    whole = Ramp(1.0, 0.0)
    assert [whole(at(i, 4)) for i in range(4)] == [1.0, 0.75, 0.5, 0.25]  # as {over = 4}
    late = Ramp(1.0, 0.0, after=0.8, warm=2)  # of 10 steps: from the 8th on
    assert [late(at(i, 10)) for i in range(10)] == [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 0.5]
    assert [late(at(i, 300)) for i in range(300)] == [Ramp(1.0, 0.0, 60, 240, 2)(i) for i in range(300)]
    assert Ramp(1.0, 0.0, over=0.5)(at(2, 8)) == 0.5 and Ramp(1.0, 0.0, over=0.5)(at(4, 8)) == 0.0
    assert Ramp(1.0, 0.0, after=9)(at(3, 4)) == 1.0  # a stage that ends before it begins


def test_a_ramp_over_a_budget_of_tokens_follows_what_is_spent() -> None:
    half = Count(7, 500, 2000, in_steps=False)  # 7 steps have spent a quarter
    assert Ramp(1.0, 0.0)(half) == 0.75 and Ramp(1.0, 0.0, after=0.2, over=0.1)(half) == 0.5
    assert Ramp(1.0, 0.0, over=14)(half) == 0.5  # in steps, whatever the budget is in
    assert Ramp(1.0, 1.0, warm=16)(half) == 0.5
    for mixed in ({"after": 5}, {"over": 0.5, "after": 5}, {"over": 5, "after": 0.5}, {"warm": 0.1}):
        with pytest.raises(ValueError, match="the budget is not in steps"):
            Ramp(1, 0, **mixed)(half)
    with pytest.raises(ValueError, match="there is no stage here"):
        Ramp(1.0, 0.0)(3)


@pytest.mark.parametrize("wrong", [{"over": math.inf}, {"after": -1}, {"warm": math.nan}, {"to": math.nan, "over": 1}])
def test_a_ramp_that_is_none(wrong) -> None:
    with pytest.raises(ValueError, match="expected"):
        Ramp(**{"start": 0.0, "to": 1.0, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 1}, {"top_k": -1}, {"max_new": 0}, {"epsilon": 2}],
)
def test_sampling_refuses_what_has_no_meaning(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} is {wrong[name]}"):
        Sampling(**wrong)


def test_sampling_says_whether_it_cuts_and_how_warm_each_decision_is():
    assert not Sampling(temperature=0.3).truncates and Sampling(top_k=3).truncates
    assert Sampling(top_p=0.9).truncates and Sampling(min_p=0.1).truncates
    assert Sampling(temperature=0.5).temperatures(2).tolist() == [0.5, 0.5]
    assert Sampling(temperature=Ramp(1, 2, over=2)).temperatures(4).tolist() == [1, 1.5, 2, 2]


def test_empty_defaults_cannot_be_changed():
    for change in (lambda: EMPTY.update(a=1), lambda: EMPTY.setdefault("a", 1), lambda: EMPTY.__setitem__("a", 1)):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert hash(FrozenDict(a=1)) == hash(FrozenDict(a=2)) and {**EMPTY} == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Problem("t", "1", "").id = "2"


def test_codes_are_stable_and_fit_a_column():
    assert code("policy") == code("policy") != code("critic") and code("a", "b") != code("ab")
    assert all(0 <= code(i) < 2**63 for i in range(1000)) and len({code(i) for i in range(1000)}) == 1000


def test_nearest():
    assert nearest("advantge", ["advantage", "return"]) == "did you mean 'advantage'?"
    assert nearest("zzz", ["b", "a", "b"]) == "known: a, b" and nearest("x", []) == "known: none"
    assert nearest("scroe", ["role", "reward/score"]) == "did you mean 'reward/score'?"


def test_a_noun_has_its_article():
    said = {noun: with_article(noun) for noun in ("task", "objective", "analysis", "environments")}
    assert list(said.values()) == ["a task", "an objective", "an analysis", "environments"]


def test_tokens_are_one_dimensional_int32():
    assert is_tokens(tokens(1)) and not is_tokens(np.array([1])) and not is_tokens(np.int32(1))
    assert not is_tokens(np.zeros((1, 1), np.int32)) and not is_tokens("1")


def test_steps():
    text = Step.of(tokens(1, 2), tokens(3, 4, 5), version=7)
    assert text.mask.tolist() == [True] * 3 and text.version.tolist() == [7] * 3 and text.logp is None
    assert len(Step.of(np.zeros(4), np.array(1), np.zeros(1)).mask) == 1
    end = Step.closing(np.zeros(4), 3, 0.0)
    assert end.action is None and end.mask.tolist() == [False] and end.cont == 0 and end.parent == 3


def test_a_split_step_says_the_same():
    step = Step.of(
        tokens(1, 2),
        tokens(3, 4, 5),
        np.array([-1.0, -2, -3], np.float32),
        reward={"end": 4.0, "each": np.array([1.0, 2, 3])},
        info={"q": np.arange(3), "text": "x"},
        cont=0.5,
    )
    a, b = step.split(1)
    assert a.context.tolist() == [1, 2] and a.action.tolist() == [3]
    assert b.context.tolist() == [1, 2, 3] and b.action.tolist() == [4, 5]
    assert a.logp.tolist() == [-1] and b.logp.tolist() == [-2, -3] and (a.cont, b.cont) == (0.5, 1.0)
    assert a.reward.keys() == {"each"} and b.reward["end"] == 4.0 and b.reward["each"].tolist() == [2, 3]
    assert a.info["q"].tolist() == [0] and b.info["text"] == "x" and "text" not in a.info
    for at in (0, 3):
        with pytest.raises(ValueError, match=r"1\.\.2"):
            step.split(at)
    with pytest.raises(TypeError, match="token ids"):
        Step.of(np.zeros(2), np.array(1)).split(1)


def tree():
    def step(parent):
        return Step.of(tokens(1), tokens(2), parent=parent)

    return Trajectory(Request(Problem("t", "p", "")), (step(None), step(0), step(0), step(1)))


def test_paths_and_grades():
    assert tree().paths() == [(0, 2), (0, 1, 3)]
    graded = tree().graded([{"r": 1.0}, None])
    assert graded.steps[2].reward == {"r": 1.0} and np.isnan(graded.steps[3].reward["r"]) and not graded.steps[0].reward
    with pytest.raises(ValueError, match="1 grades for a trajectory with 2 leaves"):
        tree().graded([{"r": 1.0}])
    closed = Trajectory(
        Request(Problem("t", "p", "")), (Step.of(tokens(1), tokens(2)), Step.closing(tokens(1, 2), 0, 0.0))
    )
    assert closed.graded([{"r": 2.0}]).steps[0].reward == {"r": 2.0}


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="n is -1"):
        Request(Problem("t", "p", ""), n=-1)
    with pytest.raises(ValueError, match="step 0 continues step 0"):
        Trajectory(Request(Problem("t", "p", "")), (Step.of(tokens(1), tokens(2), parent=0),))


def test_the_second_half_of_a_split_goes_on_in_views_and_temperatures():
    step = Step.of(tokens(1), tokens(5, 6, 7, 8), views={"critic": tokens(2, 3)})
    first, second = step.split(1)
    second, third = second.split(2)
    assert [s.first for s in (first, second, third)] == [0, 1, 3]
    assert first.views["critic"].tolist() == [2, 3]
    assert second.views["critic"].tolist() == [2, 3, 5] and third.views["critic"].tolist() == [2, 3, 5, 6, 7]
    ramp = Sampling(temperature=Ramp(1, 5, over=4))
    assert ramp.temperatures(2, third.first).tolist() == [4, 5]
    with pytest.raises(TypeError, match="what role 'critic' sees is none"):
        Step.of(tokens(1), tokens(5, 6), views={"critic": "text"}).split(1)
