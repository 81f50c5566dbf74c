"""What a grade costs: whatever a rollout looks at on its way, each grader is asked once for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from pupils import SOLUTION, Pupil
from shuhari import testing
from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.engines.local import Local
from shuhari.loop import collect
from shuhari.rollouts.demonstrated import Demonstrated
from shuhari.rollouts.rounds import HintCurve, HintLadder
from shuhari.rollouts.single import Single
from shuhari.rollouts.tree import TreeSearch
from shuhari.tasks.source import answer_text


class Counting:
    """A task that says 1 of `y`, and counts. `mute`: it grades nothing."""

    def __init__(self, mute: bool = False) -> None:
        self.asked, self.mute = 0, mute

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        self.asked += 1
        return {} if self.mute else {"score": float("y" in answer_text(steps))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


class Judge:
    """A reward `name` that counts the samples of each call; it says how many of the group say `y`."""

    def __init__(self, name: str) -> None:
        self.name, self.sizes = name, list[int]()

    async def grade(self, group: Sequence[Trajectory], ctx: Any) -> list[Mapping[str, float]]:
        leaves = [[t.steps[i] for i in path] for t in group for path in t.paths()]
        self.sizes.append(len(leaves))
        return [{self.name: float(sum("y" in answer_text(x) for x in leaves))} for _ in leaves]


def run(rollout: Any, knows: Any, task: Counting, n: int = 4, **rewards: Judge) -> Any:
    """The batch of one group, and the policy that it was drawn from."""
    model, sampling = Pupil(knows), Sampling(max_new=4)
    ctx = testing.context(
        task=task, engine=Local(), models={"policy": model}, rollout=rollout, n=n, sampling=sampling,
        weights={"score": 1.0}, rewards=rewards,
    )  # fmt: skip
    ctx.serve()
    batch = ctx.wait(collect.collect_groups([Request(Problem("t", "p", "ab", "y", SOLUTION))], ctx))
    ctx.close()
    return batch, model


def half(hint: int, u: float) -> bool:
    return hint >= 4


def test_a_ladder_pays_a_grader_for_what_was_sampled_and_a_judge_for_what_is_learnt_from() -> None:
    task, judge = Counting(), Judge("style")
    batch, model = run(HintLadder(), half, task, style=judge)
    assert task.asked == len(model.seen) == 12  # three rounds of four
    assert judge.sizes == [4]  # the whole group at once, and none that was thrown away
    assert batch["reward/style"].amax(1).tolist() == [4.0] * 4


def test_a_judge_that_gives_the_measure_is_asked_in_each_round_and_not_again() -> None:
    task, score, style = Counting(mute=True), Judge("score"), Judge("style")
    batch, model = run(HintLadder(), half, task, score=score, style=style)
    assert task.asked == sum(score.sizes) == len(model.seen) == 12
    assert style.sizes == [4] and batch["hint"].tolist() == [0.5] * 4


def test_a_reward_that_is_called_like_the_measure_has_the_last_word_on_it() -> None:
    """The task's own `score` says that all is well from the first round on."""
    task, score = Counting(), Judge("score")
    score.grade = lambda group, ctx: strict(score, group)  # type: ignore[method-assign]
    batch, _ = run(HintLadder(), lambda hint, u: True, task, score=score)
    assert batch["hint"].tolist() == [0.75] * 4 and score.sizes == [4] * 4
    assert batch["reward"].abs().max() == 0


async def strict(judge: Judge, group: Sequence[Trajectory]) -> list[Mapping[str, float]]:
    judge.sizes.append(len(group))
    return [{"score": 0.0}] * len(group)


def test_the_rounds_of_a_curve_are_judged_as_one_group() -> None:
    task, judge = Counting(), Judge("style")
    batch, _ = run(HintCurve(rounds=4), half, task, n=8, style=judge)
    assert task.asked == len(batch) == 8 and judge.sizes == [8]


@pytest.mark.parametrize("measure", ["score", "style"])
def test_a_demonstration_is_judged_with_the_others_unless_it_is_judged_for_its_place(measure: str) -> None:
    task, judge = Counting(), Judge("style")
    _, model = run(Demonstrated(measure=measure), lambda hint, u: True, task, style=judge)
    assert task.asked == 4 and len(model.seen) == 3
    if measure == "score":  # SOLUTION has no `y` in it: it was asked about, and is left out
        assert judge.sizes == [3]
    else:
        assert judge.sizes == [1, 3]


@pytest.mark.parametrize("whole", [False, True])
def test_a_tree_asks_once_for_each_answer(whole: bool) -> None:
    task, judge = Counting(), Judge("style")
    rollout = TreeSearch(width=2, depth=2, select="breadth", every=True, whole=whole)
    batch, _ = run(rollout, lambda hint, u: u < 0.5, task, n=2, style=judge)
    leaves = int((batch["leaf"] & batch.decides).sum())
    assert task.asked == leaves == sum(judge.sizes) and len(judge.sizes) == 1
    torch.testing.assert_close(batch.outcome("reward/score")[batch["leaf"]], batch["reward"].sum(1)[batch["leaf"]])


def test_what_a_rollout_grades_itself_nobody_is_asked_for() -> None:
    class Paid(Single):
        async def group(self, request: Request, ctx: Any) -> list[Trajectory]:
            return [t.graded([{"score": 0.25}], by="") for t in await super().group(request, ctx)]

    task = Counting()
    batch, _ = run(Paid(), half, task)
    assert task.asked == 0 and batch.outcome().tolist() == [0.25] * 4


def test_who_was_asked_and_said_nothing_is_known_of_each() -> None:
    task, judge = Counting(mute=True), Judge("score")
    trajectory = Trajectory(Request(Problem("t", "p", "ab")), (Step.of(None, None),))
    assert trajectory.graded([None], by="").graded_by == {"": None}
    assert trajectory.graded([{}], by="").graded([{"a": 1.0}], by="b").graded_by == {"": (), "b": ("a",)}
    batch, _ = run(Single(), half, task, score=judge)
    assert batch.outcome().tolist() == [0.0] * 4
