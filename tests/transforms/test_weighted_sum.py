"""Several rewards, each normalised on its own before they are added, by hand and beside TRL's formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.testing import check_transform, context, groups
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.weighted_sum import WeightedSum

RIGHT = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
BRIEF = [[30.0, 10.0, 20.0, 20.0], [5.0, 5.0, 5.0, 5.0]]


def make_batch() -> Batch:
    brief = groups(BRIEF, name="brief", lengths=2)["reward/brief"]
    return groups(RIGHT, name="right", lengths=2, columns={"reward/brief": brief})


def normalise(batch: Batch, weights: dict[str, float], over_batch: bool) -> Batch:
    """The recipe of docs/reward-models.md."""
    ctx = context()
    for name in weights:
        batch = Advantage(reward=f"reward/{name}", into=f"{name}_advantage")(batch, ctx)
    total = WeightedSum({f"{name}_advantage": weight for name, weight in weights.items()})
    batch = check_transform(total, batch, ctx)
    if over_batch:
        batch = Advantage(column="advantage", unit="batch", scale="batch")(batch, ctx)
    return batch


def test_by_hand() -> None:
    """Group 1: right is (1, 0, 0, 1), deviation 0.57735, so ±0.86603; brief has 8.16497, so 1.22474, -1.22474, 0, 0.
    Group 2: right has deviation 0.5, so 1.5 for its third; brief is equal, and says nothing."""
    batch = normalise(make_batch(), {"right": 1.0, "brief": 0.5}, over_batch=False)
    wanted = [0.86603 + 0.61237, -0.86603 - 0.61237, -0.86603, 0.86603, -0.5, -0.5, 1.5, -0.5]
    torch.testing.assert_close(batch["advantage"][:, 0], torch.tensor(wanted), atol=4e-4, rtol=0)
    assert torch.equal(batch["advantage"][:, 0], batch["advantage"][:, 1])


def test_the_scale_of_a_reward_does_not_matter_and_in_one_sum_it_does() -> None:
    once = normalise(make_batch(), {"right": 1.0, "brief": 1.0}, over_batch=False)["advantage"]
    tenfold = make_batch()
    tenfold = tenfold.put({"reward/brief": 10 * tenfold["reward/brief"]})
    again = normalise(tenfold, {"right": 1.0, "brief": 1.0}, over_batch=False)["advantage"]
    torch.testing.assert_close(once, again, atol=2e-4, rtol=0)
    summed = make_batch()
    summed = summed.put({"reward": summed["reward/right"] + summed["reward/brief"]})
    first = Advantage()(summed, context())["advantage"][:4, 0]
    assert first[1] < first[2] < first[3] < first[0], "in the sum the number of tens decides"
    assert abs(float(first[3] - first[2])) < 0.15 < float(once[3, 0] - once[2, 0]), "and being right hardly counts"


@pytest.mark.parametrize("weights", [{"right": 1.0, "brief": 0.5}, {"brief": 2.0, "right": -0.3}])
def test_with_the_batch_it_is_what_trl_computes(weights: dict[str, float]) -> None:
    """GRPOConfig(multi_objective_aggregation = "normalize_then_sum"): per group and reward, summed, then per batch."""
    total = np.zeros((2, 4))
    for name, weight in weights.items():
        x = np.array({"right": RIGHT, "brief": BRIEF}[name])
        total += weight * (x - x.mean(1, keepdims=True)) / (x.std(1, ddof=1, keepdims=True) + 1e-4)
    wanted = (total - total.mean()) / (total.std(ddof=1) + 1e-4)
    found = normalise(make_batch(), weights, over_batch=True)["advantage"][:, 0]
    torch.testing.assert_close(found, torch.from_numpy(wanted).flatten().float(), atol=1e-5, rtol=0)


def test_a_sample_that_one_reward_does_not_grade_is_not_learnt_from() -> None:
    batch = make_batch()
    brief = batch["reward/brief"].clone()
    brief[1] = torch.nan
    batch = normalise(batch.put({"reward/brief": brief}), {"right": 1.0, "brief": 0.5}, over_batch=True)
    assert batch.weight("rl").sum(1).tolist() == [2.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert bool(batch["advantage"].isfinite().all())


def test_columns_of_a_row_and_of_decisions_are_added_and_the_rest_is_0() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    batch = Batch({"mask": mask, "a": torch.tensor([1.0, 2.0]), "b": torch.full((2, 2), 10.0)})
    made = WeightedSum({"a": 2.0, "b": 0.1}, into="both")(batch, context())["both"]
    assert made.tolist() == [[3.0, 3.0], [5.0, 0.0]]


def test_nothing_to_add_is_refused() -> None:
    with pytest.raises(ValueError, match="of is empty: expected columns and their weights"):
        WeightedSum()
