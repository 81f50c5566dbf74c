"""The implied reward: numbers by hand, what shifts of the logits do, an optimum that is known, micro-batches."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
import torch

from given_logits import Logits
from shuhari.batch import Batch
from shuhari.methods.data.iqlearn_lm.implied_reward import ImpliedReward
from shuhari.needs import Need, evaluate
from shuhari.objectives.likelihood import Nll
from shuhari.testing import check_objective, context

CTX: Any = context()
LOG_PROB = Need(("policy",), "log_prob", live=True)


def asked(objective: ImpliedReward, logits: torch.Tensor, action: torch.Tensor, mask: torch.Tensor) -> Batch:
    batch = Batch({"mask": mask, "action": action})
    models = {"policy": lambda b: Logits(logits, action)}
    return batch.put(evaluate(batch, objective.needs, models, trains=("policy",)))


def implied(logits: torch.Tensor, said: list[list[int]], discount: float = 1.0) -> torch.Tensor:
    """r [B, K] of rows of ids, -1 where nothing was decided."""
    action = torch.tensor(said)
    objective = ImpliedReward(discount)
    batch = asked(objective, logits, action.clamp(min=0), action >= 0)
    loss, info = objective(batch, CTX)
    torch.testing.assert_close(loss, info["implied"].square())
    return info["implied"] * batch["mask"]


def same(found: torch.Tensor, wanted: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=found.dtype), atol=1e-5, rtol=1e-5)


def test_by_hand() -> None:
    """Logits (1, 0) twice, id 0 twice: Q = 1, V = log(1 + e) = 1.3133, so r = (1 - 1.3133, 1 - 0); with a weight of 0.1
    imitation costs 2 x 0.3133 and the penalty 0.1 (0.0981 + 1): 0.7363 in all, 0.4133 of one token."""
    logits = torch.tensor([1.0, 0.0]).expand(2, 2, 2)
    v = log(1 + exp(1))
    r = implied(logits, [[0, 0], [0, -1]])
    same(r, [[1 - v, 1.0], [1.0, 0.0]])
    losses = 2 * (v - 1) + 0.1 * r[0].square().sum(), (v - 1) + 0.1 * r[1].square().sum()
    assert [round(float(x), 4) for x in losses] == [0.7363, 0.4133]


def test_a_shift_of_all_logits_moves_the_last_reward_alone() -> None:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    said = [[0, 1, 2, 3], [4, -1, 2, -1]]  # a gap between two turns
    before, after = implied(logits, said), implied(logits + 0.7, said)
    same(after - before, [[0, 0, 0, 0.7], [0, 0, 0.7, 0]])
    same(implied(logits + 0.7, said, 0.9) - implied(logits, said, 0.9), [[0.07, 0.07, 0.07, 0.7], [0.07, 0, 0.7, 0]])


def test_at_discount_0_it_is_the_logit_of_what_was_said() -> None:
    logits = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1))
    same(implied(logits, [[2, 0, 3]], 0.0), logits[0, range(3), [2, 0, 3]][None].tolist())


def test_the_gradient_runs_through_all_three_values() -> None:
    """Against differences of r, sum over rows of r^2, with a row that ends early."""
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    action, mask = torch.tensor([[1, 2, 3], [0, 1, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)

    def total(x: torch.Tensor) -> torch.Tensor:
        objective = ImpliedReward()
        return (objective(asked(objective, x, action, mask), CTX)[0] * mask).sum()

    assert torch.autograd.gradcheck(total, (logits,))


def test_imitation_with_the_penalty_makes_what_is_shown_alike_often() -> None:
    """Two words of one token, shown three times and once: imitation alone says them at 3/4 and 1/4. The penalty of a
    large weight makes both logits 0, so as often as each other."""
    shares = torch.tensor([0.75, 0.25], dtype=torch.float64)
    found = {}
    for weight in (0.0, 100.0):
        z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([z], max_iter=200, line_search_fn="strong_wolfe")

        def closure(z: Any = z, optimiser: Any = optimiser, weight: float = weight) -> torch.Tensor:
            optimiser.zero_grad()
            objective = ImpliedReward()
            batch = asked(objective, z.expand(2, 1, 2), torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.bool))
            both = Nll()(batch, CTX)[0] + weight * objective(batch, CTX)[0]
            loss = (shares[:, None] * both).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        found[weight] = z.detach().softmax(-1)
    torch.testing.assert_close(found[0.0], shares, atol=1e-4, rtol=0)
    torch.testing.assert_close(found[100.0], torch.full((2,), 0.5, dtype=torch.float64), atol=0.02, rtol=0)


def test_it_keeps_the_rules_of_its_port_and_refuses_rows_that_go_on() -> None:
    objective = ImpliedReward()
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
    batch = asked(objective, logits, torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
    check_objective(objective, batch, CTX)
    with pytest.raises(ValueError, match="go on in other rows"):
        objective(batch.put({"child": torch.tensor([1, -1])}), CTX)
