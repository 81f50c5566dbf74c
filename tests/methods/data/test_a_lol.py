"""Advantages within a data set, by hand: values of all of it, whatever is drawn."""

from __future__ import annotations

import pytest
import torch

from built import built
from shuhari.batch import Batch
from shuhari.events import Loaded
from shuhari.methods.data.a_lol.data_advantage import DataAdvantage
from shuhari.objectives.clip import Clip
from shuhari.testing import check_transform, context, groups

DATA = [[1.0, 0.0, 0.0, 0.0], [0.8, 0.6], [0.4, None], [1.0, 1.0]]


def drawn(made: DataAdvantage, data: Batch, *rows: int) -> Batch:
    made.observe(Loaded(data))
    batch = data.take(torch.tensor(rows))
    batch.stream = "rl"
    return check_transform(made, batch, context())


def test_what_is_earned_beyond_the_mean_of_the_problem() -> None:
    batch = drawn(DataAdvantage(), groups(DATA, lengths=2), 0, 1, 4, 5, 6, 9)
    a = [0.75, -0.25, 0.1, -0.1, 0.0, 0.0]
    torch.testing.assert_close(batch["advantage"], torch.tensor(a)[:, None].expand(-1, 2))
    assert batch.weight("rl").any(1).tolist() == [x > 1e-6 for x in a]


def test_a_constant_reward_leaves_nothing() -> None:
    batch = drawn(DataAdvantage(), groups([[0.5] * 4], lengths=1), 0, 1)
    assert not batch.weight("rl").any() and not batch["advantage"].any()


def test_all_may_stay_and_what_is_not_known_is_nought() -> None:
    made = DataAdvantage(positive=False, into="beyond")
    batch = drawn(made, groups(DATA, lengths=1), 0, 1)
    assert batch["beyond"][:, 0].tolist() == pytest.approx([0.75, -0.25])
    assert batch.weight("rl")[:, 0].tolist() == [1, 1]
    other = groups([[1.0, 0.0]], lengths=1, start=100)
    assert made(other, context())["beyond"][:, 0].tolist() == [0, 0]


def test_it_bounds_the_ratio_of_a_whole_answer_and_sums_over_its_tokens() -> None:
    learner = built("data/a_lol").learners["main"]
    (term,) = learner.parts["policy"].terms.values()
    assert term.objective == Clip(clips="weight", level="row", low=0.9, high=0.9)  # in [0.1, 1.9]
    assert term.reduce == "constant:1" and learner.transforms == {"data_advantage": DataAdvantage(positive=True)}
    assert learner.buffer.wanted() == 0 and learner.buffer.keep == "all"  # nothing is sampled while it learns
