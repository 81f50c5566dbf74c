"""Every rule finds its disease in a run that has it, and says nothing of one that has not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import Recipe
from shuhari.desk.cli.live import Live
from shuhari.lab.diagnosis import FINE, RULES, Evidence, Watch, describe_health, diagnose, judge
from shuhari.lab.diagnosis.judge import split_stages
from shuhari.lab.diagnosis.scores import _fall, fall

Columns = dict[str, list[Any]]
NAN = math.nan


def text(steps: int = 20, **changed: Any) -> Columns:
    """A run of text that learns: metric (`/` written `__`) -> a value for all steps, a list, or a function of i."""
    made: dict[str, Any] = {
        "step": lambda i: i + 1,
        "stage": lambda i: "rl",
        "rollout/episodes": 128.0,
        "rollout/length": 6.0,
        "rollout/truncated": 0.02,
        "rollout/entropy": lambda i: 1.0 - 0.03 * i,
        "rollout/alike": lambda i: 0.3,
        "rollout/rounds": 1.0,
        "reward/mean": lambda i: 0.1 + 0.03 * i,
        "reward/score": lambda i: 0.1 + 0.03 * i,
        "engine/gap": 1e-6,
        "policy/clip_fraction": 0.02,
        "policy/approx_kl": 0.01,
        "policy/grad_norm": 0.5,
        "policy/loss/clip": 0.1,
        "policy/lr": lambda i: 1e-3 * (1 - i / 20),
        "spent/tokens": lambda i: 700.0 * (i + 1),
    }
    return fill(made, steps, changed)


def control(steps: int = 20, **changed: Any) -> Columns:
    """A run of a controller that learns."""
    made: dict[str, Any] = {
        "step": lambda i: i + 1,
        "stage": lambda i: "main",
        "rollout/episodes": lambda i: 20.0 * (i + 1),
        "rollout/return": lambda i: 10.0 + 5 * i,
        "rollout/length": lambda i: 10.0 + 5 * i,
        "policy/clip_fraction": 0.1,
        "policy/approx_kl": 0.01,
        "policy/grad_norm": 0.5,
        "critic/grad_norm": 2.0,
        "policy/loss/clip": 0.1,
        "policy/lr": 1e-3,
        "critic/explained_variance": lambda i: min(0.9, -0.2 + 0.1 * i),
        "critic/loss/value": 3.0,
        "spent/env_steps": lambda i: 1024.0 * (i + 1),
    }
    return fill(made, steps, changed)


def imitation(steps: int = 20, **changed: Any) -> Columns:
    """Learning from recorded answers alone."""
    made: dict[str, Any] = {
        "step": lambda i: i + 1,
        "stage": lambda i: "main",
        "policy/loss/nll": lambda i: 3.0 / (i + 1),
        "policy/grad_norm": 0.5,
        "policy/lr": 1e-3,
    }
    return fill(made, steps, changed)


def fill(made: Mapping[str, Any], steps: int, changed: Mapping[str, Any]) -> Columns:
    wanted = {**made, **{k.replace("__", "/"): v for k, v in changed.items()}}
    return {
        name: [v(i) if callable(v) else v[i] if isinstance(v, list) else v for i in range(steps)]
        for name, v in wanted.items()
        if v is not None
    }


BEGAN = {"rl": {
    "scores": {"greedy": 0.5, "policy/accuracy": 0.5, "greedy.score": 0.5},
    "problems": {"greedy": 100, "policy/accuracy": 100, "greedy.score": 100},
}}  # fmt: skip


def evaluated(*scores: float | None, name: str = "evaluate/greedy", **changed: Any) -> Columns:
    """A run of text that is evaluated at every fifth step."""
    return text(5 * len(scores), **{name: lambda i: scores[i // 5] if i % 5 == 4 else None}, **changed)


SMALL = {
    "models": {"policy": {"path": "sm"}, "reference": {"init": "policy"}},
    "part": {"policy": {"terms": {"loss": {"use": "clip"}, "divergence": {}}}},
}
RIGHT = {"policy__lr": 1e-5}  # for a trained model
TRAINED: Mapping[str, Columns] = {  # of a model with a `path`
    "never-ends-turn": text(rollout__truncated=0.95, **RIGHT),
    "never-ends-turn, seen at once": text(steps=2, rollout__truncated=[1.0, 0.9], **RIGHT),
    "babbles": text(rollout__entropy=lambda i: 4.5 - 0.1 * i, **RIGHT),
    "babbles, in the first step": text(steps=1, rollout__entropy=5.2, **RIGHT),
    "rate-of-scratch": text(),
    "rate-of-scratch, imitation": imitation(policy__lr=1.1e-4),
    "leaves-its-start": text(evaluate__start_kl=lambda i: 0.3 * i if i % 5 == 4 else None, **RIGHT),
    "leaves-its-start, once": text(steps=2, evaluate__start_kl=[None, 2.1], **RIGHT),
    "leaves-its-start, with short answers": text(evaluate__start_kl=10.2, evaluate__length=2.75, **RIGHT),
    "leaves-its-reference": text(policy__kl=lambda i: 0.2 * i, **RIGHT),
    "length-collapsed": text(
        rollout__length=lambda i: 8.0 if i < 6 else 1.3, reward__score=None, reward__mean=lambda i: 0.3 + i % 2 / 100,
        **RIGHT,
    ),
    "margin-runs-away": imitation(
        policy__lr=1e-6, policy__loss__nll=None, policy__loss__preference=9e-9, policy__margin=lambda i: 20.0
    ),
}
BF16 = {"engine": {"dtype": "bfloat16"}, "part": {"policy": {"terms": {"loss": {"use": "clip"}}}}}
BARE = {**BF16, "part": {"policy": {"terms": {"loss": {"use": "clip", "behaviour": "behaviour"}}}}}
HALVED: Mapping[str, tuple[Columns, Any]] = {  # of 16 bits
    "engine-rounds": (text(engine__gap=0.3), BF16),
    "engine-uncorrected": (text(engine__gap=0.05), BARE),
    "engine-uncorrected, of what trains": (text(engine__gap=0.05), {**BARE, "engine": {}, "models": {
        "policy": {"dtype": "bfloat16"}}}),
}  # fmt: skip
CASES: Mapping[str, Columns] = {  # rule, and where two, a mark -> a run with the disease
    "score-falls": evaluated(0.55, 0.4, 0.29, 0.2),
    "score-falls, seen once": evaluated(0.29),
    "score-falls, more than once": evaluated(0.1, 0.1, 0.6, 0.29, 0.29, None),
    "own-score-falls": evaluated(0.2, 0.2, name="evaluate/greedy.score", evaluate__greedy=0.9),
    "accuracy-falls": evaluated(0.2, 0.2, name="evaluate/policy/accuracy"),
    "answers-too-long": text(rollout__answers_too_long=[1.0] + [None] * 19),
    "starts-at-zero": text(reward__score=0.0, reward__mean=0.0, rollout__alike=1.0),
    "starts-at-zero, where another reward differs": text(
        reward__score=0.0, reward__mean=lambda i: -0.3 + 0.001 * (i % 3), reward__loop=-0.3, rollout__alike=0.1
    ),
    "starts-solved": text(reward__score=1.0, reward__mean=1.0, rollout__alike=1.0),
    "no-group-differs": text(steps=1, rollout__alike=1.0, reward__score=0.4, reward__mean=0.4),
    "groups-alike": text(rollout__alike=0.97, reward__score=None, reward__mean=lambda i: 0.3 + 0.001 * (i % 3)),
    "groups-alike, a controller": control(rollout__alike=0.97, reward__mean=lambda i: 0.3 + 0.001 * (i % 3)),
    "reward-constant": text(reward__mean=6.25, reward__score=None, reward__r=6.25, rollout__alike=1.0),
    "return-constant": control(rollout__return=1.0),
    "reward-not-finite": text(reward__mean=lambda i: NAN if i == 7 else 0.1 * i),
    "return-not-finite": control(rollout__return=lambda i: NAN if i > 15 else float(i)),
    "ungraded": text(rollout__ungraded=0.2),
    "graders-fail": text(spent__failed_graders=lambda i: 12.0 * i, rollout__ungraded=0.1),
    "truncation": text(rollout__truncated=0.6),
    "length-drift": text(rollout__length=lambda i: 6.0 + 3 * i),
    "length-drift, down": text(rollout__length=lambda i: 60 * 0.7**i),
    "entropy-collapsed": text(
        rollout__entropy=lambda i: 2 * 0.6**i, reward__score=None, reward__mean=lambda i: 0.3 + 0.01 * (i % 2)
    ),
    "entropy-collapsed, a controller": control(
        rollout__entropy=lambda i: 2 * 0.6**i, rollout__return=9.0, rollout__episodes=1.0
    ),
    "entropy-rises": text(rollout__entropy=lambda i: 0.5 + 0.2 * i),
    "engine-differs": text(engine__gap=0.1),
    "stale": text(rollout__staleness=lambda i: min(i, 8.0)),
    "rollouts-fail": text(spent__failed_rollouts=lambda i: 8.0 * i),
    "filters-reject": text(rollout__rounds=9.0),
    "never-ends": control(rollout__episodes=0.0, rollout__return=None),
    "loss-not-finite": text(policy__loss__clip=lambda i: NAN if i == 3 else 0.1),
    "loss-not-finite, a controller": control(critic__loss__value=lambda i: math.inf if i == 3 else 0.1),
    "gradient-not-finite": text(policy__grad_norm=lambda i: NAN if i == 3 else 0.5),
    "gradient-not-finite, with its loss": text(policy__grad_norm=math.inf, policy__loss__clip=NAN),
    "gradient-zero": text(policy__grad_norm=0.0),
    "gradient-zero, a controller": control(policy__grad_norm=0.0),
    "gradient-zero, where a group differs": text(
        policy__grad_norm=lambda i: 0.5 * (i % 2), rollout__alike=lambda i: 1.0 if i % 2 else 0.9
    ),
    "gradient-zero, imitation": imitation(policy__grad_norm=0.0),
    "learning-rate-zero": text(policy__lr=0.0),
    "learning-rate-zero, a controller": control(policy__lr=0.0),
    "clips-too-much": text(policy__clip_fraction=0.5),
    "clips-too-much, a controller": control(policy__clip_fraction=0.5),
    "moves-too-far": text(policy__approx_kl=lambda i: 0.1 * i),
    "moves-too-far, a controller": control(policy__approx_kl=lambda i: 0.1 * i),
    "moves-in-leaps": text(policy__approx_kl=lambda i: 1.3 * (i < 4)),
    "moves-in-leaps, a controller": control(policy__approx_kl=lambda i: 1.3 * (i % 4 == 0 and i < 12)),
    "critic-explains-nothing": text(critic__explained_variance=lambda i: 0.01 * (-1) ** i),
    "critic-explains-nothing, a controller": control(critic__explained_variance=lambda i: 0.01 * (-1) ** i),
    "imitation-stalls": imitation(steps=30, policy__loss__nll=lambda i: 2.0 + 0.1 * i),
}


@pytest.mark.parametrize("case", CASES)
def test_the_disease_is_found(case: str) -> None:
    columns = CASES[case]
    found = diagnose(columns, {}, BEGAN)
    assert [f.rule.name for f in found] == [case.partition(",")[0]]
    assert found[0].rule.cause in str(found[0]) and found[0].rule.helps in str(found[0])
    assert (found[0].begin, found[0].end) == (1, len(columns["step"]))


@pytest.mark.parametrize("case", TRAINED)
def test_the_disease_of_a_trained_model_is_found(case: str) -> None:
    """And it is none of a model of random weights."""
    columns, rule = TRAINED[case], case.partition(",")[0]
    assert [f.rule.name for f in diagnose(columns, SMALL)] == [rule]
    plain = {f.rule.name for f in diagnose(columns, {**SMALL, "models": {"policy": {"hidden": 96}}})}
    assert not plain & {f.partition(",")[0] for f in TRAINED}


@pytest.mark.parametrize(
    "columns",
    [
        text(**RIGHT),
        text(rollout__truncated=lambda i: 0.95 if i < 10 else 0.2, rollout__entropy=3.9, policy__lr=1e-4),
        text(rollout__length=lambda i: 3.5 if i < 6 else 1.3, **RIGHT),  # short from the start
        text(rollout__length=lambda i: 5.0 if i < 6 else 2.0, **RIGHT),  # and the reward rises
        text(steps=1, rollout__truncated=1.0, **RIGHT),
        text(evaluate__start_kl=1.9, evaluate__length=3.0, **RIGHT),  # by hand: 5.7 nats over 4 tokens are 1.43
        text(evaluate__start_kl=[None, 2.5, *[None] * 17, 0.54], policy__kl=lambda i: 3.0 if i < 5 else 0.5, **RIGHT),
        imitation(policy__lr=1e-6, policy__margin=20.0, policy__loss__preference=0.3, policy__loss__nll=None),
        imitation(policy__lr=1e-6, policy__margin=4.0, policy__loss__preference=1e-3, policy__loss__nll=None),
    ],
)
def test_a_trained_model_that_is_well(columns: Columns) -> None:
    assert not {f.rule.name for f in diagnose(columns, SMALL)} - {"length-drift"}


def test_the_usual_rate_is_that_of_what_is_trained() -> None:
    def found(rate: float, models: Any, part: Any = SMALL["part"]) -> bool:
        recipe = {"models": models, "part": part}
        return "rate-of-scratch" in {f.rule.name for f in diagnose(text(policy__lr=rate), recipe)}

    lora = {"policy": {"path": "sm", "lora": {"rank": 8}}}
    assert found(1.1e-4, {"policy": {"path": "sm"}}) and not found(1.1e-4, lora) and found(2.1e-3, lora)
    assert not found(0.1, {"policy": {"hidden": 9}, "teacher": {"path": "sm"}})  # which is not trained
    assert found(0.1, {"policy": {"init": "base"}, "base": {"path": "sm"}})
    assert found(0.1, {"actor": {"path": "sm"}}, {"policy": {"trains": ["actor"]}})


@pytest.mark.parametrize(
    "changed",
    [
        {"part": {"policy": {"terms": {"kto": {}}}}},  # which has a `kl` of its own, of whole texts
        {"part": {"policy": {"terms": {"divergence": {"form": "js"}}}}},  # no KL
        {"part": {"policy": {"terms": {"divergence": {"to": "behaviour"}}}}},
        {"models": {"policy": {"path": "sm"}, "reference": {"path": "teacher"}}},
        {"follow": {"reference": {"use": "ema"}}},
    ],
)
def test_a_kl_to_another_than_the_start_is_none(changed: Any) -> None:
    columns = TRAINED["leaves-its-reference"]
    assert not diagnose(columns, {**SMALL, **changed})
    two = {"policy": {"terms": {"divergence": {"form": "k1"}, "loss": {"use": "clip"}}}}
    named = {("policy/divergence/kl" if n == "policy/kl" else n): x for n, x in columns.items()}
    assert [f.rule.name for f in diagnose(named, {**SMALL, "part": two})] == ["leaves-its-reference"]


def test_a_reward_model_may_tell_pairs_apart_as_far_as_it_likes() -> None:
    terms = {"preference": {"reference_free": True, "score": "value"}}
    recipe = {"models": {"reward": {"path": "sm"}}, "part": {"reward": {"terms": terms}}}
    pairs = {"policy__loss__nll": None, "policy__lr": None, "policy__grad_norm": None}
    columns = imitation(**pairs, reward__lr=1e-5, reward__margin=20.0, reward__loss__preference=1e-9)
    assert not diagnose(columns, recipe)


def test_a_stage_s_own_models_stand_beside_those_of_the_recipe() -> None:
    """As a stored recipe has them (a list), and as a loaded one (by name)."""
    own = {"models": {"critic": {"hidden": 9}}, "part": {"policy": {"epochs": 2}}}
    for stages in ([{"name": "rl", **own}], {"rl": own}):
        assert [f.rule.name for f in diagnose(text(), {**SMALL, "stage": stages})] == ["rate-of-scratch"]
    other = {"name": "rl", "remove": ["models"], "models": {"policy": {"hidden": 9}}}
    assert not diagnose(text(), {**SMALL, "stage": [other]})


def test_a_turn_that_never_ends_is_an_alarm_after_two_steps() -> None:
    columns, watch = TRAINED["never-ends-turn"], Watch(SMALL)
    told = [[f.rule.name for f in watch.add({n: v[i] for n, v in columns.items()})] for i in range(20)]
    assert told == [[], ["never-ends-turn"], *[[]] * 18]


@pytest.mark.parametrize("case", HALVED)
def test_what_is_wrong_with_16_bits_is_found(case: str) -> None:
    assert [f.rule.name for f in diagnose(*HALVED[case])] == [case.partition(",")[0]]


@pytest.mark.parametrize("gap", [0.046, 0.066])
def test_what_16_bits_round_is_no_alarm_where_it_is_corrected(gap: float) -> None:
    columns, watch = text(steps=1, engine__gap=gap), Watch(BF16)
    assert not watch.add({n: v[0] for n, v in columns.items()}) and not diagnose(text(engine__gap=gap), BF16)


def test_every_rule_has_a_case() -> None:
    assert {case.partition(",")[0] for case in (*CASES, *TRAINED, *HALVED)} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES) >= 13
    assert {name for rule in RULES for name in rule.covers} <= {rule.name for rule in RULES}


@pytest.mark.parametrize("made", [text, control, imitation])
@pytest.mark.parametrize("steps", [1, 2, 9, 30])
def test_nothing_is_found_in_a_run_that_learns(made: Callable[..., Columns], steps: int) -> None:
    assert not diagnose(made(steps=steps), {})


@pytest.mark.parametrize(
    "columns",
    [
        text(rollout__alike=0.99, reward__score=0.97, reward__mean=lambda i: 0.97 + 0.01 * (i % 2)),  # solved
        text(rollout__alike=lambda i: 0.9 + 0.005 * i),  # it rises
        text(rollout__entropy=lambda i: 2 * 0.6**i, reward__score=lambda i: 0.1 + 0.045 * i),  # sharp as it solves all
        text(reward__mean=NAN, reward__score=None, rollout__alike=None),  # trained without a reward
        text(steps=2, rollout__alike=1.0, rollout__episodes=8.0),  # too little seen
        text(steps=2, policy__grad_norm=0.0),
        text(policy__grad_norm=lambda i: 1e-29 * (i == 7)),  # at one step it is not 0
        text(policy__grad_norm=lambda i: 0.5 * (i % 2), rollout__alike=lambda i: 0.9 if i % 2 else 1.0),  # all alike
        control(rollout__return=1.0, rollout__episodes=3.0),  # so few episodes ended
        control(rollout__episodes=0.0, rollout__return=None, spent__env_steps=0.0),  # learns from recorded steps
        control(policy__lr=lambda i: 1e-3 * (i > 0)),  # a warm-up of the rate
        control(policy__approx_kl=lambda i: 1.3 * (i == 0)),  # one step of twenty
        control(rollout__truncated=1.0),  # a time limit is no answer that was cut
        control(critic__explained_variance=lambda i: 0.95 if i < 4 else -0.1),  # late returns are nearly equal
    ],
)
def test_what_looks_like_a_disease_and_is_none(columns: Columns) -> None:
    assert not diagnose(columns, {})


@pytest.mark.parametrize(
    "columns",
    [
        evaluated(0.3, 0.3),
        evaluated(0.29, 0.3),  # once below, once within the noise
        evaluated(0.1, 0.1, 0.1, 0.3),  # it has come back
        evaluated(0.7, 0.9, 0.6, 0.5),  # below what it was in between, and not below the start
        evaluated(0.2, 0.2, evaluate__episodes=lambda i: 4.0 if i % 5 == 4 else None),  # points of a curve
        evaluated(0.2, 0.2, evaluate__ungraded=0.2),
        evaluated(-300.0, -300.0),  # a return
        evaluated(NAN, None),
        evaluated(0.1, 0.1, stage="other"),  # of which it is not known how it began
        evaluated(0.1, 0.1, name="evaluate/greedy@sums"),
    ],
)
def test_a_score_that_moves_within_its_noise_is_healthy(columns: Columns) -> None:
    assert not diagnose(columns, {}, BEGAN)


def test_the_bound_of_a_fall_is_three_standard_errors() -> None:
    """By hand, of 100 problems: the means are .4 and .395, the errors sqrt(.48 / 100) = .069282 and sqrt(.47795 / 100)
    = .069134, and the falls .2 and .21 are 2.887 and 3.038 of them."""
    for score, errors in ((0.3, 2.887), (0.29, 3.038)):
        (e,) = split_stages(evaluated(score, score), {}, BEGAN)
        assert fall(e, "evaluate/greedy") == pytest.approx(errors, abs=1e-3)
        assert bool(judge(e)) == (errors > 3)


def test_a_fall_that_is_small_is_none_however_many_problems_show_it() -> None:
    many = {"rl": {"scores": {"greedy": 0.5}, "problems": {"greedy": 10**6}}}
    assert not diagnose(evaluated(0.46, 0.46), {}, many) and diagnose(evaluated(0.44, 0.44), {}, many)


def test_a_fall_says_from_what_to_what_and_since_when() -> None:
    (found,) = diagnose(evaluated(0.5, 0.29, 0.2, 0.22), {}, BEGAN)
    told = "It was 0.5 as the stage began and is 0.2 (step 15) and 0.22 (step 20), below since step 10"
    assert told in str(found) and found.to_json()["told"].startswith(told) and "part.policy.optimiser.lr" in str(found)


@pytest.mark.parametrize("n", [8, 32, 128])
@pytest.mark.parametrize("p", [0.02, 0.2, 0.5, 0.9, 1.0])
def test_a_policy_that_stays_as_it_is_is_seldom_said_to_fall(n: int, p: float) -> None:
    """By enumeration: the probability of two evaluations of n other problems each, one at the start, that say so."""
    weights = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    wrong = sum(weights[k] * weights[j] for k in range(n + 1) for j in range(k) if _fall(j / n, k / n, n) > 3)
    assert wrong < 0.002


def test_a_score_of_0_that_is_not_trained_is_no_disease() -> None:
    """Of a recipe whose own grader takes the place of the task's; one that stands beside it does not."""
    columns = CASES["starts-at-zero, where another reward differs"]
    mine, loop = {"use": "rewards.py:mine"}, {"use": "loop"}
    for reward, wrong in (
        ({"mine": mine}, False),
        ({"weights": {"mine": 1.0}, "mine": mine}, False),
        ({"loop": loop}, True),
        ({"mine": mine, "beside": {"mine": 1.0}}, True),
        ({"mine": mine, "weights": {"mine": 1.0, "score": 1.0}}, True),
    ):
        assert bool(diagnose(columns, {"reward": reward})) is wrong, reward
    late = {**columns, "reward/score": [0.0] * 19 + [0.1]}
    assert not diagnose(late, {})  # found after all


