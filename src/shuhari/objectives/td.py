"""Temporal differences whose targets are computed at each update: deep Q-learning, and the critics of SAC and TD3.

Axes: `B` rows, `K` positions of a decision, `A` discrete actions, `n` members of an ensemble, `m` bins or quantiles of
a value, `S` numbers that a target is a distribution over. A row is one transition: its rewards are summed over K, its
value counts at its first position, its successor is `batch.successors()`.
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
from shuhari.bounds import Coefficient, Count, Discount, Length, Ratio, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx, ability


@register("objective", "q_learning")
@dataclass
class QLearning:
    """Deep Q-learning's loss of Q(s, a) against y = r + gamma · cont' · max Q_target(s', ·), [B] (Mnih et al. 2015,
    algorithm 1).

    Double Q-learning is van Hasselt et al. 2016, equation 4. `cross_entropy` fits a net with `bins` to a
    distribution over the bins around y (HL-Gauss: Farebrother et al. 2024, "Stop Regressing"), `quantile` one
    with `quantiles` to the y of each of the target's (QR-DQN: Dabney et al. 2018, algorithm 1). `categorical` fits a
    net with bins of `sigma = 0` to the distribution of y that the target net has, on atoms at the bins' centres (C51:
    Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", algorithm 1).

    The noise of noisy nets is one draw for the values that are trained, one for the target net's, and one for the
    choice of the next action by `double` (Fortunato et al. 2018, equation 17). The trained net has `all()` values
    [B, K, A]. Info: `value`, `target`. Stamps `td_error` [B]: |value - y|, for `categorical` KL(target || net), which
    Rainbow draws rows by (Hessel et al. 2018, "The Integrated Agent").

    ValueError for a net that does not fit `loss` or `noisy`.
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
    loss: Literal["huber", "squared", "cross_entropy", "quantile", "categorical"] = "huber"
    """Loss of the error: `huber` (quadratic within 1), half the square (`squared`), or of a distributional net
    `cross_entropy`, `quantile` or `categorical` (C51)."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    noisy: bool = False
    """Draw the noise of noisy nets anew for each optimiser batch; set it if the models have `noisy`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return () if self.noisy else (fitted(self.role, self.loss),)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.target

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        online = self._draw(ctx, self.role, "values")
        found = first_position(  # [B], or [B, m] logits or quantiles
            getattr(online(batch), _read_by(self.loss))() if self.noisy else batch[self.needs[0]]
        )
        with torch.no_grad():
            ahead = batch.successors(self.n)
            theirs = self._draw(ctx, self.target, "target")(ahead)
            q = first_position(theirs.all())  # [B, A]
            judge = first_position(self._draw(ctx, self.role, "choice")(ahead).all()) if self.double else q
            best = judge.argmax(1, keepdim=True)
            y = td_target(batch, ahead, q.gather(1, best).squeeze(1), ctx.at(self.gamma), self.n)
        if self.loss == "categorical":
            return self._fit_distribution(batch, found, y, theirs.logits_of(best), ctx)
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

    def _fit_distribution(
        self, batch: Batch, logits: Tensor, y: Tensor, theirs: Tensor, ctx: Ctx
    ) -> tuple[Tensor, Info]:
        """The cross-entropy of logits [B, m] to r + gamma · cont' · z on atoms z that weigh by theirs [B, K, m]; y [B]
        is its mean."""
        ours, atoms = (ability(_find_model(ctx, role), "bins") for role in (self.role, self.target))
        with torch.no_grad():
            share, z = first_position(theirs).softmax(-1), atoms.centres  # [B, S], [S]
            ahead = batch.successors(self.n)
            z = td_target(batch, ahead, z[:, None].expand(-1, len(share)), ctx.at(self.gamma), self.n).T  # [B, S]
            goal = ours.project(share, z)  # [B, m]
        loss = -(goal * logits.log_softmax(-1)).sum(-1)
        batch.stamp("td_error", (loss.detach() - torch.special.entr(goal).sum(-1)).clamp(min=0))
        return loss, {"value": ours.value(logits.detach()), "target": y}

    def _draw(self, ctx: Ctx, role: str, use: str) -> Any:
        """The network of a role, under a draw of its noise for this use if it is noisy."""
        model = _find_model(ctx, role)
        draw = ability(model, "with_noise")
        if (draw is not None) != self.noisy:
            which = "draws noise on its weights" if draw else "has no noise"
            raise ValueError(f"q_learning: noisy is {str(self.noisy).lower()}, and the model of role {role!r} {which}: "
                             "expected the same setting noisy of the loss and of its models")  # fmt: skip
        return model if draw is None else draw(ctx.rng("noise", use))


