"""The table of what is held out: chance, before, after; what is not known has no column."""

from __future__ import annotations

import io
import math
from typing import Any

from shuhari.desk.ends import (
    choose_told,
    describe_rewards,
    draw,
    find_last_stage,
    find_unit,
    list_trained,
    name_reward,
    tabulate_ends,
)

ENDS = {
    "chance": {"greedy": 0.25},
    "before": {"greedy": 0.5, "length": 8.0},
    "after": {"greedy": 0.75, "length": math.nan},
}


def test_a_row_for_each_score_and_a_column_for_what_is_known() -> None:
    assert tabulate_ends(ENDS) == (
        ("held-out", "chance", "before", "after", "change"),
        [("greedy", 0.25, 0.5, 0.75, "+0.25"), ("length", None, 8.0, None, None)],
    )
    assert tabulate_ends({**ENDS, "chance": {}})[0] == ("held-out", "before", "after", "change")
    assert tabulate_ends({"before": {}, "after": {"greedy": 1.0}}) == (("held-out", "after"), [("greedy", 1.0)])
    assert tabulate_ends({"chance": {"greedy": 0.25}})[1] == tabulate_ends({})[1] == []


def test_each_score_names_its_reward() -> None:
    ends = {"greedy": 0.5, "length": 2.0, "greedy.maths": 0.5, "greedy.score": 0.25, "pass@4.score": 1.0}
    heads, rows = tabulate_ends({"before": ends, "after": ends, "measure": "maths"})
    assert heads[:2] == ("held-out", "reward")
    told = [row[:2] for row in rows]
    assert told == [("greedy", "maths"), ("length", None), ("greedy.score", "score"), ("pass@4.score", "score")]
    names = {"greedy": "m", "mean@sums": "m", "pass@4": "m", "pass@4.score@sums": "score", "cvar@0.1.cost": "cost",
             "quantile@0.25": "m", "exact.mean": "", "length": "", "policy/accuracy": ""}  # fmt: skip
    assert {name: name_reward(name, "m") for name in names} == names


def test_a_run_of_recorded_data_alone_does_not_tell_of_what_nothing_grades() -> None:
    pairs = ["policy/accuracy", "policy/loss/dpo", "length", "ungraded", "ungraded.low", "ungraded@a"]
    assert choose_told(pairs, "") == pairs[:3]
    assert choose_told(["greedy", *pairs], "") == ["greedy", *pairs]


def test_a_picture_is_over_what_was_budgeted() -> None:
    columns: dict[str, Any] = {"step": [1, 2], "spent/env_steps": [10, 20], "rollout/return": [1.0, 2.0]}
    assert find_unit({"env_steps": 20}, columns) == "spent/env_steps"
    assert find_unit({"steps": 2}, columns) == find_unit({"tokens": 9}, columns) == "step"
    stream = io.BytesIO()
    draw({"name": "mine", "env_steps": 20}, columns, ENDS, stream)
    assert stream.getvalue().startswith(b"\x89PNG")


def graded(*names: str) -> dict[str, float]:
    return {"greedy": 0.5, "length": 3.0, **{f"greedy.{name}": 0.5 for name in names}, "greedy.far@other": 0.5}


def test_the_rewards_that_are_told_are_those_that_weigh() -> None:
    """And what `greedy` is: the task's own measure, one that is asked for, or the sum."""
    weights = {"judge": 1.0, "truth": 0.0, "late": {"from": 0.0, "to": 1.0, "over": 5}, "gone": {"from": 0, "to": 0}}
    table: dict[str, Any] = {"reward": {"weights": weights}}
    assert list_trained(table) == ["judge", "late"]
    greedy, *trained = describe_rewards(table, graded("judge", "truth", "score"))
    assert greedy == "greedy is the reward 'score', the task's own measure"
    assert [line.split("(")[0] for line in trained] == ["trained is the weighted sum of 'judge' and 'late' "]
    one = describe_rewards({"reward": {"weights": {"judge": 1.0, "truth": 0.0}}}, graded("judge", "score"))
    assert [line.split("(")[0] for line in one[1:]] == ["trained is the reward 'judge', greedy.judge "]
    both = describe_rewards({"reward": {"weights": {"score": 1.0, "found": 0.2}}}, graded("score", "found"))
    assert both[0] == "greedy is the reward 'score', the task's own measure"
    assert both[1].startswith("trained is the weighted sum of 'score' and 'found' "), "the measure weighs too"
    assert describe_rewards(table, graded("judge", "truth")) == [
        "greedy is the reward that is trained, the weighted sum of 'judge' and 'late'"
    ]
    asked = {**table, "evaluate": {"measure": "truth"}}
    assert describe_rewards(asked, graded("judge", "truth"))[0] == "greedy is the reward 'truth'"
    own = describe_rewards({**table, "evaluate": {"measure": "judge"}}, graded("judge", "truth"))
    assert own == ["greedy is the reward 'judge'", both[1].replace("'score' and 'found'", "'judge' and 'late'")]
    alone = {"reward": {"weights": {"judge": 1.0, "truth": 0.0}}, "evaluate": {"measure": "judge"}}
    assert describe_rewards(alone, graded("judge", "truth")) == ["greedy is the reward 'judge'"]
    assert describe_rewards({}, graded("task", "fine"))[0] == "greedy is the reward 'task', the task's own measure"
    assert not describe_rewards({}, {"greedy": 0.5, "greedy@sums": 0.5}), "one reward alone was graded"


def test_the_last_stage_says_what_was_trained() -> None:
    recipe = {"name": "x", "steps": 3, "reward": {"weights": {"a": 1.0}}}
    assert find_last_stage(recipe) == recipe
    stages = [{"name": "one"}, {"name": "two", "reward": {"weights": {"a": 0.0, "b": 2.0}}}]
    assert list_trained(find_last_stage({**recipe, "stage": stages})) == ["b"]