def test_a_stage_is_judged_by_what_it_spent_itself() -> None:
    """10,240 steps in an environment were spent by the stage before; the second has made 512 of its own."""
    a = control(steps=10)
    b = control(steps=1, stage="more", step=11, rollout__episodes=0.0, rollout__return=None, spent__env_steps=10_752.0)
    both = {name: [*a[name], *b.get(name, [None])] for name in a}
    assert not diagnose(both, {})
    assert [f.rule.name for f in diagnose(b, {})] == ["never-ends"]


def test_an_alarm_is_told_once_and_at_once() -> None:
    columns, watch = CASES["starts-at-zero"], Watch()
    told = [[f.rule.name for f in watch.add({n: v[i] for n, v in columns.items()})] for i in range(20)]
    assert told == [["starts-at-zero"], *[[]] * 19]


def test_alarms_and_diagnosis_judge_by_the_same_recipe() -> None:
    """A score of 0 that is only watched is no alarm, in the stage that only watches it."""
    columns = CASES["starts-at-zero, where another reward differs"]
    (name,) = set(columns["stage"])
    for weights, told in (({"score": 1.0}, ["starts-at-zero"]), ({"score": 0.0, "loop": 1.0}, [])):
        recipe = {"stage": [{"name": "other"}, {"name": name, "reward": {"weights": weights}}]}
        assert [f.rule.name for f in diagnose(columns, recipe)] == told
        watch = Watch(recipe)
        assert [f.rule.name for i in range(20) for f in watch.add({n: v[i] for n, v in columns.items()})] == told


