"""Gaussian decisions in a Box: plain (PPO) and squashed by tanh (SAC).

Axes: `B` rows, `K` positions (here 1), `A` action dimensions, `N` decisions picked by `at`. Leaves out correlated
dimensions and action chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Width, check
from shuhari.data import Sampling
from shuhari.events import Event, Updated
from shuhari.kernel.registry import register
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.renorm import Pending, Renorm, Renormed
from shuhari.models.sampling import EDGE, epsilon, honour, mix_log_density, uniform_rows, uniform_share
from shuhari.models.spaces import Inputs, Net, Scale, Seen, bounds_of, box, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)
_CONSTANT = torch.tensor(-_HALF_LOG_2PI - 2 * _LOG_2)


class Gaussian:
    """Diagonal normal decisions: mean, log_std, action [B, K, A]. Methods return [B, K]; after `at`, [N]."""

    __slots__ = ("action", "log_std", "mean")

    def __init__(self, mean: Tensor, log_std: Tensor, action: Tensor) -> None:
        self.mean, self.log_std, self.action = mean, log_std, action

    def log_prob(self) -> Tensor:
        return normal_log_prob(self.action, self.mean, self.log_std)

    def entropy(self) -> Tensor:
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """Returns the exact KL(self || other)."""
        return normal_kl(self, other)

    def mode(self) -> Tensor:
        """Returns [B, A] the mean, as the column `action` holds actions."""
        return self.mean.flatten(0, -2)

    def rsample(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """Returns reparameterised actions [B, A] and their log_prob [B, K], both differentiable."""
        eps = noise.normal(0, self.mean.shape[-1]).view_as(self.mean)
        action = torch.addcmul(self.mean, self.log_std.exp(), eps)
        return action.flatten(0, -2), -(0.5 * eps.square() + self.log_std + _HALF_LOG_2PI).sum(-1)

    def parameters(self) -> Tensor:
        """Returns [B, K, 2A] means, then log standard deviations."""
        return torch.cat([self.mean, self.log_std], -1)

    def at(self, index: Tensor) -> Gaussian:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        return Gaussian(*(x.flatten(0, -2)[index] for x in (self.mean, self.log_std, self.action)))


class Squashed:
    """a = tanh(u) in (-1, 1) with u normal: mean and log_std of u, action a, all [B, K, A]; methods return [B, K].

    The log-probability is that of a, not of the action scaled to the environment's bounds, as in SAC (Haarnoja et al.
    2018, appendix C): the two differ by a constant. `pre` is u if known, else NaN: for large |u| it cannot be recovered
    from a in float32. `epsilon`: the share of a uniform a in the behaviour's mixture. The entropy has no closed form.
    """

    __slots__ = ("_of", "_taken", "log_std", "mean")

    def __init__(
        self,
        mean: Tensor,
        log_std: Tensor,
        action: Tensor | Batch,
        pre: Tensor | None = None,
        epsilon: Tensor | None = None,
    ) -> None:
        """action: the actions, or a batch from which they are read lazily."""
        self.mean, self.log_std, self._of = mean, log_std, action
        self._taken = None if isinstance(action, Batch) else (action, pre, epsilon)

    @property
    def taken(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The columns of the decision: action, pre, epsilon."""
        if self._taken is None:
            of: Any = self._of
            self._taken = of["action"].view_as(self.mean), of.get("pre"), epsilon(of)
        return self._taken

    def log_prob(self) -> Tensor:
        action, pre, e = self.taken
        u = action.clamp(-EDGE, EDGE).atanh()
        u = u if pre is None else pre.where(~pre.isnan(), u)
        logp = normal_log_prob(u, self.mean, self.log_std) - _log_slope(u)
        return logp if e is None else mix_log_density(logp, e, u.shape[-1])

    def kl(self, other: Squashed) -> Tensor:
        """Returns the exact KL(self || other): tanh is one to one, so it is that of u. Ignores `epsilon`."""
        return normal_kl(self, other)

    def mode(self) -> Tensor:
        """Returns [B, A] tanh of the mean of u, as the column `action` holds actions."""
        return self.mean.tanh().flatten(0, -2)

    def rsample(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """Returns reparameterised actions [B, A] of the policy without `epsilon`, and their log_prob [B, K]."""
        eps = noise.normal(0, self.mean.shape[-1]).view_as(self.mean)
        u = torch.addcmul(self.mean, self.log_std.exp(), eps)
        drawn = torch.addcmul(_CONSTANT, eps, eps, value=-0.5).sum(-1)  # has no gradient
        # the sum is as in `_log_slope`: softplus(-2u) is -2 times the softplus of u with this beta
        rest = torch.sub(torch.sub(u, self.log_std, alpha=0.5), F.softplus(u, beta=-2), alpha=2)
        return u.tanh().flatten(0, -2), torch.add(drawn, rest.sum(-1), alpha=2)

    def parameters(self) -> Tensor:
        """Returns [B, K, 2A] means, then log standard deviations, of u."""
        return torch.cat([self.mean, self.log_std], -1)

    def at(self, index: Tensor) -> Squashed:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        done, pre, e = self.taken
        mean, log_std, action = (x.flatten(0, -2)[index] for x in (self.mean, self.log_std, done))
        pre = None if pre is None else pre.flatten(0, -2)[index]
        return Squashed(mean, log_std, action, pre, None if e is None else e.flatten()[index])


def normal_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns the log-density of a diagonal normal, summed over the last axis."""
    z = (x - mean) * (-log_std).exp()
    return -_HALF_LOG_2PI * z.shape[-1] - torch.addcmul(log_std, z, z, value=0.5).sum(-1)


def draw_normal(
    mean: Tensor, log_std: Tensor, bounds: tuple[Tensor, Tensor] | None, sampling: Sampling, noise: Noise
) -> Traces:
    """Draws actions [B, A] of normals, or takes their means if greedy, with logp [B, 1]; if there are bounds, `taken`
    [B, A] is within them."""
    action = mean if sampling.greedy else mean + log_std.exp() * noise.normal(0, mean.shape[1])
    logp = normal_log_prob(action, mean, log_std).unsqueeze(1)
    return Traces(action, logp, taken=None if bounds is None else action.clamp(*bounds))


def normal_kl(p: Gaussian | Squashed, q: Gaussian | Squashed) -> Tensor:
    """Returns the KL of diagonal normals, summed over the last axis."""
    gap = (p.mean - q.mean).square() + (2 * p.log_std).exp()
    return (q.log_std - p.log_std + 0.5 * gap * (-2 * q.log_std).exp() - 0.5).sum(-1)


def _log_slope(u: Tensor) -> Tensor:
    """Returns log |d tanh(u) / du| summed over the last axis: log(1 - tanh² u) = 2 (log 2 - u - softplus(-2u)),
    stable."""
    return 2 * (_LOG_2 * u.shape[-1] - (u + F.softplus(-2 * u)).sum(-1))


@register("model", "gaussian")
@dataclass
class GaussianPolicy:
    """A Gaussian policy for continuous actions: an MLP gives the mean, and the standard deviations are separate
    parameters (PPO).

    Supports greedy. The decision is the unbounded action; the environment gets it clipped to its bounds
    (`Traces.taken`).
    """

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    orthogonal: bool = True
    """Initialise the weights orthogonally, as PPO does; false uses the default of `nn.Linear`."""
    gain: AtLeast0 = 0.01
    """Scale of the last layer's orthogonal weights; a small one starts with means near 0 (PPO: 0.01). Only used with
    `orthogonal`."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation in every dimension; 0 is a deviation of 1."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "gaussian")
        actions = box(does, "action", "gaussian")
        self._inputs = Inputs(seen, "gaussian", self.normalise, self.orthogonal, see=self.see)
        self._bounds = bounds_of(actions)
        a = int(actions.shape[0])
        gain = self.gain if self.orthogonal else None
        body = Mlp((self._inputs.size, *self.hidden, a), self.activation, gain, self.norm)
        self.module = Net(self._inputs, body)
        self.module.log_std = nn.Parameter(torch.full((a,), float(self.log_std)))  # independent of the observation
        self._own = self.module._parameters

    def __call__(self, batch: Batch) -> Gaussian:
        mean, log_std = self._parameters(self._inputs.of(batch))
        return Gaussian(*(x.unsqueeze(1) for x in (mean, log_std, batch["action"].view_as(mean))))

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, 1]; in a bounded Box also `taken` [B, A]."""
        honour(sampling, ("greedy",), "gaussian")
        with torch.no_grad():
            return draw_normal(*self._parameters(contexts), self._bounds, sampling, noise)

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, ...] the `action` [B, A], the mean within the bounds, and `mean` and `log_std` [B,
        A]."""
        mean, log_std = self._parameters(contexts)
        return {"action": mean if self._bounds is None else mean.clamp(*self._bounds), "mean": mean, "log_std": log_std}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    def _parameters(self, seen: Seen) -> tuple[Tensor, Tensor]:
        mean = self.module(seen)
        log_std: Tensor = self._own["log_std"]  # type: ignore[assignment]
        if not torch.is_grad_enabled():  # a view of a parameter requires a gradient even then
            log_std = log_std.detach()
        return mean, log_std.expand_as(mean)


