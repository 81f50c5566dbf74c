"""Importance ratios: every level by hand, and the gradients that flow."""

import pytest
import torch

from shuhari.batch import Batch
from shuhari.kernel.ratio import LEVELS, log_ratio

MASK = torch.tensor([[True, False, True, True], [True, True, False, False]])
NEW = torch.tensor([[0.1, 9.0, 0.3, 0.5], [-0.2, 0.4, float("nan"), 7.0]])
OLD = torch.zeros(2, 4)
BATCH = Batch({"mask": MASK, "segment": torch.tensor([[0, 0, 1, 1], [0, 0, -1, -1]]), "episode": torch.tensor([3, 3])})
WANTED = {
    "decision": [[0.1, 0.3, 0.5], [-0.2, 0.4]],
    "row": [[0.9] * 3, [0.2] * 2],
    "sequence": [[0.3] * 3, [0.1] * 2],
    "segment": [[0.1, 0.8, 0.8], [0.2] * 2],
    "episode": [[1.1] * 3, [1.1] * 2],
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels_by_hand(level):
    got = log_ratio(NEW, OLD, BATCH, level)
    for row in range(2):
        assert got[row][MASK[row]].tolist() == pytest.approx(WANTED[level][row])
    assert bool(got.isfinite().all()) and got.shape == (2, 4)


def test_nothing_is_there_where_nothing_was_decided():
    assert bool((log_ratio(NEW, OLD, BATCH)[~MASK] == 0).all())


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_reaches_each_decision_and_nothing_else(level):
    new = NEW.nan_to_num(0.0).requires_grad_()
    gradient = torch.autograd.grad(log_ratio(new, OLD, BATCH, level)[0, 0], new)[0]
    reach = {"decision": 1.0, "row": 1.0, "sequence": 1 / 3, "segment": 1.0, "episode": 1.0}[level]
    assert float(gradient[0, 0]) == pytest.approx(reach) and bool((gradient[~MASK] == 0).all())
    assert bool((gradient[1] != 0).any()) == (level == "episode")


def test_unknown_behaviour_is_refused():
    old = OLD.clone()
    old[1, 0] = float("nan")
    with pytest.raises(ValueError, match="over 1 rows whose behaviour"):
        log_ratio(NEW, old, BATCH)
    with pytest.raises(ValueError, match="policy's log-probability is NaN"):
        log_ratio(old, OLD, BATCH)
    old[1, 0], old[0, 1] = 0.0, float("nan")  # at a position that decides nothing it does not matter
    assert bool(log_ratio(NEW, old, BATCH).isfinite().all())


def test_what_has_no_ratio_is_named():
    with pytest.raises(ValueError, match="did you mean 'segment'"):
        log_ratio(NEW, OLD, BATCH, "segments")
    with pytest.raises(ValueError, match="ensemble"):
        log_ratio(NEW[..., None], OLD[..., None], BATCH)


def test_a_ratio_of_episodes_needs_all_their_rows():
    whole = Batch({**BATCH.whole, "role": torch.tensor([1, 1])})
    with pytest.raises(ValueError, match="without 1 rows of its episodes"):
        log_ratio(NEW[:1], OLD[:1], whole.take(torch.tensor([0])), "episode")
    assert log_ratio(NEW[:1], OLD[:1], whole.take(torch.tensor([0])), "row")[0, 0] == pytest.approx(0.9)
    swapped = log_ratio(NEW.flip(0), OLD, whole.take(torch.tensor([1, 0])), "episode")
    assert swapped[0, 0] == pytest.approx(1.1)
    # rows that decide nothing, and those of another role, are no part of it
    for other in ({"role": torch.tensor([1, 2])}, {"mask": MASK & torch.tensor([[True], [False]])}):
        alone = Batch({**whole.whole, **other}).take(torch.tensor([0]))
        assert log_ratio(NEW[:1], OLD[:1], alone, "episode")[0, 0] == pytest.approx(0.9)
