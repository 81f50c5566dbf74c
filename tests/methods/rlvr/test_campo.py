"""Loops at the end of an answer, counted by hand, and which answers are looked at.

CAMPO as its recipe says it: what a loop costs in an advantage, by hand, and two limits of length.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from built import built
from grading import context
from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import Problem, Ramp, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward, grade_group
from shuhari.methods.rlvr.campo.endless_loop import Loop, find_loop

REQUEST = Request(Problem("t", "p", ""))


def step(tokens: list[int], parent: int | None = None, **info: Any) -> Step:
    return Step.of(np.ones(1, np.int32), np.array(tokens, np.int32), parent=parent, info=info)


def grades(reward: Loop, *group: Trajectory, at: float = 0.0) -> list[Any]:
    found = asyncio.run(reward.grade(group, testing.context(count=at)))
    return [None if g is None else g[reward.name] for g in found]


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([1, 2, 3, 4, 5, 4, 5, 4, 5], 6 / 9),  # 4 5 three times
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 0),
        ([4, 5, 4, 5, 1], 0),  # a loop that it has left
        ([7, 7], 1),
        ([7], 0),
        ([], 0),
        ([1, 2, 1, 2, 1, 2, 1, 2], 1),  # 1 2 1 2 twice, the longest
        ([3, 7, 7, 7, 7], 4 / 5),
        ([7, 7, 7, 7, 7], 4 / 5),  # by the longest block, 7 7, of which two rounds fit
        ([1, 2, 2, 1, 2, 2], 1),  # not 2 alone, which is shorter
    ],
)
def test_by_hand(tokens: list[int], share: float) -> None:
    assert find_loop(np.array(tokens)) == pytest.approx(share)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=14))
def test_as_an_enumeration_of_all_blocks_has_it(tokens: list[int]) -> None:
    """Of all (block, rounds >= 2) that the text ends in, the longest block, and of that the most rounds."""
    n = len(tokens)
    ways = [
        (size, rounds)
        for size in range(1, n + 1)
        for rounds in range(2, n // size + 1)
        if tokens[n - size * rounds :] == tokens[n - size :] * rounds
    ]
    size, rounds = max(ways, default=(0, 0))
    assert find_loop(np.array(tokens, np.int64)) == pytest.approx(size * rounds / max(n, 1))


def test_only_what_was_cut_is_looked_at() -> None:
    looped = [1, 2, 2, 2]  # 2 three times
    cut, ended, unknown = (Trajectory(REQUEST, (step(looped, **i),)) for i in ({"ended": False}, {"ended": True}, {}))
    assert grades(Loop(), cut, ended, unknown) == [pytest.approx(-3 / 4), 0, 0]
    assert grades(Loop(by="any", weight=0.1), cut, ended) == [pytest.approx(-0.1), 0]
    other = Trajectory(REQUEST, (step([1, 2, 3], ended=False),))
    assert grades(Loop(by="any"), other) == [0]
    assert grades(Loop(weight=Ramp(0.0, 1.0, over=10)), cut, at=5) == [pytest.approx(-3 / 8)]


def test_an_answer_is_what_was_decided_on_the_path_to_its_leaf() -> None:
    tree = (step([1, 5]), step([1, 5], 0, ended=False), step([1, 6], 0, ended=False), step([1, 5], 0, ended=True))
    assert grades(Loop(), Trajectory(REQUEST, tree)) == [-1, 0, 0]  # 1 5 1 5; 1 5 1 6; cut nowhere
    forced = Step(np.ones(1, np.int32), np.array([9, 9], np.int32), np.zeros(2, np.bool_), np.full(2, -1))
    begun = Trajectory(REQUEST, (forced, step([9, 3], 0, ended=False)))
    assert grades(Loop(), begun, Trajectory(REQUEST, (forced,))) == [0, None]


def test_what_is_no_text_is_refused() -> None:
    moved = Step.of(np.zeros(2), np.zeros(2, np.float32), info={"ended": False})
    with pytest.raises(ValueError, match="loop: an action is float32"):
        grades(Loop(), Trajectory(REQUEST, (moved,)))


LOOPED, OTHER = [1, 2, 2, 2], [1, 2, 3, 4]


def graded(stage: Any, *answers: tuple[list[int], bool, float]) -> Batch:
    """A group of answers: (tokens, whether it ended, its score)."""
    request = Request(Problem("t", "0", ""), key="0")
    group = []
    for i, (tokens, ended, _) in enumerate(answers):
        info = {"ended": ended, "sample": float(i)}
        step = Step.of(np.ones(1, np.int32), np.array(tokens, np.int32), np.zeros(len(tokens), np.float32), info=info)
        group.append(Trajectory(request, (step,)))
    ctx = context(lambda problem, i: {"score": answers[i][2]}, weights=stage.weights, **stage.rewards)
    return add_reward(pack(asyncio.run(grade_group(group, ctx))), ctx)


def test_a_loop_costs_its_share_of_the_answer() -> None:
    stage = built("rlvr/campo")
    assert stage.weights == {"score": 1.0, "loop": 1.0} and set(stage.rewards) == {"loop"}
    batch = graded(stage, (OTHER, True, 1.0), (LOOPED, True, 0.0), (LOOPED, False, 0.0), (OTHER, False, 0.0))
    assert batch.outcome("reward").tolist() == pytest.approx([1.0, 0.0, -0.75, 0.0])
    advantage = stage.collect["advantage"](batch, testing.context())["advantage"][:, 0]
    mean = 0.25 / 4  # of 1, 0, -3/4, 0
    deviation = np.sqrt(((1 - mean) ** 2 + 2 * mean**2 + (0.75 + mean) ** 2) / 3)
    expected = [(x - mean) / (deviation + 1e-4) for x in (1.0, 0.0, -0.75, 0.0)]
    assert advantage.tolist() == pytest.approx(expected, rel=1e-4)
    assert "drop_truncated" not in stage.collect  # which would leave out what was cut


def test_a_group_all_wrong_teaches_not_to_loop() -> None:
    stage = built("rlvr/campo")
    batch = graded(stage, (OTHER, True, 0.0), (LOOPED, False, 0.0))
    advantage = stage.collect["advantage"](batch, testing.context())["advantage"][:, 0]
    assert advantage.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-3)


def test_half_the_limit_for_half_of_the_run() -> None:
    stage = built("rlvr/campo", usual=True)
    share: Any = stage.curriculum.share
    assert (share.start, share.to, share.after, stage.curriculum.period) == (0.5, 1.0, 0.5, 0)
    assert built("rlvr/campo").curriculum.share == 1.0  # the claim has one limit