@register("model", "squashed")
@dataclass
class SquashedPolicy:
    """SAC's policy for bounded actions: a Gaussian squashed by tanh and scaled to the action range.

    Supports greedy and epsilon (a uniform action). The decision, which critics see and the column `action` holds, is
    tanh(u) in (-1, 1); the environment gets it scaled to its bounds (`Traces.taken`); u is kept as the column `pre`,
    for exact scoring. ValueError for layer beside batch normalisation."""

    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    low: float = -20.0
    """Lower bound of the log standard deviation of u, the action before tanh (SAC: -20)."""
    high: float = 2.0
    """Upper bound of the log standard deviation of u, the action before tanh (SAC: 2)."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    renorm: Renorm | None = None
    """Batch renormalisation before every layer (CrossQ), which the loss `reparam` trains with `by_batch`; `{}` takes
    its defaults."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.norm and self.renorm:
            raise ValueError("squashed: norm and renorm are both set: expected one of them")

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "squashed")
        actions = box(does, "action", "squashed", bounded=True)
        self._scale, self._inputs = Scale(actions), Inputs(seen, "squashed", self.normalise, see=self.see)
        sizes = (self._inputs.size, *self.hidden, 2 * int(actions.shape[0]))
        renormed = Renormed(1, sizes, self.activation, self.renorm) if self.renorm else None
        body = renormed or Mlp(sizes, self.activation, norm=self.norm)
        self.module, self._pending = Net(self._inputs, body), Pending(renormed)

    @property
    def by_batch(self) -> Callable[..., tuple[Squashed, ...]] | None:
        """(batches) -> the distribution of each, all of them in one forward, normalised by the moments of all rows
        together; None without `renorm`."""
        return self._ask_together if self.renorm else None

    def __call__(self, batch: Batch) -> Squashed:
        mean, log_std = self._parameters(self._inputs.of(batch))
        mean, log_std = mean.unsqueeze(1), log_std.unsqueeze(1)
        return Squashed(mean, log_std, batch)

    def _ask_together(self, *batches: Batch) -> tuple[Squashed, ...]:
        out = self._pending(torch.cat([self._inputs(self._inputs.of(batch)) for batch in batches]))[0]
        parts = zip(out.split([len(batch) for batch in batches]), batches, strict=True)
        found = ((*self._halves(part), batch) for part, batch in parts)
        return tuple(Squashed(mean.unsqueeze(1), log_std.unsqueeze(1), batch) for mean, log_std, batch in found)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, 1]; taken [B, A]; `info`: `pre` [B, 1, A], `epsilon` [B,
        1]."""
        honour(sampling, ("greedy", "epsilon"), "squashed")
        e = uniform_share(sampling)
        with torch.no_grad():
            mean, log_std = self._parameters(contexts)
            u = mean if sampling.greedy else mean + log_std.exp() * noise.normal(0, mean.shape[1])
            if e and not sampling.greedy:
                chosen, uniform = uniform_rows(noise, mean.shape[1], e)
                u = torch.where(chosen, uniform.atanh(), u)
            action, logp = u.tanh(), (normal_log_prob(u, mean, log_std) - _log_slope(u)).unsqueeze(1)
            share = logp.new_full((len(logp), 1), e)
            info = {"pre": u.unsqueeze(1), "epsilon": share}
            if e:
                logp = mix_log_density(logp, share, u.shape[1])
        return Traces(action, logp, info=info, taken=self._scale(action))

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, ...] the `action` [B, A] of the mean, and `mean` and `log_std` [B, A] of u."""
        mean, log_std = self._parameters(contexts)
        return {"action": self._scale(mean.tanh()), "mean": mean, "log_std": log_std}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": self._scale.inverse(taken)}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)
        if isinstance(event, Updated):
            self._pending.settle()

    def _parameters(self, seen: Seen) -> tuple[Tensor, Tensor]:
        out = self.module(seen)
        return self._halves(out[0] if self.renorm else out)

    def _halves(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 2A] -> mean and log standard deviation."""
        mean, log_std = out.chunk(2, -1)
        return mean, log_std.clamp(self.low, self.high)
