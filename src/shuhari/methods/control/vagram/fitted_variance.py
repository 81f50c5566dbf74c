"""How well a learned model can predict each dimension of the next state.

Axes: `B` rows, `n` members of the model, `D` dimensions of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.model_error import measure_errors
from shuhari.ports import Ctx


@register("transform", "fitted_variance")
@dataclass
class FittedVariance:
    """Weights that turn the squared error of a dynamics model into maximum likelihood with fitted variances.

    Stamps `into` [B, 1, D]: sigma_r / sigma_d, with sigma_d^2 the mean squared error of dimension d over rows and
    members, sigma_r^2 that of the reward, detached. With these weights the gradient of the loss `model_error` is
    2 sigma_r^2 times that of a normal's negative log-likelihood with one variance for each dimension and for the
    reward, at the variances that fit the batch best: sum_d log sigma_d + log sigma_r. So dimensions that the model
    cannot predict count less. The plain alternative to weights by a value's gradient (VaGraM); a transform of a
    learner. Rows that do not carry `stream` are 0, and count in no mean.
    """

    role: str = "world"
    """Role of the dynamics model whose errors are measured."""
    stream: str = "world"
    """Name of the weights `weight/<stream>` that mark the rows to work on, those that the dynamics model learns
    from."""
    into: str = "fitted_variance"
    """Name of the column that receives the weights; the loss `model_error` reads it by `weigh`."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ("reward",)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    @torch.no_grad()
    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        rows = (batch.weight(self.stream) != 0).any(1).nonzero().squeeze(1)
        model: Any = role_model(ctx.models, self.role)
        state_error, reward_error = measure_errors(model, batch.take(rows))
        state, reward = state_error.square().mean((0, 1)), reward_error.square().mean()  # [D], of one number
        weight = (reward / state.clamp(min=1e-8)).sqrt().expand(len(rows), 1, -1)
        return batch.put({self.into: weight.new_zeros(len(batch), *weight.shape[1:]).index_copy(0, rows, weight)})
