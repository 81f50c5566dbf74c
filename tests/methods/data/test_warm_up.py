"""Warm-up as its claim has it: what is imitated, from whom, and what RL is given in each arm."""

from __future__ import annotations

import re

from shuhari.config.build import build_stage
from shuhari.lab import demonstrations

TEACHING = {"method": "habits", "baseline": "warm-up"}


def staged(recipe, name):
    (table,) = (t for t in recipe.stages if t["name"] == name)
    return build_stage(table, {})


def train(stage, n=200):
    source = stage.task.problems("train")
    return [source[i] for i in range(n)]


def test_each_arm_starts_where_it_was_taught_last():
    claim = demonstrations.read("data/warm_up").claim
    assert {arm: recipe.stages[-1]["name"] for arm, recipe in claim.warm.items()} == TEACHING
    assert all([t["name"] for t in recipe.stages] == ["rl"] for recipe in claim.arms.values())


def test_the_first_policy_is_shown_guesses_alone_and_alike_in_all_arms():
    claim = demonstrations.read("data/warm_up").claim
    shown = [[p.solution for p in train(staged(recipe, "warm-up"))] for recipe in claim.warm.values()]
    assert shown[0] == shown[1] and all(re.fullmatch(r";\d", s) for s in shown[0])
    kinds = {p.id[0] if p.id[0] in "dw" else "" for p in train(staged(claim.warm["baseline"], "warm-up"))}
    assert kinds == {"d", "w", ""}


def test_work_is_imitated_on_the_toy_domain_alone():
    """Every step of the work is a term and a digit: two steps of three terms."""
    claim = demonstrations.read("data/warm_up").claim
    work = train(staged(claim.warm["method"], "habits"))
    assert all(p.prompt[0] == "w" for p in work)
    assert all(re.fullmatch(r"([+-]\d=\d){2};\d", p.solution) for p in work)


def test_all_arms_have_the_same_few_problems_of_the_target():
    claim = demonstrations.read("data/warm_up").claim
    for recipe in claim.arms.values():
        stage = staged(recipe, "rl")
        assert stage.curriculum.pool == 64 and all(p.id[0] == "d" for p in train(stage))
        split = stage.task.problems("test")
        tested = {split[i].id for i in range(split.size())}
        assert {i[0] if i[0] in "dw" else "" for i in tested} == {"d", "w", ""}
        assert not tested & {p.id for p in train(stage)}
