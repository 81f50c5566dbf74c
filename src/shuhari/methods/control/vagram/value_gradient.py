"""How much a value depends on each dimension of the next state.

Axes: `B` rows, `J` critics, `D` dimensions of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import PositiveShare, check
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx


@register("transform", "value_gradient")
@dataclass
class ValueGradient:
    """The gradient of the value with respect to the next state, by which the errors of a dynamics model are weighted
    (VaGraM).

    Stamps `into` [B, J, D]: the gradient of V_j(s') = Q_j(s', mode of the policy) at the true successor s', detached; 0
    if the episode ends there. Norms above the `clip` quantile of the batch, of each critic, are shortened to it
    (Voelcker et al. 2022, "Value Gradient weighted Model-Based Reinforcement Learning"; the released code also passes
    norms below 1e5, and so hardly clips). A transform of a learner, since values change. Rows that do not carry
    `stream` are 0, and count in no quantile.
    """

    clip: PositiveShare = 0.95
    """Quantile of the norms in a batch to which longer gradients are shortened; 1 shortens none."""
    policy: str = "policy"
    """Role of the policy that acts at the next state."""
    critic: str = "critic"
    """Role of the critic whose gradient is taken."""
    stream: str = "world"
    """Name of the weights `weight/<stream>` that mark the rows to work on, those that the dynamics model learns
    from."""
    into: str = "value_gradient"
    """Name of the column that receives the gradients; the loss `model_error` reads it by `weigh`."""
    shuffle: bool = False
    """Whether each gradient's dimensions are shuffled: an ablation, with weights of the same sizes."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.policy, self.critic

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        rows = (batch.weight(self.stream) != 0).any(1).nonzero().squeeze(1)
        ahead = batch.take(rows).successors()
        policy: Any = role_model(ctx.models, self.policy)
        critic: Any = role_model(ctx.models, self.critic)
        with torch.enable_grad():
            ahead = ahead.put({"context": ahead["context"].detach().requires_grad_()})
            value = critic(ahead.put({"action": policy(ahead).mode()})).value().flatten(1)  # [B, J]
            found = [torch.autograd.grad(v.sum(), ahead["context"], retain_graph=True)[0] for v in value.unbind(1)]
        g = torch.stack(found, 1) * ahead["cont"][:, None, None]
        norm = g.norm(dim=-1, keepdim=True)  # [B, J, 1]
        most = norm.quantile(self.clip, dim=0) if len(rows) else norm.sum(0)
        g = g * (most / norm.clamp(min=1e-12)).clamp(max=1.0)
        if self.shuffle:
            g = g.gather(-1, torch.rand(g.shape, generator=ctx.rng("shuffle")).argsort(-1))
        return batch.put({self.into: g.new_zeros(len(batch), *g.shape[1:]).index_copy(0, rows, g)})
