"""A claim as its table says it: arms, budget, warm start, and mistakes that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.lab.claims.checks import name_quantity
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.runs import plan_runs

RECIPE = """extends = "baselines/grpo"
[collect.advantage]
scale = "batch"
[claim]
says = "x"
baseline = "baselines/grpo"
warm = "warm-up"
budget = {tokens = 1000}
settings = {rollout = {n = 4}}
smoke = {budget = {steps = 2}, evaluate = {n = 8}}
[claim.arms.hot]
rollout.sampling.temperature = 1.5
[[claim.check]]
role = "headline"
metric = "evaluate/mean:final"
direction = "up"
margin = 0.1
[[claim.check]]
role = "premise"
metric = "rollout/length:final"
arm = "hot"
against = 7
direction = "down"
"""


def written(tmp_path: Path, text: str = RECIPE) -> str:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return str(path)


def test_arms_share_settings_and_differ_in_their_own(tmp_path: Path) -> None:
    claim = read(written(tmp_path))
    assert list(claim.arms) == ["method", "baseline", "hot"]
    stages = {name: arm.stages[-1] for name, arm in claim.arms.items()}
    assert {s["rollout"]["n"] for s in stages.values()} == {4}
    assert [s["collect"]["advantage"]["scale"] for s in stages.values()] == ["batch", "group", "batch"]
    assert [s["rollout"]["sampling"]["temperature"] for s in stages.values()] == [1.0, 1.0, 1.5]
    assert claim.seeds == tuple(range(1000, 1012))


def test_the_budget_is_that_of_the_last_stage_of_every_arm(tmp_path: Path) -> None:
    claim = read(written(tmp_path))
    for arm in claim.arms.values():
        (stage,) = arm.stages
        assert stage["tokens"] == 1000 and "steps" not in stage


def test_the_warm_start_is_the_baselines_first_stage_without_what_it_does_not_use(tmp_path: Path) -> None:
    claim = read(written(tmp_path))
    assert len({id(recipe) for recipe in claim.warm.values()}) == 1 and list(claim.warm) == list(claim.arms)
    (stage,) = claim.warm["method"].stages
    original = load("baselines/grpo").stages[0]
    assert stage["part"] == original["part"] and stage["steps"] == original["steps"] == 300
    assert "evaluate" not in stage and "rollout" not in stage
    other = read(written(tmp_path, RECIPE.replace("{rollout = {n = 4}}", "{rollout = {n = 16}, evaluate = {n = 9}}")))
    assert (
        compute_digest(other.warm["method"])
        == compute_digest(claim.warm["method"])
        == compute_digest(claim.recipes["warm start"])
    )


OWN = """extends = "baselines/grpo"
remove = ["stage"]
[[stage]]
name = "teach"
steps = 5
[[stage]]
name = "explore"
tokens = 300
[[stage]]
name = "rl"
tokens = 1
[claim]
says = "x"
baseline = "baselines/grpo"
warm = {method = "teach", baseline = "warm-up", hot = "teach"}
budget = {tokens = 1000}
smoke = {budget = {steps = 10}}
arms.hot.stage.rl.rollout.sampling.temperature = 1.5
check = [
  {role = "premise", metric = "evaluate/mean:first", direction = "down", against = 0.9},
  {role = "headline", metric = "evaluate/mean:final", direction = "up", margin = 0.1},
]
"""


def test_arms_have_preparations_and_stages_of_their_own_under_one_budget(tmp_path: Path) -> None:
    claim = read(written(tmp_path, OWN))
    assert [[s["name"] for s in claim.warm[arm].stages] for arm in claim.arms] == [["teach"], ["warm-up"], ["teach"]]
    assert (
        compute_digest(claim.warm["method"])
        == compute_digest(claim.warm["hot"])
        != compute_digest(claim.warm["baseline"])
    )
    assert [[s["tokens"] for s in arm.stages] for arm in claim.arms.values()] == [[300, 700], [1000], [300, 700]]
    jobs = plan_runs(claim, tmp_path)
    warm = [j for j in jobs if j.arm == "warm start"]
    assert len(warm) == 2 * len(claim.seeds) and len({j.path for j in warm}) == len(warm)
    after = {j.arm: j.after for j in jobs if j.seed == claim.seeds[0] and j.after}
    assert after["method"] is after["hot"] is not after["baseline"]
    smoke = read(written(tmp_path, OWN), smoke=True)
    assert [[s["steps"] for s in arm.stages] for arm in smoke.arms.values()] == [[3, 7], [10], [3, 7]]
    with pytest.raises(RecipeError, match="1,000 tokens of 'explore' use up the budget of 1,000: the last stage, 'rl'"):
        read(written(tmp_path, OWN.replace("tokens = 300", "tokens = 1000")))


def test_an_arm_without_a_preparation_starts_anew(tmp_path: Path) -> None:
    plain = 'baseline = {extends = "baselines/grpo", remove = ["stage.warm-up"], stage.rl.tokens = 1}'
    text = OWN.replace('baseline = "warm-up", ', "").replace('baseline = "baselines/grpo"', plain)
    claim = read(written(tmp_path, text))
    assert list(claim.warm) == ["method", "hot"] and [s["tokens"] for s in claim.arms["baseline"].stages] == [1000]
    assert {j.after for j in plan_runs(claim, tmp_path) if j.arm == "baseline"} == {None}
    assert set(claim.recipes) == {*claim.arms, "warm start of method", "warm start of hot"}


def test_arms_may_train_on_different_tasks_where_one_other_scores_all(tmp_path: Path) -> None:
    other = RECIPE.replace("[claim.arms.hot]", "[claim.arms.hot]\ntask.digits = 1")
    with pytest.raises(RecipeError, match=r"task\.digits is 1"):
        read(written(tmp_path, other))
    tested = other.replace("{rollout = {n = 4}}", "{evaluate = {task = {name = 'arithmetic', digits = 2}}}")
    assert read(written(tmp_path, tested)).arms["hot"].stages[-1]["task"]["digits"] == 1
    apart = tested.replace("task.digits = 1", "task.digits = 1\nevaluate.task.digits = 1")
    with pytest.raises(RecipeError, match=r"evaluate\.task is .*expected the same of all arms"):
        read(written(tmp_path, apart))


def test_a_smoke_is_small(tmp_path: Path) -> None:
    claim = read(written(tmp_path), smoke=True)
    assert claim.seeds == (0, 1) and claim.budget == ("steps", 2.0)
    assert all(arm.stages[-1]["evaluate"]["n"] == 8 for arm in claim.arms.values())
    with pytest.raises(RecipeError, match=r"claim\.smoke\.seeds.*2 or more"):
        read(written(tmp_path, RECIPE.replace("smoke = {", "smoke = {seeds = 1, ")), smoke=True)


def test_a_score_has_a_range_and_a_length_has_none(tmp_path: Path) -> None:
    first, second = read(written(tmp_path)).checks
    assert first.rule.range == (0.0, 1.0) and second.rule.range == ()
    assert (second.rule.arm, second.rule.against, second.rule.direction) == ("hot", 7, "down")


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        ("evaluate/mean:final", True),
        ("evaluate/exact.mean:area", True),
        ("evaluate/vote.pass@4@hard:final", True),
        ("evaluate/exact.entropy:final", False),
        ("evaluate/mean.cost:final", False),
        ("evaluate/cvar@0.1:final", False),
        ("evaluate/exact.mean:to=0.5", False),
    ],
)
def test_scores_of_further_ways_and_metrics_are_shares_too(tmp_path: Path, metric: str, share: bool) -> None:
    claim = read(written(tmp_path, RECIPE.replace("evaluate/mean:final", metric)))
    expected = (0.0, claim.budget[1]) if ":to=" in metric and claim.budget else (0.0, 1.0) if share else ()
    assert claim.checks[0].rule.range == expected


def test_a_gain_may_be_below_zero(tmp_path: Path) -> None:
    plain = 'metric = "evaluate/mean:final"'
    gain = f'use = "gain"\nother = "evaluate/greedy"\nweight = 0.5\n{plain}'
    claim = read(written(tmp_path, RECIPE.replace(plain, gain)))
    check = claim.checks[0]
    assert check.rule.range == ()
    assert name_quantity(check.quantity) == "evaluate/mean:final - 0.5 x evaluate/greedy"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("warm =", "wram =", "did you mean 'warm'"),
        ('"warm-up"\nbudget', '"warmup"\nbudget', "did you mean 'warm-up'"),
        ("{tokens = 1000}", "{seconds = 10}", "a unit in which claims count"),
        ("{tokens = 1000}", "{tokens = 1, steps = 1}", "one unit"),
        ('"warm-up"\nbudget', '{hit = "warm-up"}\nbudget', "did you mean 'hot'"),
        ('"warm-up"\nbudget', '{hot = "warmup"}\nbudget', "arm 'hot' has no stage 'warmup'.*did you mean 'warm-up'"),
        ('"warm-up"\nbudget', '""\nbudget', "stage 'warm-up' is given steps: expected tokens alone"),
        ('arm = "hot"', 'arm = "hit"', r"claim\.check\.1\.arm \(premise\): no arm 'hit'; did you mean 'hot'"),
        ("margin = 0.1\n", "", r"claim\.check\.0 \(headline\): margin is missing"),
        ('direction = "down"', 'direction = "dwon"', "did you mean 'down'"),
        ("rollout.sampling.temperature", "rollut.sampling.temperature", "claim.arms.hot: rollut"),
        ("rollout.sampling.temperature", "rollout.sampling.temperatur", "claim.arms.hot: rollout.sampling.temp"),
        ('baseline = "baselines/grpo"', 'baseline = "baselines/gpro"', "claim.baseline: no recipe 'baselines/gpro'"),
        ("rollout.sampling.temperature", "extends = 'baselines/gpro'\nsteps", "claim.arms.hot.extends: no recipe"),
        ("says", "looks = [3]\nsays", "claim.looks.*5 or more"),
        ("says", "seeds = 8\nsays", "no setting"),
        ('role = "premise"\n', "", r"check\.1\.role: missing: expected one of premise, headline, rival, dose, "),
        ("budget = {tokens = 1000}\n", "", "claim.budget: missing"),
        ('baseline = "baselines/grpo"\n', "", "claim.baseline: missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        read(written(tmp_path, RECIPE.replace(old, new, 1)))


def test_a_bed_that_is_not_there_is_no_mistake_of_an_arm(tmp_path: Path) -> None:
    text = 'on = "baselines/grpo"\ncollect.advantage.scale = "batch"\n[claim]\nbed = "beds/tables/bandits"\n'
    checks = RECIPE[RECIPE.index("[[claim.check]]") :].replace('arm = "hot"\n', "")
    with pytest.raises(RecipeError, match=r"^claim\.bed: no recipe 'beds/tables/bandits'; did you mean"):
        read(written(tmp_path, f"{text}budget = {{steps = 2}}\n{checks}"))


def test_a_recipe_without_a_claim_says_so() -> None:
    with pytest.raises(RecipeError, match=r"states no claim: .* is to be measured$"):
        read("baselines/grpo")
    with pytest.raises(RecipeError, match=r"; it has a demonstration: shuhari demonstrate rlvr/cispo$"):
        read("rlvr/cispo")


RECORDED = """extends = "baselines/dqn_cartpole"
[[stage]]
name = "recorded"
updates = 20
remove = ["buffer"]
buffer = {use = "offline", data = {use = "played", policy = "random", episodes = 2}, size = 8}
[[stage]]
name = "play"
env_steps = 1
[claim]
says = "x"
warm = {method = "recorded"}
baseline = "baselines/dqn_cartpole"
budget = {env_steps = 100}
settings = {evaluate.n = 2}
check = [
  {role = "premise", metric = "evaluate/greedy:first", direction = "down", against = 90.0},
  {role = "headline", metric = "evaluate/greedy:final", direction = "up", margin = 1.0},
]
"""


def test_recorded_data_prepare_an_arm_with_copies_and_without_rollouts(tmp_path: Path) -> None:
    claim = read(written(tmp_path, RECORDED))
    assert list(claim.warm) == ["method"]
    (stage,) = claim.warm["method"].stages
    assert "target" in stage["models"] and "rollout" not in stage and "evaluate" not in stage
    assert build_stage(stage).budget == {"updates": 20.0}
    assert [arm.stages[-1]["env_steps"] for arm in claim.arms.values()] == [100, 100]
