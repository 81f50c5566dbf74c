"""A deterministic policy in a bounded Box, which explores by normal noise (TD3, DDPG).

Axes: `B` rows, `K` positions (here 1), `A` action dimensions, `N` decisions picked by `at`. Leaves out noise correlated
in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.registry import register
from shuhari.models.gaussian import normal_log_prob
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.sampling import epsilon, honour, mix_log_density, uniform_rows, uniform_share
from shuhari.models.spaces import Inputs, Net, Scale, Seen, box, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


class Clipped:
    """a = mean + std · normal, clipped to [-1, 1]: mean (any), log_std, action [B, K, A]. Methods return [B, K].

    The distribution has a density inside and a mass at either bound (a censored normal), so that the log-probability of
    a clipped action is exact. `epsilon`: the share of a uniform a in the behaviour's mixture. Left out: entropy and KL,
    which would mix masses with densities.
    """

    __slots__ = ("action", "epsilon", "log_std", "mean")

    def __init__(self, mean: Tensor, log_std: Tensor, action: Tensor, epsilon: Tensor | None = None) -> None:
        self.mean, self.log_std, self.action, self.epsilon = mean, log_std, action, epsilon

    def log_prob(self) -> Tensor:
        inside = normal_log_prob(self.action[..., None], self.mean[..., None], self.log_std[..., None])  # [B, K, A]
        beyond = torch.special.log_ndtr((self.mean * self.action.sign() - 1) * (-self.log_std).exp())
        bound = self.action.abs() >= 1
        logp = torch.where(bound, beyond, inside).sum(-1)
        if self.epsilon is None:
            return logp
        either = mix_log_density(logp, self.epsilon, bound.shape[-1])
        return torch.where(bound.any(-1), (-self.epsilon).log1p() + logp, either)  # a uniform one hits no bound

    def mode(self) -> Tensor:
        """Returns [B, A] the action without noise, as the column `action` holds actions; differentiable within the
        bounds."""
        return self.mean.flatten(0, -2).clamp(-1, 1)

    def rsample(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """Returns reparameterised actions [B, A] with the exploration noise and without `epsilon`, and their log_prob
        [B, K]. No gradient passes a bound."""
        eps = noise.normal(0, self.mean.shape[-1]).view_as(self.mean)
        action = (self.mean + self.log_std.exp() * eps).clamp(-1, 1)
        return action.flatten(0, -2), Clipped(self.mean, self.log_std, action).log_prob()

    def parameters(self) -> Tensor:
        """Returns [B, K, A] the actions without noise, before they are clipped."""
        return self.mean

    def at(self, index: Tensor) -> Clipped:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        mean, log_std, action = (x.flatten(0, -2)[index] for x in (self.mean, self.log_std, self.action))
        return Clipped(mean, log_std, action, None if self.epsilon is None else self.epsilon.flatten()[index])


@register("model", "deterministic")
@dataclass
class DeterministicPolicy:
    """A deterministic policy for bounded actions, tanh of an MLP, that explores by normal noise (TD3: Fujimoto et al.
    2018).

    Supports greedy and epsilon (a uniform action). The decision, which critics see and the column `action` holds, lies
    in [-1, 1]; the environment gets it scaled to its bounds (`Traces.taken`).
    """

    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    noise: Annotated[float, Bounds(0, open="low", hint="greedy sampling has none")] = 0.1
    """Standard deviation of the exploration noise, in units of half the action range."""
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
        seen, does = spaces_of(task, "deterministic")
        actions = box(does, "action", "deterministic", bounded=True)
        self._scale, self._inputs = Scale(actions), Inputs(seen, "deterministic", self.normalise, see=self.see)
        body = Mlp((self._inputs.size, *self.hidden, int(actions.shape[0])), self.activation, norm=self.norm)
        self.module = Net(self._inputs, body)

    def __call__(self, batch: Batch) -> Clipped:
        mean = self._mean(self._inputs.of(batch)).unsqueeze(1)
        return Clipped(mean, self._log_std(mean), batch["action"].view_as(mean), epsilon(batch))

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, 1], `taken` [B, A]; `info`: `epsilon` [B, 1]."""
        honour(sampling, ("greedy", "epsilon"), "deterministic")
        e = uniform_share(sampling)
        with torch.no_grad():
            action = mean = self._mean(contexts)
            if not sampling.greedy:
                action = (mean + self.noise * noise.normal(0, mean.shape[1])).clamp(-1, 1)
                if e:
                    action = torch.where(*uniform_rows(noise, mean.shape[1], e), action)
            share = mean.new_full((len(mean), 1), e)
            made = Clipped(mean[:, None], self._log_std(mean[:, None]), action[:, None], share if e else None)
        return Traces(action, made.log_prob(), info={"epsilon": share}, taken=self._scale(action))

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, ...] the `action` [B, A] without noise, and `mean` [B, A], the same in [-1, 1]."""
        mean = self._mean(contexts)
        return {"action": self._scale(mean), "mean": mean}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": self._scale.inverse(taken)}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    def _mean(self, seen: Seen) -> Tensor:
        return self.module(seen).tanh()

    def _log_std(self, mean: Tensor) -> Tensor:
        return mean.new_full((), math.log(self.noise)).expand_as(mean)