def test_what_shows_a_run_hands_its_recipe_to_the_alarms() -> None:
    columns = CASES["starts-at-zero, where another reward differs"]
    for weights, told in (({"score": 1.0}, ["starts-at-zero"]), ({"score": 0.0, "loop": 1.0}, [])):
        (name,) = set(columns["stage"])
        recipe = Recipe("mine", {"reward": {"weights": weights}, "stage": {name: {"steps": 20}}})
        watch = Live(recipe, Path("runs/mine")).watch
        assert [f.rule.name for i in range(20) for f in watch.add({n: v[i] for n, v in columns.items()})] == told


def test_an_alarm_comes_after_the_first_step_in_each_stage() -> None:
    watch = Watch()
    for stage in ("a", "b"):
        for i in range(3):
            said = watch.add({"step": i + 1, "stage": stage, "rollout/episodes": 128.0, "rollout/alike": 1.0})
            assert [f.rule.name for f in said] == (["no-group-differs"] if i == 0 else []), (stage, i)


def test_a_constant_reward_is_one_alarm() -> None:
    columns, watch = CASES["reward-constant"], Watch()
    told = [f.rule.name for i in range(20) for f in watch.add({n: v[i] for n, v in columns.items()})]
    assert told == ["no-group-differs"]


def test_a_resumed_stage_raises_no_alarm() -> None:
    columns, watch = text(steps=20, reward__score=0.0, reward__mean=0.0, rollout__alike=1.0), Watch()
    assert not [f for i in range(5, 20) for f in watch.add({n: v[i] for n, v in columns.items()})]


