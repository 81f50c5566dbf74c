"""The error of a learned dynamics model, with all state dimensions alike or weighted by their effect on the value.

Axes: `B` rows, `D` dimensions of a state, `J` critics, `n` members of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx


@register("objective", "model_error")
@dataclass
class ModelError:
    """The regression loss of a learned dynamics model: squared error of next state and reward.

    The mean over members of sum_d (s'_d - predicted)^2 + (r - predicted)^2, [B]: maximum likelihood of a normal of unit
    variance. With weights g [B, J, D] (`weigh`) the state's part is sum_d (g_d (s'_d - predicted))^2, and the mean over
    J too: gradients of J critics (VaGraM: Voelcker et al. 2022), or how well each dimension can be predicted
    (`fitted_variance`, J = 1). Info: `state_error`, without weights, and `reward_error`.
    """

    role: str = "world"
    """Role of the dynamics model that is trained, a name under `[models]`."""
    weigh: str = ""
    """Column [B, J, D] that weights each state dimension, such as `value_gradient` (VaGraM) or
    `fitted_variance`; "" weights all alike."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ("reward", self.weigh) if self.weigh else ("reward",)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        model: Any = role_model(ctx.models, self.role)
        error, reward_error = measure_errors(model, batch)
        plain = error.square().sum(-1).mean(1)
        state = (batch[self.weigh][:, None] * error[:, :, None]).square().sum(-1).mean((1, 2)) if self.weigh else plain
        reward = reward_error.square().mean(1)
        return state + reward, {"state_error": plain.detach(), "reward_error": reward.detach()}


def measure_errors(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return how far the members of a dynamics model are from what followed: the next states [B, n, D] and the rewards
    [B, n]."""
    predicted = model(batch)
    return (predicted.state() - batch.successors()["context"][:, None],
            predicted.reward() - batch["reward"].sum(1, keepdim=True))  # fmt: skip
