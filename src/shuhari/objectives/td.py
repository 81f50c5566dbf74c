"""Temporal differences whose targets are computed at each update: deep Q-learning, the critics of SAC and of TD3.

Axes: `B` rows, `K` positions of a decision, `A` discrete actions, `n` members of an ensemble. A row is one transition:
its rewards are summed over K, its value counts at its first position, its successor is `batch.successors()`.
Left out: corrections of n-step targets for a policy that has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Discount, Length, Ratio, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx, ability


@register("objective", "q_learning")
@dataclass
class QLearning:
    """Deep Q-learning's loss of Q(s, a) against y = r + gamma · cont' · max Q_target(s', ·), [B] (Mnih et al. 2015,
    algorithm 1).

    Double Q-learning is van Hasselt et al. 2016, equation 4. `cross_entropy` fits a net with `bins` to what stands for
    y there (HL-Gauss: Farebrother et al. 2024, "Stop Regressing"), `quantile` one with `quantiles` to the y of each of
    the target's (QR-DQN: Dabney et al. 2018, algorithm 1). The trained net has `all()` values [B, K, A]. Info: `value`,
    `target`. Stamps `td_error` [B].
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    role: str = "policy"
    """Role of the Q-network that is trained, a name under `[models]`."""
    target: str = "target"
    """Role of the target network, which follows the trained one."""
    double: bool = False
    """Let the trained network pick the next action that the target network values (double DQN), against
    overestimation."""
    loss: Literal["huber", "squared", "cross_entropy", "quantile"] = "huber"
    """Loss of the error: `huber` (quadratic within 1), half the square (`squared`), or of a distributional net
    `cross_entropy` or `quantile`."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (fitted(self.role, self.loss),)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.target

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        found = first_position(batch[self.needs[0]])  # [B], or [B, m] logits or quantiles
        with torch.no_grad():
            ahead = batch.successors(self.n)
            theirs = _find_model(ctx, self.target)(ahead)
            q = first_position(theirs.all())  # [B, A]
            judge = first_position(_find_model(ctx, self.role)(ahead).all()) if self.double else q
            best = judge.argmax(1, keepdim=True)
            y = td_target(batch, ahead, q.gather(1, best).squeeze(1), ctx.at(self.gamma), self.n)
        if self.loss == "quantile":
            read: Any = ability(_find_model(ctx, self.role), "quantiles")
            with torch.no_grad():
                z = first_position(theirs.quantiles_of(best))  # [B, m]
                samples = td_target(batch, ahead, z.T, ctx.at(self.gamma), self.n).T
            value, loss = read.value(found), read.fit(found, samples)
        elif self.loss == "huber":
            value, loss = found, F.huber_loss(found, y, reduction="none")
        else:
            value, loss = fit(found, y, _find_model(ctx, self.role) if self.loss == "cross_entropy" else None)
        batch.stamp("td_error", (value.detach() - y).abs())
        return loss, {"value": value.detach(), "target": y}


@register("objective", "soft_td")
@dataclass
class SoftTD:
    """SAC's critic loss: a temporal difference whose target takes a fresh action of the policy, less its
    log-probability.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · (min Q_target(s', a') -
    temperature · log pi(a'|s')), a' fresh from the policy (Haarnoja et al. 2018, equations 5 and 6). Of several rewards
    (`n`, see `td_target`) the entropies on the way are left out. Without the term of the temperature the policy's loss
    alone rewards entropy (RLPD: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data",
    algorithm 1). Info: `value`, `target`. Stamps `td_error` [B].

    ValueError for a subset of more members than there are, and for greedy with entropy.
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    target: str = "target"
    """Role of the target critic, which follows the trained one."""
    policy: str = "policy"
    """Role of the policy that takes the next action."""
    temperature: str = "temperature"
    """Role of the entropy coefficient (SAC's alpha); not read without `entropy`."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    subset: Count = 0
    """Number of target members, drawn anew for each optimiser batch, that the minimum is over (REDQ, RLPD); 0 takes
    all."""
    entropy: bool = True
    """Reward the entropy of the next action in the target, as SAC does; false leaves that to the policy's loss
    (RLPD)."""
    greedy: bool = False
    """Take the policy's mode as the next action, not a sample, as in d3rlpy's CQL; it needs `entropy = false`."""
    loss: Literal["squared", "cross_entropy"] = "squared"
    """Loss of the error: half its square (`squared`), or `cross_entropy` for a critic with `bins` (HL-Gauss)."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)
        if self.greedy and self.entropy:
            raise ValueError("soft_td: greedy and entropy are both true: expected entropy = false, as a mode has none")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (fitted(self.role, self.loss),)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.target, self.policy, *((self.temperature,) if self.entropy else ())

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        with torch.no_grad():
            ahead = batch.successors(self.n)
            policy = _find_model(ctx, self.policy)(ahead)
            action, *logp = (policy.mode(),) if self.greedy else policy.rsample(ctx.noise(batch, "next"))
            q = _smallest_value(ctx, self.target, ahead, action, self.subset)
            if self.entropy:
                q = q - _find_model(ctx, self.temperature)(ahead).value() * logp[0].sum(1)
            y = td_target(batch, ahead, q, ctx.at(self.gamma), self.n)
        return _fit_members(batch, self.needs[0], y, ctx)


