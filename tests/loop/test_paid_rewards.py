"""What an episode has of a reward that others were given: 0 if it was to be paid, unknown if its grader was silent."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from grading import Judge, Samples, context, requests
from shuhari.batch import Batch
from shuhari.config.evaluation import Evaluation
from shuhari.data import EMPTY, PAID, Problem, Request, Step, Trajectory
from shuhari.kernel.measure import summarise_batch
from shuhari.loop import collect
from shuhari.loop.evaluation import evaluate
from shuhari.loop.reward_names import fill_unpaid, is_any_silent, note_names, read_names, write_names
from shuhari.store import codec

NAN = float("nan")


class Pays:
    """Samples of one decision in an environment: sample j is paid what `pays(problem, j)` says."""

    accepts: Any = EMPTY
    stamps = ("reward/found",)

    def __init__(self, pays: Any, played: bool = True) -> None:
        self.pays, self.played = pays, played

    async def group(self, request: Request, ctx: Any) -> list[Trajectory]:
        out = []
        for j in range(request.n):
            step = Step.of(request.problem.prompt, 0, np.zeros(1, np.float32), info={"sample": float(j)},
                           reward=self.pays(request.problem, j))  # fmt: skip
            out.append(Trajectory(request, (step,), graded_by={PAID: ()} if self.played else {}))
        return out


def collected(ctx: Any) -> Any:
    return ctx.wait(collect.collect_groups(requests(), ctx))


def column(batch: Any, name: str) -> list[float]:
    return [None if x != x else x for x in batch[name][:, 0].tolist()]


def scored(problem: Problem, sample: int) -> dict[str, float]:
    return {"score": float(sample)}


def test_what_an_environment_pays_only_sometimes_is_0_in_the_other_episodes() -> None:
    """Two problems, two samples: `found` is .5 in the first sample of each, the score 0 and 1. Sums: .5, 1, .5, 1."""
    ctx = context(scored, Pays(lambda p, j: {"found": 0.5} if j == 0 else {}), weights={"score": 1.0, "found": 1.0})
    batch = collected(ctx)
    assert column(batch, "reward/found") == [0.5, 0.0, 0.5, 0.0] and column(batch, "reward") == [0.5, 1.0, 0.5, 1.0]
    info = summarise_batch(batch)
    assert info["reward/found"] == 0.25 and "rollout/ungraded" not in info


def test_evaluation_counts_the_unpaid_too() -> None:
    """A quarter of the problems are paid 1: the mean is .25, where the mean over those that were paid would be 1."""
    rollout = Pays(lambda p, j: {"found": 1.0} if p.id == "2" else {})
    ctx = context(scored, rollout, weights={"score": 1.0})
    evaluation = Evaluation(n=4)
    assert evaluate(ctx, evaluation, rollout).scores(evaluation)["greedy.found"] == 0.25


def test_a_first_batch_that_is_paid_nothing_starts_the_run_and_later_ones_count(caplog: Any) -> None:
    paid = iter([{}] * 4 + [{"found": 2.0}, {}, {}, {}])
    ctx = context(scored, Pays(lambda p, j: next(paid)), weights={"score": 1.0, "found": 1.0})
    with caplog.at_level(logging.WARNING, "shuhari"):
        assert column(collected(ctx), "reward") == [0.0, 1.0, 0.0, 1.0]
    assert not caplog.records  # the rollout says that it pays it
    assert column(collected(ctx), "reward") == [2.0, 1.0, 0.0, 1.0]


def test_a_name_that_nobody_says_he_gives_is_warned_of_once(caplog: Any) -> None:
    rollout = Pays(lambda p, j: {})
    rollout.stamps = ("reward/*",)  # type: ignore[assignment]
    ctx = context(scored, rollout, weights={"score": 1.0, "found": 1.0})
    with caplog.at_level(logging.WARNING, "shuhari"):
        collected(ctx)
        assert column(collected(ctx), "reward") == [0.0, 1.0, 0.0, 1.0]
    (record,) = caplog.records
    assert "names 'found', which nothing has given so far" in record.getMessage()


def test_a_game_whose_only_pay_is_rare_is_0_while_nobody_is_paid() -> None:
    """The task grades nothing of its own."""
    paid = iter([{}] * 4 + [{"found": 1.0}, {}, {}, {}])
    ctx = context(lambda p, j: {}, Pays(lambda p, j: next(paid)), weights={"found": 1.0})
    assert column(collected(ctx), "reward") == [0.0] * 4
    assert column(collected(ctx), "reward") == [1.0, 0.0, 0.0, 0.0]


def test_none_of_a_grader_stays_ungraded_and_a_name_that_it_leaves_out_is_0() -> None:
    halves = lambda p, j: {"score": j / 2}  # noqa: E731
    judge = Judge(lambda i: None if i == 0 else {"style": 1.0} if i == 1 else {"style": 1.0, "wit": 1.0})
    ctx = context(halves, weights={"score": 1.0, "style": 1.0, "wit": 1.0}, style=judge, n=3)
    batch = ctx.wait(collect.collect_groups(requests(1), ctx))
    assert column(batch, "reward/style") == [None, 1.0, 1.0] and column(batch, "reward/wit") == [None, 0.0, 1.0]
    assert column(batch, "reward") == [None, 1.5, 3.0]


def test_a_file_s_row_without_an_answer_is_ungraded_whoever_has_one() -> None:
    ctx = context(lambda p, j: {"score": 1.0} if p.id == "0" else {})
    assert column(collected(ctx), "reward") == [1.0, 1.0, None, None]


def test_a_watched_grader_of_weight_0_takes_no_sample_away_and_is_reported() -> None:
    judge = Judge(lambda i: {"sometimes": 1.0} if i == 0 else None)
    ctx = context(scored, weights={"score": 1.0, "sometimes": 0.0}, sometimes=judge)
    batch = collected(ctx)
    assert column(batch, "reward") == [0.0, 1.0, 0.0, 1.0]
    info = summarise_batch(batch)
    assert info["reward/sometimes"] == 1.0 and "rollout/ungraded" not in info
    assert column(collected(context(scored, weights={"score": 0.0})), "reward") == [0.0] * 4


def test_what_a_rollout_pays_is_reported_without_a_weight_and_may_be_weighed_if_evaluation_plays_otherwise() -> None:
    rollout = Pays(lambda p, j: {"found": 1.0 - j}, played=False)
    ctx = context(scored, rollout, weights={"score": 1.0})
    assert summarise_batch(collected(ctx))["reward/found"] == 0.5
    ctx = context(scored, rollout, weights={"score": 1.0, "found": 0.25})
    evaluation = Evaluation(n=2, measure="reward")
    assert evaluate(ctx, evaluation, Samples()).scores(evaluation)["greedy"] == 0.0  # by `single`, which pays nothing
    assert column(collected(ctx), "reward") == [0.25, 1.0, 0.25, 1.0]


def test_each_path_of_a_tree_has_what_another_was_paid() -> None:
    step = lambda parent, **reward: Step.of(None, 0, reward=reward, parent=parent)  # noqa: E731
    tree = Trajectory(requests(1)[0], (step(None), step(0, found=1.0), step(0)), graded_by={PAID: ()})
    ((filled,),) = fill_unpaid([[tree]], {"found": set()})
    assert [dict(s.reward) for s in filled.steps] == [{}, {"found": 1.0}, {"found": 0.0}]


def test_a_tree_of_which_a_grader_said_something_keeps_what_is_unknown() -> None:
    step = lambda parent: Step.of(None, 0, parent=parent)  # noqa: E731
    tree = Trajectory(requests(1)[0], (step(None), step(0), step(0))).graded([{"a": 1.0}, None], by="judge")
    ((filled,),) = fill_unpaid([[tree]], {"a": {"judge"}, "b": {"judge"}, "c": {"other"}})
    first, second = (dict(s.reward) for s in filled.steps[1:])
    assert first == {"a": 1.0, "b": 0.0} and second["a"] != second["a"] and second["b"] == 0.0


def test_names_are_noted_with_their_graders_and_survive_a_checkpoint() -> None:
    t = Trajectory(requests(1)[0], (Step.of(None, 0, reward={"paid": 1.0}),)).graded([{"a": 1.0}], by="judge")
    names: Any = {}
    note_names(names, [t])
    assert names == {"paid": set(), "a": {"judge"}} == read_names(write_names(names)) and read_names(["a"]) == {}
    assert not is_any_silent([t]) and is_any_silent([t.graded([None], by="other")])


def test_what_lanes_pay_leaves_the_graders_of_a_name_as_they_are() -> None:
    class Lanes:
        def collect(self, n: int, ctx: Any) -> Batch:
            return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "reward/score": torch.ones(n, 1)})

    lanes: Any = Lanes()
    ctx = context(scored, lanes, weights={"score": 1.0})
    ctx.reward_names = {"score": {""}}
    collect.collect_decisions(2, ctx)
    assert ctx.reward_names == {"score": {""}}


def test_trajectories_that_say_only_whether_they_were_graded_are_read() -> None:
    told: Any = {"": True, "x": False}
    old = codec.dumps(Trajectory(requests(1)[0], (Step.of(None, 0, reward={"b": 1.0, "a": 0.0}),), graded_by=told))
    assert codec.loads(old).graded_by == {"": ("a", "b"), "x": None}


@pytest.mark.parametrize("part", ["reward", "rollout"])
def test_a_part_is_not_called_as_the_stage_s_own_numbers_are(part: str, tmp_path: Any) -> None:
    from shuhari.config.overlay import RecipeError
    from shuhari.config.recipe import Recipe, load
    from shuhari.loop.run import open_run

    tree: Any = dict(load("baselines/grpo", settings={"stage.warm-up.steps": 1, "stage.rl.steps": 1}).tree)
    rl = tree["stage"]["rl"]
    home = rl if "part" in rl else tree
    home["part"] = {part: {**home["part"]["policy"], "trains": ["policy"]}}
    with pytest.raises(RecipeError, match=f"part.{part}: the stage 'rl' reports {part}/"):
        open_run(Recipe("own", tree), tmp_path / "run")

