"""The policy loss that differentiates through the critic: reparameterised actions (soft actor-critic).

Axes: `B` rows, `K` positions of a decision, `n` members of the critic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info, nearest
from shuhari.needs import Need, role_model
from shuhari.objectives.td import members
from shuhari.ports import Ctx
from shuhari.registry import register

OVER = ("min", "mean")


@register("objective", "reparam")
@dataclass
class Reparam:
    """temperature · log pi(a|s) - Q(s, a), [B], a a fresh reparameterised action (Haarnoja et al. 2018, equation 9).

    over: Q is the `min` or the `mean` of the critic's members. The gradient flows through the critic into the policy;
    the learner takes that of the part's own roles only. Stamps `fresh/log_prob` [B, K], which a later part of the same
    learner may read (the temperature's). Info: `q`, `fresh_log_prob`.
    """

    role: str = "policy"
    critic: str = "critic"
    temperature: str = "temperature"
    over: str = "min"
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise ValueError(f"reparam: over is {self.over!r}; {nearest(self.over, OVER)}")

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic, self.temperature

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        models: Any = {r: role_model(ctx.models, r) for r in (self.role, self.critic, self.temperature)}
        action, logp = models[self.role](batch).rsample(ctx.noise(batch, "fresh"))
        q = members(models[self.critic](batch.put({"action": action})).value())
        q = q.amin(1) if self.over == "min" else q.mean(1)
        alpha = models[self.temperature](batch).value().detach()
        batch.stamp("fresh/log_prob", logp)
        return alpha * logp.sum(1) - q, {"q": q.detach(), "fresh_log_prob": logp.detach().sum(1)}