@register("objective", "smoothed_td")
@dataclass
class SmoothedTD:
    """The critic loss of TD3 and DDPG: a temporal difference whose target takes the target policy's action plus clipped
    noise.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · min Q_target(s', a'), a' =
    clip(pi_target(s') + clip(noise · normal, -clip, clip), -1, 1) (TD3: Fujimoto et al. 2018, algorithm 1). noise = 0
    with one critic is DDPG (Lillicrap et al. 2016, equation 5). Info: `value`, `target`. Stamps `td_error` [B].
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    noise: Ratio = 0.2
    """Standard deviation of the noise on the next action, which lies in [-1, 1]; 0 is DDPG, 0.2 TD3's."""
    clip: Ratio = 0.5
    """Bound of that noise on either side, in the same units; inf for none, 0.5 in TD3."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    target: str = "target"
    """Role of the target critic, which follows the trained one."""
    policy: str = "target_policy"
    """Role of the target policy, which takes the next action."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    loss: Literal["squared", "cross_entropy"] = "squared"
    """Loss of the error: half its square (`squared`), or `cross_entropy` for a critic with `bins` (HL-Gauss)."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (fitted(self.role, self.loss),)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.target, self.policy

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        with torch.no_grad():
            ahead, width = batch.successors(self.n), ctx.at(self.clip)
            action = _find_model(ctx, self.policy)(ahead).mode()
            smooth = ctx.at(self.noise) * ctx.noise(batch, "next").normal(0, action.shape[1])
            action = (action + smooth.clamp(-width, width)).clamp(-1, 1)
            y = td_target(batch, ahead, _smallest_value(ctx, self.target, ahead, action), ctx.at(self.gamma), self.n)
        return _fit_members(batch, self.needs[0], y, ctx)


def td_target(batch: Batch, ahead: Batch, value: Tensor, gamma: float, n: int = 1) -> Tensor:
    """[B] r + gamma^duration · cont' · value, value [B] of the successors; r alone where there is none. Of several
    values each, [m, B], as many.

    n: the rewards of n decisions, discounted, before the value of `batch.successors(n)`, or of as many as the chain
    still has (Sutton and Barto 2018, equation 7.1). ValueError where the reward was put on drawn rows: those behind
    them are without it."""
    if n == 1:
        return _bootstrap(batch, batch["reward"].sum(1), ahead, value, gamma)
    if batch.rows is not None and "reward" in batch.own:
        raise ValueError(f"n = {n}: a transform has put 'reward' on the rows that were drawn, and not on those after "
                         "them: put it under [collect], or set n = 1")  # fmt: skip
    whole = batch.base
    reward, duration = batch["reward"].sum(1), whole.get("duration")
    share, last = torch.ones_like(reward), torch.arange(len(batch)) if batch.rows is None else batch.rows
    for at in batch.path(n)[1:]:
        go = at >= 0
        step = gamma if duration is None else gamma ** duration[last]
        share = share * torch.where(go, step * whole["cont"][at.clamp(min=0)], 1.0)
        reward = reward + torch.where(go, share * whole["reward"][at.clamp(min=0)].sum(1), 0.0)
        last = torch.where(go, at, last)
    return _bootstrap(whole.take(last), reward, ahead, value, gamma, share)


def _bootstrap(
    batch: Batch, reward: Tensor, ahead: Batch, value: Tensor, gamma: float, share: Tensor | None = None
) -> Tensor:
    """[B] reward + share · gamma^duration · cont' · value, of the rows of `batch` and their successors."""
    worth = ahead["cont"] * (batch["child"] >= 0)
    value = value.masked_fill(worth == 0, 0.0)  # it may be anything there
    if "duration" in batch:
        worth, gamma = gamma ** batch["duration"] * worth, 1.0
    return torch.addcmul(reward, worth if share is None else share * worth, value, value=gamma)


