"""Best of a group: by hand, and the law of the best of two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.testing import check_transform, context, groups
from shuhari.transforms.best import Best


def kept(rewards: list[list[Any]], **fields: Any) -> list[list[int]]:
    """The places in each group of the answers that weigh something."""
    batch: Batch = check_transform(Best(**{"above": 0.0, **fields}), groups(rewards, lengths=2), context())
    weight = batch.weight("rl").any(1).tolist()
    assert batch.weight("rl").eq(batch["mask"] & torch.tensor(weight)[:, None]).all()  # all of a row, or nothing
    out, at = [], 0
    for group in rewards:
        out.append([i for i in range(len(group)) if weight[at + i]])
        at += len(group)
    return out


def test_the_first_of_the_best_is_kept() -> None:
    assert kept([[0.4, 1.0, 0.6, 1.0], [0.0, 0.2], [0.0, 0.0]]) == [[1], [1], []]
    assert kept([[0.4, 1.0, 0.6, 1.0], [0.0, 0.2], [0.0, 0.0]], keep=3) == [[1, 2, 3], [1], []]
    assert kept([[0.4, 0.3], [0.5, 0.9]], above=0.5) == [[], [1]]
    assert kept([[-3.0, -1.0], [-2.0, -2.0]], above=-10.0) == [[1], [0]]
    assert kept([[None, 0.1, None], [None, None]]) == [[1], []]  # what nobody graded is never the best


def test_any_increasing_transform_of_the_reward_keeps_the_same() -> None:
    rewards = torch.rand(20, 5, generator=torch.Generator().manual_seed(0)).tolist()
    cubed = [[x**3 for x in group] for group in rewards]
    assert kept(rewards) == kept(cubed) == [[group.index(max(group))] for group in rewards]


def test_the_best_of_two_of_three_answers_has_the_law_of_a_maximum() -> None:
    """Uniform over rewards 1, 2, 3: (1, 3, 5) / 9; worked out over all nine pairs."""
    pairs = [[float(a), float(b)] for a in (1, 2, 3) for b in (1, 2, 3)]
    found = [pair[i] for pair, [i] in zip(pairs, kept(pairs), strict=True)]
    assert [found.count(x) for x in (1.0, 2.0, 3.0)] == [1, 3, 5]


def test_it_takes_the_place_among_filters() -> None:
    batch = groups([[1.0, 0.5]], lengths=1).put({"weight/rl": torch.tensor([[0.25], [1.0]])})
    assert Best()(batch, context()).weight("rl")[:, 0].tolist() == [0.25, 0.0]
    with pytest.raises(ValueError, match="keep"):
        Best(keep=0)


def test_the_best_by_a_reward_model_may_be_below_0() -> None:
    batch = check_transform(Best(), groups([[-3.0, -1.0, -2.0]], lengths=1), context())
    assert batch.weight("rl")[:, 0].gt(0).tolist() == [False, True, False]
