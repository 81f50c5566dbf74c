"""Grades, and what becomes of them where a grader fails: NaN, never 0 and never a crash; a misspelt name is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grading import Judge, Samples, context, requests
from shuhari.data import Ramp
from shuhari.kernel.measure import summarise_batch
from shuhari.loop import collect
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.single import Single


def collected(ctx: Any, tag: str = "") -> Any:
    return ctx.wait(collect.collect_groups(requests(), ctx, tag=tag))


def right(problem, sample):
    return {"score": float(sample)}


def test_the_trained_reward_is_the_weighted_sum() -> None:
    ctx = context(right, weights={"score": 2.0, "style": 0.5}, style=Judge(lambda i: {"style": 10.0 + i, "other": 1.0}))
    batch = collected(ctx)
    assert batch["reward"][:, 0].tolist() == [0 + 5.0, 2 + 5.5, 0 + 5.0, 2 + 5.5]
    assert ctx.reward_names == {"score": {""}, "style": {"style"}, "other": {"style"}}
    assert ctx.ledger["decisions"] == 4


def test_a_weight_may_be_a_schedule() -> None:
    weights = {"score": 1.0, "style": Ramp(0.0, 1.0, over=4)}
    ctx = context(right, weights=weights, style=Judge(lambda i: {"style": 10.0}))
    assert collected(ctx)["reward"][:, 0].tolist() == [0, 1, 0, 1]
    ctx.count = 1.0
    assert collected(ctx)["reward"][:, 0].tolist() == [2.5, 3.5, 2.5, 3.5]


@pytest.mark.parametrize("broken", [RuntimeError("no network"), None])
def test_a_grader_that_fails_on_a_whole_batch_leaves_it_ungraded(broken: Any) -> None:
    ctx = context(right, weights={"score": 1.0, "style": 1.0}, style=Judge(lambda i: broken))
    batch = collected(ctx)
    assert bool(batch["reward"].isnan().all()) and bool(batch["reward/style"].isnan().all())
    assert batch["reward/score"][:, 0].tolist() == [0, 1, 0, 1]
    assert ctx.problems == ([] if broken is None else ["failed_graders (reward 'style'): RuntimeError: no network"])
    info = summarise_batch(batch)
    assert math.isnan(info["reward/style"]) and info["reward/score"] == 0.5 and info["rollout/ungraded"] == 1.0


@pytest.mark.parametrize("tag", ["", "evaluate"])
@pytest.mark.parametrize("broken", [ZeroDivisionError("x"), None])
def test_a_task_that_cannot_grade_leaves_ungraded_whatever_the_tag(broken: Any, tag: str) -> None:
    ctx = context(lambda p, j: broken)
    with ctx.charging_to(tag or "x"):
        assert bool(collected(ctx, tag)["reward"].isnan().all())


def test_what_was_graded_once_is_no_misspelling_later() -> None:
    grades = iter([{"score": 1.0}] * 4 + [{}] * 4)
    ctx = context(lambda p, j: next(grades))
    assert collected(ctx)["reward"].tolist() == [[1.0]] * 4
    assert bool(collected(ctx)["reward"].isnan().all())


def test_a_misspelt_weight_is_told_with_the_nearest_name() -> None:
    with pytest.raises(KeyError, match="names 'scroe', which nothing grades; did you mean 'score'"):
        collected(context(right, weights={"scroe": 1.0}))


def test_a_failure_excuses_its_own_batch_only_and_is_told_with_the_error() -> None:
    grades = iter([OSError("gone")] * 4 + [OSError("gone again"), *[{"score": 1.0}] * 3])
    ctx = context(lambda p, j: next(grades), weights={"scroe": 1.0})
    assert bool(collected(ctx)["reward"].isnan().all())
    with pytest.raises(KeyError, match=r"'scroe'.*gone again"):  # now the names that are given are known
        collected(ctx)


def test_a_task_that_adds_nothing_to_its_environments_reward_does_not_hide_a_misspelling() -> None:
    silent = lambda p, j: None  # noqa: E731
    batch = collected(context(silent, Samples(task=3.0), weights={"task": 1.0}))
    assert batch["reward"].tolist() == [[3.0]] * 4
    with pytest.raises(KeyError, match="names 'tusk'"):
        collected(context(silent, Samples(task=3.0), weights={"tusk": 1.0}))


@pytest.mark.parametrize(("rollout", "near"), [(Single(), "known: none"), (Episode(), "did you mean 'max_steps'")])
def test_a_setting_that_a_rollout_does_not_take_is_told(rollout: Any, near: str) -> None:
    ctx = context(right, rollout)
    with pytest.raises(ValueError, match=f"takes no setting 'max_step'; {near}"):
        ctx.wait(collect.collect_groups(requests(settings={"max_step": 3}), ctx))


def test_rollouts_that_fail_are_left_out_and_if_all_do_it_is_told() -> None:
    class Fails(Samples):
        async def group(self, request: Any, ctx: Any) -> Any:
            if request.problem.id in self.failing:
                raise ConnectionError("refused")
            return await super().group(request, ctx)

    rollout = Fails()
    ctx = context(right, rollout)
    rollout.failing = ("0",)
    assert len(collected(ctx)) == 2
    assert ctx.ledger["failed_rollouts"] == 1
    rollout.failing = ("0", "1")
    with pytest.raises(RuntimeError, match=r"every rollout failed; .*ConnectionError: refused"):
        collected(ctx)


def test_lanes_are_told_of_a_misspelling_too() -> None:
    from shuhari.batch import Batch

    class Lanes:
        def collect(self, n: int, ctx: Any) -> Batch:
            return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "reward/task": torch.ones(n, 1)})

    lanes: Any = Lanes()
    ctx = context(right, lanes, weights={"task": 2.0})
    assert collect.collect_decisions(2, ctx)["reward"].tolist() == [[2.0], [2.0]]
    with pytest.raises(KeyError, match="did you mean 'task'"):
        collect.collect_decisions(2, context(right, lanes, weights={"tsak": 2.0}))
