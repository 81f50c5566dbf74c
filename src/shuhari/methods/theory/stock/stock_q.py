"""A Q-network of quantiles whose greedy action maximises a utility of the stock plus the return, not the mean return.

Source: Pires et al., "Optimizing Return Distributions with Distributional Dynamic Programming" (2025), its deep agent,
on the quantiles of Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression".
Left out: action masks, observations that are not a flat Box.

Axes: `B` rows, `A` discrete actions, `m` quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Positive, Width, check
from shuhari.data import Sampling
from shuhari.kernel.registry import register
from shuhari.models.action_values import Actions
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.quantiles import Quantiles
from shuhari.models.sampling import honour, uniform_share
from shuhari.models.spaces import box, discrete, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task

Utility: TypeAlias = Literal["mean", "shortfall", "distance"]


@register("model", "stock_q")
@dataclass
class StockQ:
    """Quantiles of the return of each discrete action, of an observation whose last number is the stock c (`Stock`);
    acts by the expected utility E f(c + G), and epsilon-greedily by `Sampling.epsilon`.

    `mean`: f(x) = x, risk-neutral. `shortfall`: f(x) = min(x, 0), which maximises the CVaR if c_0 is searched.
    `distance`: f(x) = -|x|, which brings the total to -c_0. With the objective `q_learning` and loss = "quantile" this
    is QR-DQN on stock-augmented states, whose target acts greedily by the same utility. Raises TypeError for
    observations that are not a flat Box.
    """

    utility: Utility = "shortfall"
    """Function of the stock plus the return whose expectation is maximised: `mean`, `shortfall` or `distance`."""
    scale: Positive = 1.0
    """Number by which the stock is divided for the network's input, in units of the reward; about its largest value."""
    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    quantiles: Quantiles = field(default_factory=lambda: Quantiles(32))
    """Quantiles of the distribution over returns, such as `{n = 32}`."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "stock_q")
        actions = discrete(does, "action", "stock_q")
        self._start, self._n = int(actions.start), int(actions.n)
        size = int(box(seen, "observation", "stock_q").shape[0])
        self.module = Mlp((size, *self.hidden, self._n * self.quantiles.n), self.activation)

    def __call__(self, batch: Batch) -> Actions:
        z = self.find_quantiles(batch["context"])
        q = rate(z, batch["context"][:, -1], self.utility)
        return Actions(q.unsqueeze(1), batch, out=z.unsqueeze(1), read=self.quantiles)

    def find_quantiles(self, contexts: Tensor) -> Tensor:
        """Returns [B, A, m] the quantiles of the return for contexts [B, D]."""
        seen = contexts.view(len(contexts), -1)
        seen = torch.cat([seen[:, :-1], seen[:, -1:] / self.scale], 1)
        out: Tensor = self.module(seen)
        return out.unflatten(-1, (self._n, self.quantiles.n))

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, D] -> action [B] in 0..A-1, logp [B, 1]; `info`: `epsilon` [B, 1]."""
        honour(sampling, ("greedy", "epsilon"), "stock_q")
        e = 0.0 if sampling.greedy else uniform_share(sampling)
        with torch.no_grad():
            best = rate(self.find_quantiles(contexts), contexts[:, -1], self.utility).argmax(-1)
        action = best
        if e:
            u = noise.uniform(0, 2)
            action = torch.where(u[:, 0] < e, (u[:, 1] * self._n).long(), best)
        p = torch.where(action == best, 1 - e + e / self._n, e / self._n)
        logp = p.log().float().unsqueeze(1) if e else torch.zeros(len(best), 1)
        info = {"epsilon": torch.full_like(logp, e)}
        return Traces(action, logp, info=info, taken=action + self._start if self._start else None)

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, D] the best `action` [B] as environments take it, and `values` [B, A], the expected
        utilities."""
        values = rate(self.find_quantiles(contexts), contexts[:, -1], self.utility)
        return {"action": values.argmax(-1) + self._start, "values": values}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B]."""
        return {"action": taken - self._start}


def rate(quantiles: Tensor, stock: Tensor, utility: Utility) -> Tensor:
    """Returns [B, A] the expected utility E f(c + G): quantiles [B, A, m] of G, the stock c [B]."""
    if utility == "mean":
        return quantiles.mean(-1)  # without the stock, which adds the same to all actions
    total = quantiles + stock[:, None, None]
    return (total.clamp(max=0) if utility == "shortfall" else -total.abs()).mean(-1)


def find_cvar(values: Tensor, chances: Tensor, share: float) -> float:
    """Returns the mean of the worst `share` of a distribution: values [n] with probabilities `chances` [n]."""
    order = values.argsort()
    x, p = values[order], chances[order]
    before = p.cumsum(0) - p
    weight = (share - before).clamp(min=0).minimum(p)
    found = float((weight * x).sum() / share)
    return found if math.isfinite(found) else math.nan
