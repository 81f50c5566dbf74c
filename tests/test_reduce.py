"""Reductions with numbers from the papers' formulas; statistics of groups by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.kernel.reduce import ends, group_mean, reduced, units, weights

NAN = float("nan")
# two rows of lengths 1 and 3; losses 6 and 1, 2, 3
LOSS = torch.tensor([[6.0, NAN, NAN], [1.0, 2.0, 3.0]])
MASK = torch.tensor([[True, False, False], [True, True, True]])


def batch(**columns):
    return Batch({"mask": MASK, **columns}, stream="rl")


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("decision", (6 + 1 + 2 + 3) / 4),  # DAPO: every token alike
        ("row", (6 + (1 + 2 + 3) / 3) / 2),  # GRPO: the mean of the rows' means
        ("constant:4", (6 + 1 + 2 + 3) / 4 / 2),  # Dr. GRPO: sums over a fixed length, mean over rows
        ("turn", (6 + 2) / 2),  # of one turn a row
        ("episode", (6 + 2) / 2),
        ("group", (6 + 2) / 2),
    ],
)
def test_the_reductions_of_grpo_dapo_and_dr_grpo(how, wanted):
    data = batch()
    assert float(reduced(LOSS, weights(data.weight("rl"), data, how))) == pytest.approx(wanted)


def test_units_of_several_rows():
    data = batch(episode=torch.tensor([5, 5]), group=torch.tensor([1, 2]))
    assert float(reduced(LOSS, weights(data.weight("rl"), data, "episode"))) == pytest.approx(12 / 4)
    assert float(reduced(LOSS, weights(data.weight("rl"), data, "group"))) == pytest.approx((6 + 2) / 2)


@pytest.mark.parametrize("how", ["decision", "row", "turn", "episode", "group", "constant:7"])
def test_weights_multiply_and_rows_without_any_are_not_there(how):
    data = batch()
    once = reduced(LOSS, weights(data.weight("rl"), data, how))
    assert float(reduced(LOSS, weights(data.weight("rl") * 0.5, data, how))) == pytest.approx(float(once) / 2)
    only = weights(torch.tensor([[0.0, 0, 0], [1, 1, 1]]), data, how)
    alone = batch().take(torch.tensor([1]))
    assert float(reduced(LOSS, only)) == pytest.approx(
        float(reduced(LOSS[1:], weights(alone.weight("rl"), alone, how)))
    )
    assert weights(torch.zeros(2, 3), data, how).sum() == 0
    signed = weights(torch.tensor([[1.0, 0, 0], [-1, -1, -1]]), data, how)
    assert bool(signed.isfinite().all()) and signed.abs().max() <= 1


def test_turns_count_alike_in_their_episode_and_episodes_alike() -> None:
    """Episode 5: a row with turns of 1 and 2 decisions (losses 6; 1, 2, and 9 between that nobody decided) and a row of
    one turn (3). Episode 7: one turn of two decisions (4, 8)."""
    loss = torch.tensor([[6.0, 9, 1, 2], [3, NAN, NAN, NAN], [4, 8, NAN, NAN]])
    mask = torch.tensor([[1, 0, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    segment = torch.tensor([[0, 0, 1, 1], [0, -1, -1, -1], [0, 0, -1, -1]])
    data = Batch({"mask": mask, "segment": segment, "episode": torch.tensor([5, 5, 7])}, stream="rl")
    by_hand = ((6 + 1.5 + 3) / 3 + 6) / 2
    assert float(reduced(loss, weights(data.weight("rl"), data, "turn"))) == pytest.approx(by_hand)
    first = data.weight("rl") * (segment == 0)  # a turn that carries no weight is not there
    assert float(reduced(loss, weights(first, data, "turn"))) == pytest.approx(((6 + 3) / 2 + 6) / 2)


def test_a_loss_a_row_takes_the_weight_of_its_row():
    w = weights(torch.ones(2, 3), batch(), "decision")
    assert float(reduced(torch.tensor([8.0, 4.0]), w)) == pytest.approx(8 / 4 + 4 * 3 / 4)
    w = weights(torch.ones(2, 3), batch(), "row")
    assert float(reduced(torch.tensor([8.0, 4.0]), w)) == pytest.approx(6)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from(["decision", "row", "turn", "episode", "group"]),
)
@settings(max_examples=40, deadline=None)
def test_a_constant_loss_is_its_own_mean_whatever_the_padding_holds(lengths, how):
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    data = Batch({"mask": mask, "group": torch.arange(len(lengths)) // 2})
    loss = torch.full(mask.shape, 3.0).masked_fill(~mask, NAN)
    assert float(reduced(loss, weights(torch.ones(mask.shape), data, how))) == pytest.approx(3.0)
    x = torch.full(mask.shape, 3.0, requires_grad=True)
    gradient = torch.autograd.grad(reduced(x * 1.0, weights(torch.ones(mask.shape), data, how)), x)[0]
    assert bool((gradient[~mask] == 0).all())


def test_wrong_reductions_are_named():
    with pytest.raises(ValueError, match="did you mean 'decision'"):
        weights(torch.ones(2, 3), batch(), "decisions")
    for how in ("constant:", "constant:0", "constant:x"):
        with pytest.raises(ValueError, match="N > 0"):
            weights(torch.ones(2, 3), batch(), how)


def test_group_means_leave_out_the_ungraded():
    data = Batch({"mask": torch.ones(6, 1, dtype=torch.bool), "group": torch.tensor([1, 1, 1, 2, 2, 3])})
    mean, n = group_mean(data, torch.tensor([1.0, 3.0, NAN, 5.0, 7.0, NAN]))
    torch.testing.assert_close(mean, torch.tensor([2.0, 2, 2, 6, 6, NAN]), equal_nan=True)
    assert n.tolist() == [2, 2, 2, 2, 2, 0]
    assert group_mean(data, torch.arange(6.0), "batch")[0].tolist() == [2.5] * 6


def test_units_tell_roles_of_a_group_apart():
    data = Batch({"mask": torch.ones(4, 1), "group": torch.tensor([1, 1, 1, 2]), "role": torch.tensor([8, 9, 8, 8])})
    unit = units(data, "group")
    assert unit[0] == unit[2] and len(unit.unique()) == 3
    assert units(data, "role").tolist() == [0, 1, 0, 0] and units(data, "batch").tolist() == [0] * 4


def test_a_path_counts_once_for_each_role_on_it():
    def step(i, role, parent):
        return Step.of(np.array([i], np.int32), np.array([1], np.int32), parent=parent, role=role)

    # judge, solver, solver -> (solver, judge); then a closing row under the last
    steps = [
        step(0, "judge", None),
        step(1, "solver", 0),
        step(2, "solver", 1),
        step(3, "solver", 2),
        step(4, "judge", 2),
    ]
    steps.append(Step.closing(np.array([5], np.int32), 4, 0.0))
    data = pack([Trajectory(Request(Problem("t", "p", "")), tuple(steps))])
    assert ends(data).tolist() == [False, False, False, True, True, False]
    chain = pack([Trajectory(Request(Problem("t", "p", "")), (step(0, "a", None), step(1, "b", 0), step(2, "a", 1)))])
    assert ends(chain).tolist() == [False, True, True]
    assert ends(batch()).tolist() == [True, True]
    mean, n = group_mean(chain, torch.tensor([9.0, 2.0, 4.0]))
    assert mean.tolist() == [4, 2, 4] and n.tolist() == [1, 1, 1]
    assert group_mean(chain, torch.tensor([8.0, 2.0, 4.0]), leaves=False)[0].tolist() == [6, 2, 6]
