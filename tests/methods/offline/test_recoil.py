"""ReCOIL: the loss, its gradient and where it is least, by hand."""

from __future__ import annotations

import pytest

from given_values import Numbers, asked, rows
from shuhari.methods.offline.recoil.recoil import ExpertValue, MixtureTD


def test_loss_by_hand_reads_no_reward_and_no_value_behind_an_end() -> None:
    """(1 - 0.5 · 4)² + (2 - 0.5 · 4)², and (3 - 0)² + (4 - 0)² where the episode ends."""
    models = {"critic": Numbers([[1.0, 3.0]], members=2), "value": Numbers([4.0])}
    batch = rows([0, 0], [0, 1], reward=[5.0, 7.0], cont=[1.0, 0.0])
    _, loss, _ = asked(MixtureTD(gamma=0.5), batch, models)
    assert loss.tolist() == [1.0, 25.0]
    loss.sum().backward()
    assert models["value"].table.grad is None
    assert models["critic"].table.grad.tolist() == [[-2.0, 14.0]]  # 2 (q - y) of both members


def test_the_expert_is_worth_two_more_a_step() -> None:
    """Where Q has a number for each pair and half of the mixture is the expert's, a pair of its alone has -1/2 + 1/4
    (Q - gamma V') = 0, so that Q = gamma V' + 2; a pair of the others alone has Q = gamma V'."""
    models = {"critic": Numbers([[0.5 * 4 + 2, 0.5 * 4]]), "value": Numbers([4.0])}
    mixture, linear = rows([0, 0], [0, 1]), rows([0], [0])
    loss = MixtureTD(gamma=0.5), ExpertValue()
    total = asked(loss[0], mixture, models)[1].mean() / 4 + asked(loss[1], linear, models)[1].mean() / 2
    total.backward()
    assert models["critic"].table.grad.flatten().tolist() == pytest.approx([0.0, 0.0])
