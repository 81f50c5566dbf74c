"""Segments: which decisions they hold, who is preferred, and how often, against the data set and a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari import testing
from shuhari.buffers.recording import RecordedEpisode, columns_of
from shuhari.buffers.segments import Segments
from shuhari.models.tabular import Tabular
from shuhari.tasks.gridworld import Gridworld

WORTH = (1.0, 5.0, 2.0, 0.0, 3.0)


@dataclass
class Two:
    """An episode of five decisions with a known worth, and one of two, which is too short."""

    def read(self, task: Any, seed: int) -> Mapping[str, Tensor]:
        return columns_of(
            RecordedEpisode(np.arange(n + 1), np.arange(n) % 4, {"task": np.array(WORTH[:n])}, True) for n in (5, 2)
        )


def make(**settings: Any) -> tuple[Segments, Any]:
    task, model = Gridworld(), Tabular()
    model.build(task)
    buffer = Segments(**{"data": Two(), "by": "reward/task", **settings})
    return buffer, testing.context(task=task, models={"policy": model})


def test_a_pair_is_two_runs_of_decisions_of_one_episode_and_the_larger_sum_is_preferred() -> None:
    buffer, ctx = make(size=40, length=3)
    (batch,) = buffer.draw(ctx)
    seen, taken = batch["context"].view(-1, 3), batch["action"].view(-1, 3)
    assert set(map(tuple, seen.tolist())) == {(0, 1, 2), (1, 2, 3), (2, 3, 4)}  # not over the end, nor of the short one
    assert torch.equal(taken, seen % 4)
    index, _ = batch.links["pairs"]
    total = batch["reward/task"].view(-1, 3).sum(1)
    better, worse = total[index // 3].unbind(1)
    assert bool((better >= worse).all()) and bool((index % 3 == 2).all())  # links name the last rows
    on = batch.weight("better").view(-1, 3)
    assert torch.equal(on[index[:, 0] // 3], torch.ones(40, 3)) and not on[index[:, 1] // 3].any()
    assert bool(batch.weight("rl").all()) and len(batch["episode"].unique()) == 80


def test_noisy_preferences_have_the_logit_of_the_difference() -> None:
    """Segments of one decision worth 5 and 0: the first wins with sigmoid(0.2 * 5)."""
    buffer, ctx = make(size=4000, length=1, sharpness=0.2)
    (batch,) = buffer.draw(ctx)
    index, _ = batch.links["pairs"]
    better, worse = batch["reward/task"][:, 0][index].unbind(1)
    right, wrong = ((a == 5) & (b == 0) for a, b in ((better, worse), (worse, better)))
    n = int(right.sum() + wrong.sum())
    assert n > 150
    p = 1 / (1 + np.exp(-1.0))
    assert abs(float(right.sum()) / n - p) < 4 * np.sqrt(p * (1 - p) / n)


def test_it_keeps_to_its_port() -> None:
    buffer, ctx = make(size=2, length=2)
    testing.check_buffer(buffer, ctx, unit="decision")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 6}, "length is 6: expected at most 5"),
        ({"by": "reward/tosk"}, "no such column"),
        ({"better": "rl"}, "expected another name"),
    ],
)
def test_what_cannot_be_drawn_is_refused(settings: dict[str, Any], message: str) -> None:
    def draw() -> None:
        buffer, ctx = make(**settings)
        next(buffer.draw(ctx))

    with pytest.raises(ValueError, match=message):
        draw()
