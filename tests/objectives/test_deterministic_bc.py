"""TD3+BC: the scale by hand, the gradient through the critic, and the same numbers however the batch is cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.needs import evaluate
from shuhari.objectives.deterministic_bc import DeterministicBC
from shuhari.testing import loop, open_run


def test_loss_and_gradient_by_hand() -> None:
    """Q = 4 a1 - 2 a2 by the first member: 1 and -5 of the two rows, 3 in the mean of sizes."""
    mean = torch.tensor([[0.5, 0.5], [-1.0, 0.5]], requires_grad=True)
    policy = lambda batch: SimpleNamespace(mode=lambda: mean)  # noqa: E731
    policy.module = None

    def critic(batch):
        q = batch["action"] @ torch.tensor([[4.0, 0.0], [-2.0, 9.0]])
        return SimpleNamespace(value=lambda: q[:, None])

    recorded = torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    batch = Batch({"context": torch.zeros(2, 1), "action": recorded, "mask": torch.ones(2, 1, dtype=torch.bool)})
    ctx = testing.context(models={"policy": policy, "critic": critic})
    objective = DeterministicBC(alpha=1.5)
    loss, info = objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["policy"])), ctx)
    assert info["q"].tolist() == [1.0, -5.0] and float(info["scale"]) == pytest.approx(1.5 / 3)
    assert loss.tolist() == pytest.approx([0.25 / 2 - 0.5, (1 + 0.25) / 2 + 2.5])
    loss.mean().backward()
    away = (mean.detach() - recorded) / 2  # of a mean over two rows of a mean over two dimensions
    torch.testing.assert_close(mean.grad, away - 0.5 * torch.tensor([[4.0, -2.0]]).expand(2, 2) / 2)


def test_micro_batches_share_the_scale() -> None:
    small = {"steps": 2, "evaluate.n": 0, "evaluate.every": 0, "buffer.draws": 4, "buffer.size": 32,
             "buffer.data.parts.chance.episodes": 2, "buffer.data.parts.shaken.episodes": 2}  # fmt: skip

    def reports(**settings):
        found = list(loop(open_run(load("baselines/td3_bc_pendulum").with_settings({**small, **settings}))))
        return [[r[f"policy/{n}"] for n in ("scale", "loss/deterministic_bc", "grad_norm")] for r in found]

    whole, cut = reports(), reports(micro_batch=7)
    assert len(whole) == 2
    for a, b in zip(whole, cut, strict=True):
        assert b == pytest.approx(a, rel=1e-4)
