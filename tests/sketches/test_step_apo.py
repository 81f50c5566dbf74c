"""Step-APO: the loss and its pairs by hand, mean backups, and policy and value trained on the same trees."""

from __future__ import annotations

from math import exp
from typing import Any

import harness
import numpy as np
import pytest
import torch
from step_apo import PlanSearch, SiblingPairs, StepPreference, backup, q
from toys import Echo

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.learners.parts import Term
from shuhari.models.text.causal import CausalValue
from shuhari.needs import Trace
from shuhari.objectives.value import Value
from shuhari.optimisers.adamw import AdamW
from shuhari.ports import Objective, Rollout, Transform
from shuhari.rollouts.tree import Tree
from shuhari.testing import Role, check_resumed

rollout: Rollout = PlanSearch()
pairs: Transform = SiblingPairs()
preference: Objective = StepPreference()
NOTHING: Any = None


def tree(*values: float | None, last: tuple[float, ...] = ()) -> Batch:
    """One state and the steps taken in it, with their Q, two decisions each; then two more below the first."""

    def step(i: int, q: float | None, *context: int, parent: int | None = None) -> Step:
        known = {"q": np.nan if q is None else q, "v": 0.1, "last": last[i] if i < len(last) else 0.0}
        info = {name: np.full(2, x, np.float32) for name, x in known.items()}
        ids = np.array(context, np.int32), np.array([i, i + 1], np.int32)
        return Step.of(*ids, np.zeros(2, np.float32), parent=parent, info=info)

    steps = [step(i, q, 9) for i, q in enumerate(values)]
    steps += [step(i, values[0], 9, 0, 1, parent=0) for i in (7, 8)]
    return pack([Trajectory(Request(Problem("t", "p", None), key="g"), tuple(steps))])


def linked(*values: float | None, last: tuple[float, ...] = (), factor: float = 0.3) -> list[tuple[float, ...]]:
    index, columns = SiblingPairs(factor)(tree(*values, last=last), NOTHING).links["pairs"]
    return [(*rows, round(m, 5)) for rows, m in zip(index.tolist(), columns["margin"].tolist(), strict=True)]


def loss(gap: float, qw: float, ql: float, dpo: bool = False) -> torch.Tensor:
    """Of one pair whose log-ratios differ by `gap`, and its gradient with respect to the gap."""
    batch = SiblingPairs()(tree(qw, ql), NOTHING)
    if dpo:
        batch.links["pairs"][1]["margin"].zero_()
    live = torch.zeros_like(batch["logp"])
    live[0] = gap / 2  # two tokens
    live.requires_grad_()
    batch = batch.put({"live/policy/log_prob": live, "reference/log_prob": torch.zeros_like(batch["logp"])})
    [value] = StepPreference()(batch, NOTHING)[0]
    [grad] = torch.autograd.grad(value, live)
    return torch.stack([value.detach(), -grad[0, 0] / 0.5])


def test_the_loss_by_hand() -> None:
    torch.testing.assert_close(loss(2.0, 0.8, -0.4), torch.tensor([0.79814, 0.54983]), atol=1e-5, rtol=0)
    assert loss(2.0, 0.8, -0.4, dpo=True)[1].item() == pytest.approx(0.26894, abs=1e-5)
    shifted = loss(2.0, 0.8 - 0.3, -0.4 - 0.3)  # V of the parent cancels
    torch.testing.assert_close(shifted, loss(2.0, 0.8, -0.4))


def test_pairs_are_siblings_of_opposite_sign() -> None:
    assert linked(0.2, 0.5) == []
    assert linked(0.2, -0.5, None, -0.1, 0.4) == [(0, 1, 0.7), (0, 3, 0.3), (4, 1, 0.9), (4, 3, 0.5)]
    # of last steps the best and the worst only, their Q times 0.3; they do not pair with plan steps
    assert linked(0.2, -1.0, 1.0, -0.5, 0.5, last=(0, 1, 1, 1, 1)) == [(2, 1, 0.6)]


def test_mean_backup_and_selection() -> None:
    grown = Tree(Request(Problem("t", "p", None)), np.array([5], np.int32))
    traces = [Trace(np.array([i], np.int32), np.array([-1.0], np.float32), 0, {"ended": False}) for i in range(2)]
    a, b = grown.add(grown.nodes[0], traces)
    for node, v in ((a, 0.5), (b, -1.0), (a, 0.0)):
        backup(node, v)
    assert [q(a), q(b), q(grown.nodes[0])] == pytest.approx([0.25, -1.0, -1 / 6])
    assert PlanSearch().select(grown.nodes[0]) is a  # 0.25 + sqrt(3) / (3 e) against -1 + sqrt(3) / (2 e)
    assert PlanSearch(explore=20.0).select(grown.nodes[0]) is b
    assert 0.25 + 20 * 3**0.5 / (3 * exp(1)) < -1 + 20 * 3**0.5 / (2 * exp(1))


def run_of(optimiser: AdamW | None = None, tokens: int | None = None, steps: int = 2) -> Any:
    models = {
        "policy": harness.tiny(),
        "reference": Role(init="policy"),
        "value": Role(harness.tiny(CausalValue), init="policy"),
    }
    parts = {
        "policy": harness.part(optimiser=optimiser, step=Term(StepPreference())),
        "value": harness.part("value", fit=Term(Value(role="value", target="v"), "value")),
    }
    search = PlanSearch(iterations=12, first=5, width=3, chunk=1, depth=3)
    common: dict[str, Any] = {
        "rollout": search,
        "collect": {"pairs": SiblingPairs()},
        "buffer": Fresh(3),
        "tokens": tokens,
    }
    return harness.make(harness.stage(parts, task=Echo(), models=models, steps=steps, **common))


def test_a_step_of_training_moves_policy_and_value() -> None:
    run = run_of()
    run.enter_stage()
    before = harness.weights(run), harness.weights(run, "value")
    first, _ = harness.train(run)
    assert first["policy/pairs"] >= 1
    assert first["policy/loss/step"] > 0.69314  # policy = reference: -log sigmoid(-margin), margins > 0
    assert first["value/loss/fit"] > 0
    after = harness.weights(run), harness.weights(run, "value")
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_micro_batches_change_nothing_for_pairs() -> None:
    slow = AdamW(lr=1.0, eps=1.0), AdamW(lr=1.0, eps=1.0)  # a step is about the gradient
    runs = [run_of(o, t, steps=1) for o, t in zip(slow, (None, 12), strict=True)]
    reports = [next(harness.train(run)) for run in runs]
    assert reports[0]["policy/loss/step"] == pytest.approx(reports[1]["policy/loss/step"], abs=1e-6)
    torch.testing.assert_close(*(harness.weights(run) for run in runs), atol=1e-6, rtol=0)


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    check_resumed(run_of)


def test_no_pairs_are_no_loss() -> None:
    run = run_of()
    run.enter_stage()
    batch = run.apply(run.stage.collect, run.collect(3))
    index, columns = batch.links["pairs"]
    batch = batch.put({"weight/rl": batch["mask"].float()}).link("pairs", index[:0], {"margin": columns["margin"][:0]})
    before = harness.weights(run)
    info = run.stage.learners["main"].update(batch, run.ctx).info
    assert info["policy/loss/step"] == info["policy/pairs"] == 0
    assert torch.equal(before, harness.weights(run))
