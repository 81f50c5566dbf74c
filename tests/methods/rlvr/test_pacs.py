"""PACS as its recipe says it: the cross-entropy of centred log-ratios with rewards, by hand."""

from __future__ import annotations

import pytest
import torch

from built import CLIP, OLD, POLICY, answers, built, holds, learnt, padded, same, table
from shuhari.objectives.log_ratio import LogRatio
from shuhari.transforms.advantage import Advantage


def test_numbers_of_the_paper() -> None:
    """The label is the reward itself; a group keeps together in its minibatch."""
    wanted = {
        f"{CLIP}.objective": LogRatio(
            "logistic", beta=1.0, centre="leave-one-out", over="old", level="row", balance=True
        ),
        f"{CLIP}.reduce": "row",
        f"{POLICY}.minibatches": 4,
        f"{POLICY}.unit": "group",
        "collect": {"advantage": Advantage(centre="none", scale="none")},
        "n": 8,
    }
    stage = holds("rlvr/pacs", wanted, usual=True)
    assert list(stage.learners["main"].parts["policy"].terms) == ["loss"] and "reference" not in stage.models


def test_at_first_it_is_a_policy_gradient_of_a_half_either_way() -> None:
    stage = built("rlvr/pacs")
    log_prob = padded([-1.0], [-1.0]).requires_grad_()
    batch = answers(stage, ["a", "b"], [1.0, 0.0]).put({OLD: log_prob.detach()})
    (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))
    same(found, [[-0.5], [0.5]])


@pytest.mark.parametrize("labels", [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
def test_the_loss_of_the_paper_where_the_policy_has_moved(labels: list[float]) -> None:
    """w CE(sigmoid(psi), label), psi what an answer gained less the mean of what the others did, w = n / (2 n_side)."""
    moved = [[0.3], [-0.2, 0.1], [0.4, 0.0, -0.7], [0.05]]
    s = torch.tensor([sum(x) for x in moved], requires_grad=True)
    psi = s - (s.sum() - s) / 3
    label = torch.tensor(labels)
    right = label.sum()
    w = torch.where(label == 1, 4 / (2 * right), 4 / (2 * (4 - right))) if 0 < right < 4 else torch.ones(4)
    cross = -(label * psi.sigmoid().log() + (1 - label) * (1 - psi.sigmoid()).log())
    (wanted,) = torch.autograd.grad((w * cross).mean(), s)
    stage = built("rlvr/pacs")
    log_prob = padded(*([-1.0] * len(x) for x in moved)).requires_grad_()
    batch = answers(stage, ["a", "bc", "def", "g"], labels)
    batch = batch.put({OLD: log_prob.detach() - padded(*moved)})
    (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))
    same(found, [[float(x)] * len(row) for x, row in zip(wanted, moved, strict=True)])