def test_the_worst_metric_of_several_is_told() -> None:
    e = Evidence("rl", text(critic__clip_fraction=0.9, policy__clip_fraction=0.4))
    (found,) = judge(e)
    assert (found.metric, found.number) == ("critic/clip_fraction", pytest.approx(0.9))


@pytest.mark.parametrize(
    ("last", "said"),
    [(2, "2 steps are too few to judge by: most"), (1, "1 step is too few to judge by: most"), (12, FINE)],
)
def test_health_is_as_sure_as_the_last_stage_is_long(last: int, said: str) -> None:
    columns = text(20 + last)
    columns["stage"] = ["warm-up"] * 20 + ["rl"] * last
    found = describe_health(columns, {})
    assert found.startswith(said) and (found == FINE) == (last == 12)


def test_a_run_whose_budget_ended_before_an_update_is_not_called_fine() -> None:
    columns = control(1, **{"spent/env_steps": 1000.0})
    found = describe_health(columns, {"env_steps": 150, "part": {"policy": {}}})
    assert "; but no update was made in stage main; its first step alone spent 1000 env_steps of a budget" in found
    columns["spent/updates"] = [80.0]
    assert "no update" not in describe_health(columns, {"part": {"policy": {}}})
    assert "update" not in describe_health(control(1), {})  # a learner without parts: a table, a planner
