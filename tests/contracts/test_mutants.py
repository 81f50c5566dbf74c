"""A seeded part of `mutants.py`: mistakes in recipes are refused with a message, or come to a run; no other error, and
none that takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

import mutants
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load

FINE = ("refused", "a run")


def test_mutated_recipes_are_refused_or_run(tmp_path: Path) -> None:
    verdicts = list(mutants.walk_mutants(120, 1, tmp_path))
    assert [v for v in verdicts if v[1] not in FINE] == []
    assert {v for _, v in verdicts} == set(FINE)


def test_numbers_that_are_none_are_refused() -> None:
    verdicts = list(mutants.walk_numbers(120, 1))
    assert [v for v in verdicts if v[1] not in FINE] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "seven", True, [1], {"a": 1}])
@pytest.mark.parametrize("key", ["steps", "seed", "rollout.n", "part.policy.optimiser.lr", "models.policy.layers"])
def test_what_no_number_may_be(key: str, value: object) -> None:
    with pytest.raises(RecipeError, match=key.rpartition(".")[2]):
        mutants.describe(load("baselines/grpo", settings={key: value}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"collect.advantage.before": {}}, r"collect\.advantage\.before: .*is no other entry"),
        ({"laid": {"rlvr/x": {"groups": "many"}}}, "expected a whole number, or true or false"),
        ({"models.policy.heads": 1000}, "heads 1000: expected at most as many heads as hidden"),
        ({"models.policy.layers": 1000, "models.policy.hidden": 60_000}, "make a model of [0-9,]+ GiB, and this"),
    ],
)
def test_what_came_through(change: dict[str, object], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        mutants.describe(load("baselines/grpo", settings=change))


def test_a_fault_is_told_apart() -> None:
    def fail() -> None:
        raise ZeroDivisionError("inside")

    assert mutants.judge(fail) == "ZeroDivisionError: inside"  # type: ignore[arg-type]


def test_twenty_thousand_keys_take_no_square_of_time() -> None:
    weights = {f"w{i}": 1.0 for i in range(20_000)}
    assert mutants.judge(lambda: load("baselines/grpo", settings={"reward": {"weights": weights}})) == "refused"
