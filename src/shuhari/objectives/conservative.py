"""Conservative Q-learning: pushes values of all decisions down and those of recorded decisions up, in addition to a
temporal difference.

Axes: `B` rows, `A` discrete actions or action dimensions, `n` members of the critic, `m` sampled decisions of a state.
A row is one transition, as in `td`. Left out: the multiplier that holds the gap at a value (its Lagrangian form); the
largest of several next decisions in the target.

Sources: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning" (CQL); Nakamoto et al. 2023,
"Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, PositiveNumber, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import first_position, member_values
from shuhari.ports import Ctx


@register("objective", "conservative")
@dataclass
class Conservative:
    """CQL's penalty for discrete actions: pushes values of all actions down, that of the recorded one up.

    temperature · logsumexp over all actions of Q(s, ·) / temperature - Q(s, a), [B] (CQL, equation 4 without its
    Bellman error, at temperature 1). Its gradient with respect to Q(s, ·) is softmax(Q / temperature) less the recorded
    action. The term's `weight` is the paper's alpha. Info: `gap`, the loss.
    """

    temperature: PositiveNumber = 1.0
    """Temperature of the log-sum-exp over actions; towards 0 only the largest value is pushed down, and 1 is the
    paper's."""
    role: str = "policy"
    """Role of the Q-network that is trained, a name under `[models]`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return tuple(Need((self.role,), name, live=True) for name in ("all", "value"))

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        every, taken = (first_position(batch[n]) for n in self.needs)
        t = ctx.at(self.temperature)
        gap = t * (every / t).logsumexp(1) - taken
        return gap, {"gap": gap.detach()}


@register("objective", "conservative_sampled")
@dataclass
class ConservativeSampled:
    """CQL's penalty for continuous actions in [-1, 1], and Cal-QL's: pushes values of sampled actions down, those of
    recorded ones up.

    A sum over the critic's members of temperature · logsumexp(x / temperature) - Q(s, a), [B], where x are Q(s, a') -
    log p(a') of `samples` actions each from three sources: uniform, the policy at s, and the policy at the next state
    (CQL, appendix F, without the constant log of their number, as in the authors' code). With a `floor`, values are
    pushed down no lower than what the recorded behaviour earned (Cal-QL, equation 5.1); an unknown floor (NaN) has no
    effect.

    The policy gets no gradient. The term's `weight` is the paper's alpha for a halved Bellman error, as in `soft_td`.
    Info: `gap`, the loss over the members; `floored`, the share of the policy's decisions whose value lies below the
    floor.
    """

    samples: Length = 10
    """Number of actions drawn from each of three sources: uniform, the policy at this state, and the policy at the
    next."""
    temperature: PositiveNumber = 1.0
    """Temperature of the log-sum-exp over the sampled actions; 1 is the paper's."""
    floor: str = ""
    """Column [B, 1] below which no value of the policy's actions is pushed, such as `to_go` for Cal-QL; "" is plain
    CQL."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    policy: str = "policy"
    """Role of the policy that the actions are sampled from."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.floor,) if self.floor else ()

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.policy

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        taken, t = member_values(batch[self.needs[0]]), ctx.at(self.temperature)  # [B, n]
        action, logp = self._decisions(batch, ctx)  # [B, m, A], [B, m]; the first `samples` of them uniform
        B, m = logp.shape
        rows = torch.arange(B).repeat_interleave(m)
        critic: Any = role_model(ctx.models, self.role)
        q = member_values(critic(batch.take(rows).put({"action": action.flatten(0, 1)})).value()).view(B, m, -1)
        info: dict[str, Tensor] = {}
        if self.floor:
            floor = batch[self.floor][:, :1, None]
            below = torch.zeros_like(q, dtype=torch.bool)
            below[:, self.samples :] = q.detach()[:, self.samples :] < floor
            q = torch.where(below, floor, q)
            info |= {"floored": below[:, self.samples :].float().mean((1, 2))}
        gap = t * ((q - logp[..., None]) / t).logsumexp(1) - taken
        return gap.sum(1), {"gap": gap.detach().mean(1), **info}

    @torch.no_grad()
    def _decisions(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Returns ([B, m, A] sampled decisions, [B, m] the log-density that each was drawn with)."""
        policy: Any = role_model(ctx.models, self.policy)
        drawn = []
        for name, seen in (("now", batch), ("next", batch.successors())):
            dist = policy(seen)
            drawn += [dist.rsample(ctx.noise(batch, f"{name}/{i}")) for i in range(self.samples)]
        action = torch.stack([a for a, _ in drawn], 1)
        uniform = 2 * ctx.noise(batch, "uniform").uniform(0, self.samples, action.shape[2]).to(action.dtype) - 1
        logp = torch.stack([p.sum(1) for _, p in drawn], 1)
        flat = logp.new_full((len(logp), self.samples), -math.log(2) * action.shape[2])
        return torch.cat([uniform, action], 1), torch.cat([flat, logp], 1)
