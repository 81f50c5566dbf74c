"""A claim as its table says it: arms, budget, warm start, and mistakes that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuhari.claims.claim import digest, read
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load

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
metric = "evaluate/mean:final"
direction = "up"
[[claim.check]]
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
    assert claim.seeds == tuple(range(1000, 1008))


def test_the_budget_is_that_of_the_last_stage_of_every_arm(tmp_path: Path) -> None:
    claim = read(written(tmp_path))
    for arm in claim.arms.values():
        (stage,) = arm.stages
        assert stage["tokens"] == 1000 and "steps" not in stage


def test_the_warm_start_is_the_baselines_first_stage_without_what_it_does_not_use(tmp_path: Path) -> None:
    claim = read(written(tmp_path))
    assert claim.warm is not None
    (stage,) = claim.warm.stages
    original = load("baselines/grpo").stages[0]
    assert stage["part"] == original["part"] and stage["steps"] == original["steps"] == 300
    assert "evaluate" not in stage and "rollout" not in stage
    other = read(written(tmp_path, RECIPE.replace("{rollout = {n = 4}}", "{rollout = {n = 16}, evaluate = {n = 9}}")))
    assert other.warm is not None and digest(other.warm) == digest(claim.warm)


def test_a_smoke_is_small(tmp_path: Path) -> None:
    claim = read(written(tmp_path), smoke=True)
    assert claim.seeds == (0, 1) and claim.budget == ("steps", 2.0)
    assert all(arm.stages[-1]["evaluate"]["n"] == 8 for arm in claim.arms.values())


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
    claim = read(written(tmp_path, RECIPE.replace(plain, f'use = "gain"\nother = "evaluate/greedy"\n{plain}')))
    assert claim.checks[0].rule.range == ()


def test_a_digest_is_of_what_is_done() -> None:
    recipe = load("baselines/grpo")
    assert digest(recipe) == digest(recipe.changed({"seed": 3}))
    assert digest(recipe) != digest(recipe.changed({"rollout.n": 4}))


def test_a_digest_does_not_tell_shares_of_a_stage_from_its_steps() -> None:
    recipe = load("baselines/grpo_chain")
    rate = "stage.warm-up.part.policy.optimiser.lr"  # of 450 steps
    spelled = recipe.changed({rate: {"from": 2e-3, "to": 0, "after": 360, "over": 90, "warm": 15}})
    assert digest(recipe) == digest(spelled)
    assert digest(recipe) != digest(spelled.changed({f"{rate}.over": 91}))
    longer = {"stage.warm-up.steps": 900}
    assert digest(recipe.changed(longer)) != digest(spelled.changed(longer))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("warm =", "wram =", "did you mean 'warm'"),
        ('"warm-up"\nbudget', '"warmup"\nbudget', "did you mean 'warm-up'"),
        ("{tokens = 1000}", "{seconds = 10}", "no such budget"),
        ("{tokens = 1000}", "{tokens = 1, steps = 1}", "one unit"),
        ('arm = "hot"', 'arm = "hit"', "did you mean 'hot'"),
        ('direction = "down"', 'direction = "dwon"', "did you mean 'down'"),
        ("rollout.sampling.temperature", "rollut.sampling.temperature", "claim.arms.hot, rollut"),
        ("says", "seeds = 3\nsays", "at least 5"),
        ("budget = {tokens = 1000}\n", "", "claim.budget: missing"),
        ('baseline = "baselines/grpo"\n', "", "claim.baseline: missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        read(written(tmp_path, RECIPE.replace(old, new, 1)))


def test_a_recipe_without_a_claim_says_so() -> None:
    with pytest.raises(RecipeError, match="states no claim"):
        read("baselines/grpo")
