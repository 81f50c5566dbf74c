"""Chains of denoising steps: how they are made, and what they return, whatever predicts the next point.

`models.chain` describes chains and their columns; its model makes them.

Axes: `B` rows, `K` steps, `A` action dimensions, `N` decisions picked by `at`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.models.gaussian import Gaussian, normal_kl
from shuhari.models.schedules import Schedule
from shuhari.needs import Noise


class Steps:
    """Steps of denoising, each a diagonal normal: `law` [B, K, A] with the point after the step as its action, the
    network's outputs `u`, and which steps count (`noised` [B, K], None: all); the others were made without noise.
    Methods return [B, K]; after `at`, [N]."""

    __slots__ = ("law", "noised", "u", "unknown")

    def __init__(self, law: Gaussian, u: Tensor, noised: Tensor | None = None, unknown: Tensor | None = None) -> None:
        self.law, self.u, self.noised, self.unknown = law, u, noised, unknown

    def log_prob(self) -> Tensor:
        logp = self._counted(self.law.log_prob())
        return logp if self.unknown is None else logp.masked_fill(self.unknown, torch.nan)

    def mean_log_prob(self) -> Tensor:
        """Returns the log-probability per dimension of the decision."""
        return self.log_prob() / self.law.mean.shape[-1]

    def entropy(self) -> Tensor:
        """Returns the entropy of the step, given the point before it."""
        return self._counted(self.law.entropy())

    def kl(self, other: Any) -> Tensor:
        """Returns the exact KL(self || other) of the steps, given the points before them; summed over own chains it is
        that of the chains on average."""
        return self._counted(normal_kl(self.law, other.steps.law))

    def parameters(self) -> Tensor:
        """Returns [B, K, A] velocities; for `ddpm` the predicted noise, for `consistency` as in
        `consistency_schedule`."""
        return self.u

    @property
    def steps(self) -> Steps:
        return self

    def at(self, index: Tensor) -> Steps:
        """Returns the steps `index` [N] of the flattened [B * K]."""
        rest = [None if x is None else x.flatten()[index] for x in (self.noised, self.unknown)]
        return Steps(self.law.at(index), self.u.flatten(0, -2)[index], *rest)

    def _counted(self, x: Tensor) -> Tensor:
        return x if self.noised is None else torch.where(self.noised, x, 0.0)


class Denoises(Protocol):
    """The model of a chain. `answer`: the network's output at points x, [B, A] before step k or [B, K, A] before all
    steps (a slice); `spread_of`: the log standard deviation of these steps, if the schedule has none."""

    @property
    def steps(self) -> int: ...
    @property
    def single(self) -> bool: ...
    @property
    def bound(self) -> float: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def schedule(self) -> Schedule: ...

    def answer(self, features: Any, x: Tensor, k: int | slice) -> Tensor: ...
    def spread_of(self, features: Any, x: Tensor, k: int | slice) -> Tensor: ...
    def error(self, features: Any, action: Tensor, noise: Noise) -> Tensor: ...


class Chain:
    """The decisions of a batch: its chains, if it has them, and what can be denoised in its contexts.

    Raises ValueError if steps are needed and no row has a chain; the steps of single rows without one are unknown
    (NaN).
    """

    __slots__ = ("_batch", "_features", "_model", "_steps")

    def __init__(self, model: Denoises, features: Any, batch: Batch) -> None:
        self._model, self._features, self._batch = model, features, batch
        self._steps = score(model, features, batch) if "chain" in batch else None

    @property
    def steps(self) -> Steps:
        if self._steps is None:
            raise ValueError(
                "a loss needs the denoising steps, and no row has the column 'chain': these actions were recorded "
                "elsewhere (learn from them by the objective 'denoise')"
            )
        return self._steps

    def log_prob(self) -> Tensor:
        """Returns [B, K] of each step; the row's sum is that of its chain, given the initial noise."""
        return self.steps.log_prob()

    def mean_log_prob(self) -> Tensor:
        """Returns [B, K] `log_prob` over the number of dimensions."""
        return self.steps.mean_log_prob()

    def entropy(self) -> Tensor:
        return self.steps.entropy()

    def kl(self, other: Any) -> Tensor:
        return self.steps.kl(other)

    def parameters(self) -> Tensor:
        return self.steps.parameters()

    def at(self, index: Tensor) -> Steps:
        return self.steps.at(index)

    def mode(self) -> Tensor:
        """Returns [B, A] the decision without noise in the steps, from the row's initial noise (0 if it has none),
        differentiable."""
        chain = self._batch.get("chain")
        shape = len(self._batch), self._model.dimensions
        start = torch.zeros(shape) if chain is None else chain[:, 0].nan_to_num(0.0)
        return walk(self._model, self._features, start, None, None)[1]

    def rsample(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """Returns decisions [B, A] of new chains, and the log-probability [B, K] of their steps, both
        differentiable."""
        _, action, steps = denoise(self._model, self._features, noise)
        return action, steps.log_prob()

    def denoising(self, noise: Noise) -> Tensor:
        """Returns [B] the mean squared error of the network's output for a noised `action`. It is the error of the
        velocity, at a time uniform in [0, 1) (Lipman et al. 2023, arXiv 2210.02747, equation 23, for straight paths);
        for `ddpm` that of the noise, at a step of the chain (Ho et al. 2020, equation 14); for `consistency` the
        distance to the output that would predict the same decision as, without gradient, a less noisy point with the
        same noise (Song et al. 2023, algorithm 3, without averaged weights: Song and Dhariwal 2023, arXiv 2310.14189,
        section 3.2)."""
        return self._model.error(self._features, self._batch["action"], noise)


def denoise(model: Denoises, features: Any, noise: Noise, still: bool = False) -> tuple[Tensor, Tensor, Steps]:
    """Returns new chains: the points before each step [B, K, A], the decisions [B, A], and the steps. still: without
    noise in the steps."""
    K, drawn, noised = model.steps, noise.normal(0, model.steps + 1, model.dimensions), None
    if model.single:
        which = (noise.uniform(0, 1) * K).long().clamp(max=K - 1)
        noised = (torch.arange(K) == which) & (not still)
    return walk(model, features, drawn[:, 0], None if still else drawn[:, 1:], noised)


def walk(
    model: Denoises, features: Any, x: Tensor, drawn: Tensor | None, noised: Tensor | None
) -> tuple[Tensor, Tensor, Steps]:
    """As `denoise`, from initial noise x [B, A], with the noise `drawn` [B, K, A] (None: none at all) in the steps that
    are `noised` [B, K] (None: all)."""
    s, before, answers, means, spreads = model.schedule, *(list[Tensor]() for _ in range(4))
    for k in range(model.steps):
        u = model.answer(features, x, k)
        mean, log_std = _law(model, features, x, u, k)
        new = _clamp(model, s.still_x[k] * x + s.still_u[k] * u)
        if drawn is not None:
            moved = mean + log_std.exp() * drawn[:, k]
            new = moved if noised is None else torch.where(noised[:, k, None], moved, new)
        for pile, one in ((before, x), (answers, u), (means, mean), (spreads, log_std)):
            pile.append(one)
        x = new
    chain = torch.stack(before, 1)
    after = torch.cat([chain[:, 1:], x[:, None]], 1)
    law = Gaussian(torch.stack(means, 1), torch.stack(spreads, 1), after)
    return chain, x, Steps(law, torch.stack(answers, 1), noised)


def score(model: Denoises, features: Any, batch: Batch) -> Steps:
    """Returns the steps of a batch's chains."""
    chain = batch["chain"]
    unknown = chain.isnan().any(-1)
    chain = chain.nan_to_num(0.0)  # NaN would reach every weight, even times 0
    after = torch.cat([chain[:, 1:], batch["action"].view(len(chain), 1, -1)], 1)
    u = model.answer(features, chain, slice(None))
    mean, log_std = _law(model, features, chain, u, slice(None))
    noised = batch["noised"] > 0 if model.single else None
    return Steps(Gaussian(mean, log_std, after), u, noised, unknown if bool(unknown.any()) else None)


def _law(model: Denoises, features: Any, x: Tensor, u: Tensor, k: int | slice) -> tuple[Tensor, Tensor]:
    """Returns mean and log standard deviation of step k at points x [B, A], or of all steps at [B, K, A]."""
    s = model.schedule
    mean = _clamp(model, s.x[k].unsqueeze(-1) * x + s.u[k].unsqueeze(-1) * u)
    if s.std is None:
        return mean, model.spread_of(features, x, k)
    return mean, s.std[k].log().unsqueeze(-1).expand_as(mean)


def _clamp(model: Denoises, x: Tensor) -> Tensor:
    return x.clamp(-model.bound, model.bound) if model.bound else x
