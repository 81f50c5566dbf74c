"""The loss of imitation by denoising: what the policy says of it, and where its noise comes from."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from shuhari.batch import Batch
from shuhari.objectives.denoise import Denoise
from shuhari.testing import check_objective, context


def test_it_asks_the_role_with_noise_of_its_own_and_takes_rows() -> None:
    class Student:
        module = torch.nn.Module()

        def __call__(self, batch: Batch) -> SimpleNamespace:
            return SimpleNamespace(denoising=lambda noise: (batch["action"] - noise.normal(0, 2)).square().mean(1))

    action = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]])
    batch = Batch({"mask": torch.ones(3, 1, dtype=torch.bool), "action": action, "_row": torch.arange(3)})
    ctx = context(models={"student": Student()})
    loss, info = check_objective(Denoise(role="student"), batch, ctx)
    wanted = (action - ctx.noise(batch, "denoise").normal(0, 2)).square().mean(1)
    assert torch.equal(loss, wanted) and torch.equal(info["error"], wanted)
    assert Denoise(role="student").roles == ("student",) and Denoise().couples == "row"
