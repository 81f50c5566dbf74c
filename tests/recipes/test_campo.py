"""CAMPO as its recipe says it: what a loop costs in an advantage, by hand, and two limits of length."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from built import built

from grading import context
from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.loop.collect import add_reward, grade_group
from shuhari.pack import pack

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
    assert "finished" not in stage.collect  # which would leave out what was cut


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
