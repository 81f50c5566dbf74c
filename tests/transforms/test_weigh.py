"""Advantage-weighted regression: weights by hand, what is learnt by them, and the packaged recipes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.kernel.reduce import reduced, weights
from shuhari.learners.parts import Term
from shuhari.objectives.likelihood import Nll
from shuhari.testing import check_transform, context, transitions
from shuhari.transforms.weigh import Weigh


def worth(transform: Any, **columns: Any) -> list[float]:
    rows = [len(next(iter(columns.values()))) * [0.0]]
    batch = transitions(rows).take(torch.arange(len(rows[0])))
    batch = batch.put({k: torch.tensor(v)[:, None] for k, v in columns.items()})
    return check_transform(transform, batch, context())["weight/worth"][:, 0].tolist()  # type: ignore[no-any-return]


def test_weights_of_the_paper() -> None:
    """exp(A / beta), A = R - V, and at most 20 (Peng et al. 2019)."""
    transform = Weigh("to_go", baseline="critic", temperature=0.5)
    found = worth(transform, to_go=[1.0, 3.0, 9.0, math.nan], **{transform.needs[0].key: [2.0, 2.0, 2.0, 2.0]})
    assert found == pytest.approx([math.exp(-2), math.exp(2), 20.0, 0.0])


def test_reward_weighted_regression_has_no_baseline_and_no_bound() -> None:
    assert worth(Weigh("to_go", most=math.inf), to_go=[0.0, 4.0]) == pytest.approx([1.0, math.exp(4)])


def test_scaled_advantages_forget_their_unit() -> None:
    a = worth(Weigh(scale="batch"), advantage=[1.0, 2.0, 3.0])
    assert a == pytest.approx([math.exp(-1), 1.0, math.exp(1)])  # mean 2, standard deviation 1
    assert worth(Weigh(scale="batch"), advantage=[100.0, 200.0, 300.0]) == pytest.approx(a)


def test_it_multiplies_the_stream_that_it_is_of_and_leaves_that_as_it_is() -> None:
    batch = transitions([[0.0, 0.0]]).take(torch.arange(2))
    batch = batch.put({"advantage": torch.ones(2, 1), "weight/rl": torch.tensor([[0.0], [3.0]])})
    out = Weigh()(batch, context())
    assert out["weight/worth"][:, 0].tolist() == pytest.approx([0.0, 3 * math.e])
    assert out["weight/rl"][:, 0].tolist() == [0.0, 3.0]


def test_what_the_stream_does_not_carry_neither_counts_nor_overflows() -> None:
    """Rows 0 and 1 are of the stream: mean 2, standard deviation sqrt(2); row 2 is not."""
    batch = transitions([[0.0] * 3]).take(torch.arange(3))
    on = torch.tensor([[1.0], [1.0], [0.0]])
    batch = batch.put({"advantage": torch.tensor([[1.0], [3.0], [900.0]]), "weight/rl": on})
    found = check_transform(Weigh(scale="batch"), batch, context())["weight/worth"][:, 0].tolist()
    assert found == pytest.approx([math.exp(-(0.5**0.5)), math.exp(0.5**0.5), 0.0])
    found = check_transform(Weigh(most=math.inf), batch, context())["weight/worth"][:, 0].tolist()
    assert found == pytest.approx([math.e, math.exp(3), 0.0])


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="lower `most`"):
        worth(Weigh(most=math.inf), advantage=[0.0, 900.0])
    assert worth(Weigh(), advantage=[0.0, 900.0]) == pytest.approx([1.0, 20.0])


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"most": -1.0}, {"scale": "group"}])
def test_settings_out_of_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Weigh(**wrong)


def test_the_loss_is_least_where_the_policy_has_the_weighted_shares() -> None:
    """argmax of the sum of w log pi over one state is pi = the share of the weights."""
    advantage = torch.tensor([[0.0], [math.log(3.0)]])
    batch = transitions([[0.0, 0.0]], actions=[[0, 1]]).take(torch.arange(2)).put({"advantage": advantage})
    batch, logits = Weigh()(batch, context()), nn.Parameter(torch.zeros(2))
    term, w = Term(Nll(), stream="worth"), weights(batch.weight("worth"), batch, "decision")
    for _ in range(300):
        log_prob = logits.log_softmax(0)[torch.tensor([0, 1])][:, None]
        loss = reduced(term.objective(batch.put({term.objective.needs[0]: log_prob}), context())[0], w)  # type: ignore[attr-defined]
        (g,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= g
    assert logits.softmax(0).tolist() == pytest.approx([0.25, 0.75], abs=1e-3)


def test_cloning_a_controller_that_never_errs_reaches_its_actions() -> None:
    from shuhari.buffers.experts import balance_pole
    from shuhari.loop.run import loop, open_run

    settings = ["steps=400", "buffer.data.epsilon=0", "part.policy.optimiser.lr={from=1e-2, to=0}", "evaluate.n=0"]
    run = open_run(load("baselines/bc_cartpole", settings))
    first, *_, last = loop(run)
    assert last["policy/loss/nll"] < 0.1 < first["policy/loss/nll"]
    batch: Batch = next(run.stage.learners["main"].buffer.draw(run.ctx))
    found = run.ctx.models["policy"](batch).parameters()[:, 0].argmax(1)  # type: ignore[attr-defined]
    told = torch.tensor([balance_pole(x, None) for x in batch["context"].numpy()])  # type: ignore[arg-type]
    assert float((found == told).float().mean()) > 0.98 and batch["action"].flatten().tolist() == told.tolist()


def test_what_chance_did_is_improved_upon() -> None:
    from shuhari.loop.run import train

    settings = ["steps=300", "buffer.data.episodes=150", "evaluate.every=0", "evaluate.n=10"]
    *_, last = train(load("baselines/awr_cartpole", settings))
    assert last["evaluate/greedy"] > 60  # chance: 22; imitation of the same data: about 10
