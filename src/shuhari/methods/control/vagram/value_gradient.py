"""How much a value depends on each dimension of the state behind a decision.

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
    """Stamps `into` [B, J, D]: the gradient of V_j(s') = Q_j(s', mode of the policy) at the true successor s', without
    one of its own; 0 where that is worth nothing. Norms above the `clip` quantile of the batch, of each critic, are
    held to it (Voelcker et al. 2022, "Value Gradient weighted Model-Based Reinforcement Learning"; the released code
    lets norms below 1e5 pass too, and so hardly clips). A transform of a learner, for values move. Rows that do not
    carry `stream` are 0, and count for no quantile. shuffle: an ablation, in which weights of the same sizes tell
    nothing of the value: those of each row and critic are in an order of dimensions drawn anew."""

    clip: PositiveShare = 0.95
    policy: str = "policy"
    critic: str = "critic"
    stream: str = "world"
    into: str = "value_gradient"
    shuffle: bool = False
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
