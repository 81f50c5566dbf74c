"""Policy losses under a cost limit: the constraint of a trust region, and FOCOPS.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import PositiveNumber, check
from shuhari.data import Info
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.clip import LIMIT
from shuhari.ports import Ctx


@register("objective", "constraint")
@dataclass
class Constraint:
    """Surrogate of the cost constraint, for a trust region (CPO): how far the policy exceeds its limit.

    r A_cost + (J - limit) / L, [B, K], with r = pi / behaviour, A_cost the column `costs`, and the rest from the
    transform `constrain`: its mean estimates how far the policy exceeds the limit per decision, and is at most 0 if it
    does not (Achiam et al. 2017, "Constrained Policy Optimization", equations 5 and 10). A term of `trust_region`.
    """

    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    costs: str = "cost_advantage"
    """Column with the advantages of the cost, as the transform `constrain` centres them."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.costs, "excess_rate"

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob", live=True, exact=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        excess = batch["excess_rate"]
        return _ratio(batch[self.needs[0]], batch) * batch[self.costs] + excess, {"excess_rate": excess}


@register("objective", "focops")
@dataclass
class Focops:
    """FOCOPS: a policy gradient with a KL penalty, on decisions where the policy is still close to the sampling policy.

    1[KL <= bound] (KL - r A / temperature), [B, K]: KL(pi || pi_old) of the decision, r = pi / behaviour, A the column
    `advantage`, from which `constrain` has subtracted the priced cost, with `share` false (Zhang et al. 2020, "First
    Order Constrained Optimization in Policy Space", equations 10 and 15). Info: `kl`, and the share `within` the bound.
    """

    bound: PositiveNumber = 0.02
    """Largest KL to the old policy of a decision that is learnt from, in nats (the paper's delta)."""
    temperature: PositiveNumber = 1.5
    """Divisor of the advantage against the KL penalty (the paper's lambda); larger keeps the policy nearer the old
    one."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    old: str = "old"
    """Role of the policy that sampled, a copy that follows the trained one after each step."""
    advantage: str = "advantage"
    """Column with the advantages, from which `constrain` has subtracted the cost."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage,)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "log_prob", live=True, exact=True), Need((self.role, self.old), "kl", live=True)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        new, kl = (batch[need] for need in self.needs)
        within = (kl.detach() <= ctx.at(self.bound)).to(kl.dtype)
        loss = within * (kl - _ratio(new, batch) * batch[self.advantage] / ctx.at(self.temperature))
        return loss, {"kl": kl.detach(), "within": within}


def _ratio(new: Tensor, batch: Batch) -> Tensor:
    return log_ratio(new, batch["logp"], batch).clamp(-LIMIT, LIMIT).exp()
