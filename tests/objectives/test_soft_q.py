"""The values of the random policy: losses and gradients by hand, the backup by a loop over rows, a tree solved."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from typing import Any

import pytest
import torch

from given_logits import Logits
from shuhari.batch import Batch
from shuhari.kernel.reduce import reduced, weights
from shuhari.needs import Need, evaluate
from shuhari.objectives.soft_q import UniformQ, mean_log_prob, next_values
from shuhari.testing import context

CTX: Any = context()
V = 5


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(reward: list[float], mask: torch.Tensor, seed: int = 0) -> Batch:
    """One group; the advantage is the reward less the group's mean, on every decision."""
    r = torch.tensor(reward, dtype=torch.float64)
    action = torch.randint(V, mask.shape, generator=torch.Generator().manual_seed(seed))
    return Batch({"mask": mask, "action": action, "advantage": (r - r.mean())[:, None] * mask})


def asked(batch: Batch, new: torch.Tensor, old: torch.Tensor, objective: UniformQ) -> Batch:
    """With the columns of the objective, as the learner scores them."""
    model = {"policy": lambda b: Logits(old, b["action"])}
    batch = batch.put(evaluate(batch, [n for n in objective.needs if not n.live], model))
    live = {"policy": lambda b: Logits(new, b["action"])}
    return batch.put(evaluate(batch, [n for n in objective.needs if n.live], live, trains=("policy",)))


def loss_of(batch: Batch, new: torch.Tensor, old: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, Any]:
    objective = UniformQ(scale)
    loss, info = objective(asked(batch, new, old, objective), CTX)
    return reduced(loss, weights(batch["mask"].double(), batch, "decision")), info


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_where_nothing_has_moved_it_is_the_reward_squared_and_a_policy_gradient(scale: float) -> None:
    """Rewards (1, 0): 0.25, and the gradient is -2 scale times the token mean of (r - mean) grad log pi."""
    batch = batch_of([1.0, 0.0], torch.ones(2, 3, dtype=torch.bool))
    x, y = (draw(2, 3, V).requires_grad_() for _ in range(2))
    loss, info = loss_of(batch, x, x.detach(), scale)
    assert loss.item() == pytest.approx(0.25) and not info["next_q"].any() and not info["q"].any()
    log_prob = Logits(y, batch["action"]).log_prob()
    plain = -2 * scale * (batch["advantage"] * log_prob).mean()
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], torch.autograd.grad(plain, y)[0])