@register("objective", "soft_td")
@dataclass
class SoftTD:
    """SAC's critic loss: a temporal difference whose target uses a fresh action of the policy and subtracts its
    log-probability.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · (min Q_target(s', a') -
    temperature · log pi(a'|s')), a' fresh from the policy (Haarnoja et al. 2018, equations 5 and 6). Of several rewards
    (`n`, see `td_target`) the entropies on the way are left out. Without the term of the temperature the policy's loss
    alone rewards entropy (RLPD: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data",
    algorithm 1).

    `quantile` fits critics with `quantiles`, each to all atoms of the target: those of all its members but the largest,
    `drop` of each on average, in place of the minimum (TQC: Kuznetsov et al. 2020, "Controlling Overestimation Bias
    with Truncated Mixture of Continuous Distributional Quantile Critics", section 3; the loss is their sum over
    quantiles and members, not the mean). The policy's loss then takes `over = "mean"`. Info: `value`, `target`. Stamps
    `td_error` [B].

    ValueError for a subset of more members than there are, for greedy with entropy, and for a `drop` that leaves
    nothing or is of no quantiles.
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
    """Role of the entropy coefficient (SAC's alpha); unused without `entropy`."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    subset: Count = 0
    """Number of target members, drawn anew for each optimiser batch, over which the minimum is taken (REDQ, RLPD); 0
    takes all."""
    entropy: bool = True
    """Reward the entropy of the next action in the target, as SAC does; false leaves that to the policy's loss
    (RLPD)."""
    greedy: bool = False
    """Take the policy's mode as the next action, not a sample, as in d3rlpy's CQL; it needs `entropy = false`."""
    loss: Literal["squared", "cross_entropy", "quantile"] = "squared"
    """Loss of the error: half its square (`squared`), or `cross_entropy` for a critic with `bins` (HL-Gauss),
    `quantile` for one with `quantiles` (TQC)."""
    drop: Count = 0
    """Number of the largest atoms for each target member that are left out of all of them together (TQC: 2 of 25). Only
    of `quantile`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)
        if self.greedy and self.entropy:
            raise ValueError("soft_td: greedy and entropy are both true: expected entropy = false, as a mode has none")
        if self.drop and self.loss != "quantile":
            raise ValueError(f"soft_td: drop is {self.drop}, and loss is {self.loss!r}: expected loss = 'quantile', "
                             "which has atoms to drop")  # fmt: skip

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
            if self.loss == "quantile":
                q = _smallest_atoms(ctx, self.target, ahead, action, self.subset, self.drop)
            else:
                q = _smallest_value(ctx, self.target, ahead, action, self.subset)
            if self.entropy:
                q = q - _find_model(ctx, self.temperature)(ahead).value() * logp[0].sum(1)
            y = td_target(batch, ahead, q, ctx.at(self.gamma), self.n)
        return _fit_members(batch, self.needs[0], y, ctx)


@register("objective", "smoothed_td")
@dataclass
class SmoothedTD:
    """The critic loss of TD3 and DDPG: a temporal difference whose target uses the target policy's action plus clipped
    noise.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · min Q_target(s', a'), a' =
    clip(pi_target(s') + clip(noise · normal, -clip, clip), -1, 1) (TD3: Fujimoto et al. 2018, algorithm 1). noise = 0
    with one critic is DDPG (Lillicrap et al. 2016, equation 5). A `penalty` beta subtracts beta · sum (a' - b)² from
    the target's value, b the action that was recorded next (ReBRAC: Tarasov et al. 2023, section 3), and nothing where
    the recording ends. Info: `value`, `target`. Stamps `td_error` [B].
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
    penalty: Coefficient = 0.0
    """Weight of the squared distance between the next action and the one that was recorded next, which is subtracted
    from the next value; 0 is TD3, above it the critic of ReBRAC (its beta_2)."""
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
            q = _smallest_value(ctx, self.target, ahead, action)
            if self.penalty:
                away = (action - ahead["action"].view_as(action)).square().sum(1)
                q = q - ctx.at(self.penalty) * torch.where(ahead.decides, away, 0.0)
            y = td_target(batch, ahead, q, ctx.at(self.gamma), self.n)
        return _fit_members(batch, self.needs[0], y, ctx)


def td_target(batch: Batch, ahead: Batch, value: Tensor, gamma: float, n: int = 1) -> Tensor:
    """Returns [B] r + gamma^duration · cont' · value, value [B] of the successors; r alone if there is no successor.
    With several values each, [m, B], as many targets.

    n: the rewards of n decisions, discounted, before the value of `batch.successors(n)`, or of as many as the chain has
    left (Sutton and Barto 2018, equation 7.1). Raises ValueError if a transform added the reward to drawn rows only:
    the rows after them lack it.
    """
    if n == 1:
        return _bootstrap(batch, batch["reward"].sum(1), ahead, value, gamma)
    if batch.rows is not None and "reward" in batch.own:
        raise ValueError(f"n is {n}: a transform changes 'reward' of the drawn rows only, not of the rows that follow: "
                         "move it to [collect], or set n = 1")  # fmt: skip
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
    """Returns [B] reward + share · gamma^duration · cont' · value, for the rows of `batch` and their successors."""
    worth = ahead["cont"] * (batch["child"] >= 0)
    value = value.masked_fill(worth == 0, 0.0)  # there it may have any value
    if "duration" in batch:
        worth, gamma = gamma ** batch["duration"] * worth, 1.0
    return torch.addcmul(reward, worth if share is None else share * worth, value, value=gamma)


def fitted(role: str, loss: str) -> Need:
    """What the loss of a critic is of: its values [B, K]; or [B, K, m] the logits over its bins, its quantiles."""
    return Need((role,), _read_by(loss), live=True)


def _read_by(loss: str) -> str:
    read = {"cross_entropy": "logits", "categorical": "logits", "quantile": "quantiles"}
    return read.get(loss, "value")


def fit(found: Tensor, y: Tensor, critic: Any = None) -> tuple[Tensor, Tensor]:
    """Returns (values, loss) [...] against y: of values [...], half the squared error, or of a critic's logits [...,
    m]."""
    if critic is None:
        return found, (found - y).square() / 2
    bins: Any = ability(critic, "bins")
    return bins.value(found.detach()), bins.fit(found, y)


def first_position(x: Tensor) -> Tensor:
    """Returns [B, K, ...] at the first position; for K = 1 without the copy that the gradient of `x[:, 0]` makes."""
    return x.squeeze(1) if x.shape[1] == 1 else x[:, 0]


def member_values(value: Tensor) -> Tensor:
    """Returns [B, K] or [B, K, n] values as [B, n], read at the first position."""
    return first_position(value) if value.dim() == 3 else value[:, :1]


def _smallest_value(ctx: Ctx, role: str, batch: Batch, action: Tensor, subset: int = 0) -> Tensor:
    """Returns [B] the smallest value that the members of a critic, or a random `subset` of them, give actions [B,
    A]."""
    value = member_values(_find_model(ctx, role)(batch.put({"action": action})).value())
    return _some_members(ctx, role, value, subset).amin(1)


def _smallest_atoms(ctx: Ctx, role: str, batch: Batch, action: Tensor, subset: int, drop: int) -> Tensor:
    """[S, B] the quantiles of these actions [B, A] by all members of a critic, or by a random `subset`, in ascending
    order, without the largest, `drop` for each member."""
    z = first_position(_find_model(ctx, role)(batch.put({"action": action})).quantiles())  # [B, n, m]
    z = _some_members(ctx, role, z, subset)
    n, m = z.shape[1:]
    if drop >= m:
        raise ValueError(f"soft_td: drop is {drop}: expected less than the {m} quantiles of {role!r}")
    return z.flatten(1).sort(1).values[:, : n * (m - drop)].T


def _some_members(ctx: Ctx, role: str, x: Tensor, subset: int) -> Tensor:
    """[B, n, ...] all members, or a random `subset` of them."""
    if not subset:
        return x
    if subset > x.shape[1]:
        raise ValueError(f"subset is {subset}: expected at most the {x.shape[1]} members of {role!r}")
    return x[:, torch.randperm(x.shape[1], generator=ctx.rng("subset"))[:subset]]


def _fit_members(batch: Batch, need: Need, y: Tensor, ctx: Ctx) -> tuple[Tensor, Info]:
    """The loss [B] of a critic's members against y [B], by their values [B, K, n] or logits [B, K, n, m], or of their
    quantiles [B, K, n, m] against y [S, B], and its info; their mean distance is stamped."""
    if need.name == "quantiles":
        read: Any = ability(_find_model(ctx, need.roles[0]), "quantiles")
        found = first_position(batch[need])  # [B, n, m]
        value, loss, y = read.value(found), read.fit(found, y.T[:, None]), y.mean(0)
    elif need.name == "logits":
        value, loss = fit(first_position(batch[need]), y[:, None], _find_model(ctx, need.roles[0]))
    else:
        value = member_values(batch[need])
        loss = F.mse_loss(value, y[:, None].expand_as(value), reduction="none") / 2
    batch.stamp("td_error", (value.detach() - y[:, None]).abs().mean(1))
    return loss.sum(1), {"value": value.detach().mean(1), "target": y}


def _find_model(ctx: Ctx, role: str) -> Any:
    return role_model(ctx.models, role)
