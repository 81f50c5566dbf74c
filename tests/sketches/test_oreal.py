"""OREAL: token weights by hand, the row that a group gives each side, and two models trained together."""

from __future__ import annotations

from math import log
from typing import Any

import harness
import torch
from oreal import CreditWeights, FitOutcome, TokenReward
from toys import Echo

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.learners.gradient import Term
from shuhari.models.causal import Causal
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence
from shuhari.ports import Collected, Model, Objective, Transform
from shuhari.roles import Role
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed

weigh: Transform = CreditWeights()
fit: Objective = FitOutcome()
reward: Model = TokenReward()


def run_of(steps: int = 1, after: int = 0) -> Any:
    models = {
        "policy": harness.tiny(),
        "reference": Role(init="policy"),
        "credit": Role(harness.tiny(TokenReward), init="policy"),
    }
    parts = {
        "credit": harness.part("credit", fit=Term(FitOutcome(), "credit", reduce="row")),
        "policy": harness.part(
            pos=Term(Clip(behaviour="present"), "pos"),
            neg=Term(Clip(behaviour="present"), "neg", 0.5),
            kl=Term(Divergence(), "rl", 0.01),
            after=after,
        ),
    }
    collect = {"mixed": Mixed(), "advantage": Advantage("leave-one-out", scale="none")}
    common: dict[str, Any] = {
        "collect": collect,
        "transforms": {"credit": CreditWeights()},
        "buffer": Fresh(4),
        "n": 8,
        "max_new": 2,
    }
    return harness.make(harness.stage(parts, task=Echo(), models=models, steps=steps, **common))


def collected(run: Any) -> Batch:
    run.enter_stage()
    learner = run.stage.learners["main"]
    while want := run.short():
        learner.buffer.observe(Collected(run.apply(run.stage.collect, run.collect(want))))
    [batch] = learner.buffer.draw(run.ctx)
    return batch


def test_weights_by_hand() -> None:
    run = run_of()
    batch = collected(run)
    assert CreditWeights.needs[0].key == "credit/value"
    w = torch.full_like(batch["logp"], log(3))  # sigma = 3/4
    out = CreditWeights()(batch.put({"credit/value": w}), run.ctx)
    right = batch.outcome() == 1
    torch.testing.assert_close(out["advantage"][right], 0.5 * batch["advantage"][right])
    assert not out["advantage"][~right].any()
    zero = CreditWeights()(batch.put({"credit/value": 0 * w}), run.ctx)
    assert not zero["advantage"].any()


def test_each_mixed_group_gives_one_right_and_one_wrong_sample() -> None:
    run = run_of()
    batch = collected(run)
    out = CreditWeights()(batch.put({"credit/value": torch.zeros_like(batch["logp"])}), run.ctx)
    for stream, sign in (("pos", 1.0), ("neg", 0.0)):
        rows = (out.weight(stream) != 0).any(1)
        assert out["group"][rows].unique().numel() == int(rows.sum()) == 4
        assert bool((out.outcome()[rows] == sign).all())
    assert int((out.weight("credit") != 0).any(1).sum()) == 32
    r = batch.outcome()
    for g in batch["group"].unique():
        rows = batch["group"] == g
        others = (r[rows].sum() - r[rows]) / 7
        torch.testing.assert_close(batch["advantage"][rows][:, 0], r[rows] - others)


def test_a_new_credit_model_leaves_only_the_kl_and_learns() -> None:
    run = run_of(steps=2)
    reports = harness.train(run)
    run.enter_stage()
    start, credit = harness.weights(run), harness.weights(run, "credit")
    first = next(reports)
    assert first["credit/loss/fit"] == torch.tensor(2.0).log().item()  # w = 0: p = 1/2 everywhere
    assert torch.equal(harness.weights(run), start)  # omega = 0, and the policy still is its reference
    assert not torch.equal(harness.weights(run, "credit"), credit)
    second = next(reports)
    assert second["credit/rows"] > second["policy/rows"]
    assert not torch.equal(harness.weights(run), start)
    assert torch.equal(harness.weights(run, "reference"), start)


def test_the_policy_waits_for_the_credit_model() -> None:
    run = run_of(steps=2, after=2)
    run.enter_stage()
    start = harness.weights(run)
    for report in harness.train(run):
        assert "policy/rows" not in report
    assert torch.equal(harness.weights(run), start)


def test_the_token_reward_sees_the_token() -> None:
    run = run_of()
    batch = collected(run)
    model = run.ctx.models["credit"]
    torch.nn.init.ones_(model.module.value.weight)
    other = batch.put({"action": torch.where(batch["action"] == 2, 3, 2)})
    assert isinstance(model, Causal)
    with torch.no_grad():
        a, b = model(batch).value(), model(other).value()
    assert bool((a != b)[batch["mask"]].all())


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    assert harness.resumes(lambda: run_of(steps=2))