def test_the_backup_is_the_mean_over_the_vocabulary_one_step_later() -> None:
    """Against a loop over rows and tokens, with a row that ends early and one with a gap between two turns."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1]], dtype=torch.bool)
    batch = batch_of([1.0, 0.0, 0.0], mask)
    new, old = draw(3, 4, V, seed=1).requires_grad_(), draw(3, 4, V, seed=2)
    loss, _ = loss_of(batch, new, old, 0.7)
    p, q, total = new.log_softmax(-1), old.log_softmax(-1), torch.zeros((), dtype=torch.float64)
    for i in range(3):
        places = mask[i].nonzero().squeeze(1).tolist()
        for t, after in zip(places, [*places[1:], None], strict=True):
            a = batch["action"][i, t]
            y = batch["advantage"][i, t]
            if after is not None:
                y = y + 0.7 * sum(p[i, after, v].detach() - q[i, after, v] for v in range(V)) / V
            total = total + (0.7 * (p[i, t, a] - q[i, t, a]) - y) ** 2
    torch.testing.assert_close(loss, total / mask.sum())
    grads = torch.autograd.grad(loss, new)[0], torch.autograd.grad(total / mask.sum(), new)[0]
    torch.testing.assert_close(*grads)
    assert not torch.equal(grads[0], torch.zeros_like(grads[0]))


def test_what_cannot_be_said_is_no_action() -> None:
    """A forbidden id has the logit -1e30: the mean is over the others."""
    logits = draw(1, 2, V).float()
    few = logits.clone()
    few[..., 3] = -1e30
    action = torch.zeros(1, 2, dtype=torch.long)
    got = mean_log_prob((Logits(few, action).at(torch.tensor([0, 1])),), action[0], lambda name: action)
    left = logits[0][:, [0, 1, 2, 4]].log_softmax(-1).mean(-1)
    torch.testing.assert_close(got, left)


def test_a_row_that_goes_on_elsewhere_is_refused() -> None:
    mask = torch.ones(2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="one row an episode"):
        next_values(torch.zeros(2, 1), Batch({"mask": mask, "parent": torch.tensor([-1, 0])}))


def test_settings() -> None:
    with pytest.raises(ValueError, match="scale is 0"):
        UniformQ(0.0)
    keys = [n.key for n in UniformQ(role="student").needs]
    assert keys == ["live/student/log_prob", "live/student/mean_log_prob", "student/log_prob", "student/mean_log_prob"]
    assert UniformQ().couples == "row" and UniformQ().needs[2] == Need(("policy",), "log_prob")


PATHS = [(a, b) for a in range(2) for b in range(2)]
STATE = torch.tensor([[0, 1 + a] for a, _ in PATHS])  # root, left, right
ACTION = torch.tensor(PATHS)
TREE = Batch(
    {
        "mask": torch.ones(4, 2, dtype=torch.bool),
        "action": ACTION,
        "advantage": torch.tensor([[0.0, float(p == (0, 0))] for p in PATHS], dtype=torch.float64),
    }
)


def descended(loss: Callable[[torch.Tensor], torch.Tensor], steps: int, lr: float) -> torch.Tensor:
    """A table [3, 2] that has gone down the loss, from 0."""
    table = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(steps):
        leaf = table.clone().requires_grad_()
        table = table - lr * torch.autograd.grad(loss(leaf), leaf)[0]
    return table


def test_the_tree_of_depth_two() -> None:
    """Leaves (1, 0, 0, 0): the fixed point of the loss is Q(root) = (1/2, 0) and Q(left) = (1, 0), the values of the
    random policy, and the greedy policy is the best one. Q is a free table here, given as the columns asked for."""
    objective = UniformQ()
    new, mean, old, old_mean = (need.key for need in objective.needs)
    zero = torch.zeros(4, 2, dtype=torch.float64)

    def loss(q: torch.Tensor) -> torch.Tensor:
        columns = {new: q[STATE, ACTION], mean: q[STATE].mean(-1), old: zero, old_mean: zero}
        return objective(TREE.put(columns), CTX)[0].sum()

    q = descended(loss, 300, 0.1)
    want = torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(q, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("own", "best"), [(True, 0), (False, 1)])
def test_the_tree_of_depth_two_in_the_logits_of_a_policy(own: bool, best: int) -> None:
    """The same with Q = log pi - log uniform, whose mean over actions is -KL(uniform || pi), so that the values cannot
    be held. The fixed point is q = y + c pi, c such that probabilities sum to 1: here by bisection, from the leaves up.

    With the centred reward on each decision (`own`), as in the paper, the greedy policy is the best one. With the
    reward on the last decision alone it is not: the state where something can be told apart has the lower mean."""
    r = TREE["advantage"][:, 1:]
    tree = TREE.put({"advantage": (r - r.mean()).expand(4, 2)}) if own else TREE
    mean = tree["advantage"].view(2, 2, 2)  # by first action, second action, place
    left, right = (held(*mean[a, :, 1].tolist()) for a in range(2))
    values = [sum(log(2 * p) for p in ps) / 2 for ps in (left, right)]
    root = held(*(mean[a, :, 0].mean().item() + values[a] for a in range(2)))
    table = descended(lambda z: loss_of(tree, z[STATE], torch.zeros(4, 2, 2).double())[0], 500, 2.0)
    want = torch.tensor([root, left, right], dtype=torch.float64)
    torch.testing.assert_close(table.softmax(1), want, atol=1e-6, rtol=0)
    assert values[0] < -0.05 and table.argmax(1)[:2].tolist() == [best, 0]


def held(y0: float, y1: float) -> list[float]:
    """Two probabilities with log 2p = y + c p, by bisection on the logit d of the first."""
    low, high = -3.0, 3.0
    for _ in range(60):
        d = (low + high) / 2
        p = 1 / (1 + exp(-d))
        c = log(4 * p * (1 - p)) - y0 - y1
        low, high = (d, high) if d < y0 - y1 + c * (2 * p - 1) else (low, d)
    return [p, 1 - p]