def fitted(role: str, loss: str) -> Need:
    """What the loss of a critic is of: its values [B, K]; or [B, K, m] the logits over its bins, its quantiles."""
    return Need((role,), {"cross_entropy": "logits", "quantile": "quantiles"}.get(loss, "value"), live=True)


def fit(found: Tensor, y: Tensor, critic: Any = None) -> tuple[Tensor, Tensor]:
    """(values, loss) [...] of values [...], half the squared error, or of a critic's logits [..., m], against y."""
    if critic is None:
        return found, (found - y).square() / 2
    bins: Any = ability(critic, "bins")
    return bins.value(found.detach()), bins.fit(found, y)


def first_position(x: Tensor) -> Tensor:
    """[B, K, ...] at the first position; of a single one without the copy that the gradient of `x[:, 0]` takes."""
    return x.squeeze(1) if x.shape[1] == 1 else x[:, 0]


def member_values(value: Tensor) -> Tensor:
    """[B, K] or [B, K, n] values as [B, n], read at the first position."""
    return first_position(value) if value.dim() == 3 else value[:, :1]


def _smallest_value(ctx: Ctx, role: str, batch: Batch, action: Tensor, subset: int = 0) -> Tensor:
    """[B] the smallest value that the members of a critic, or a random `subset` of them, give these actions [B, A]."""
    value = member_values(_find_model(ctx, role)(batch.put({"action": action})).value())
    if subset:
        if subset > value.shape[1]:
            raise ValueError(f"subset is {subset}: expected at most the {value.shape[1]} members of {role!r}")
        value = value[:, torch.randperm(value.shape[1], generator=ctx.rng("subset"))[:subset]]
    return value.amin(1)


def _fit_members(batch: Batch, need: Need, y: Tensor, ctx: Ctx) -> tuple[Tensor, Info]:
    """The loss [B] of a critic's members against y [B], by their values [B, K, n] or logits [B, K, n, m], and its info;
    their mean distance is stamped."""
    if need.name == "logits":
        value, loss = fit(first_position(batch[need]), y[:, None], _find_model(ctx, need.roles[0]))
    else:
        value = member_values(batch[need])
        loss = F.mse_loss(value, y[:, None].expand_as(value), reduction="none") / 2
    batch.stamp("td_error", (value.detach() - y[:, None]).abs().mean(1))
    return loss.sum(1), {"value": value.detach().mean(1), "target": y}


def _find_model(ctx: Ctx, role: str) -> Any:
    return role_model(ctx.models, role)
