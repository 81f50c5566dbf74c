"""Denoising policies: flows and diffusion, whose decision results from K Gaussian steps that start from noise.

A row has one position per step. The column `chain` [B, K, A] holds the point before each step, the initial noise first,
and `action` [B, A] the last point, before it is clamped to the environment's bounds. So every step is scored exactly as
it was sampled, and the sum over the row is the log-probability of the chain given its initial noise, whose distribution
N(0, I) has no weights and cancels in every ratio. Ratios at level `row` are over chains (ReinFlow, PPO), at level
`decision` over single steps (DDPO), at level `sequence` the geometric mean over steps.

Times run from 0, noise, to 1, a decision. With u the network's output and c constants of the step, every law has the
mean c x + c' u; without noise the step is an Euler step (for `ddpm`: DDIM with eta 0; for `consistency` the first step
jumps to the end).

Left out: chunks of several actions, distillation from another policy, guidance, clamping the predicted decision.

Axes: `B` rows, `K` steps, `A` action dimensions, `D` features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Bounds, Length, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.registry import register
from shuhari.models.denoising import Chain, Steps, denoise
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.sampling import honour
from shuhari.models.schedules import consistency_schedule, ddpm_schedule, diffused, flow_schedule
from shuhari.models.spaces import Inputs, Scale, Seen, box, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


class Denoiser(nn.Module):
    """A network of features [..., D], a point [..., A] and an embedded time [..., E]: `body` returns [..., A];
    `spread`, which does not see the point, gives the noise of a step (None if it is not learnt)."""

    def __init__(self, inputs: Inputs, body: Mlp, spread: Mlp | None) -> None:
        super().__init__()
        self.inputs, self.body, self.spread = inputs, body, spread


def embed(t: Tensor, size: int) -> Tensor:
    """Returns [..., size] sines and cosines of times [...] in [0, 1], at half a period and its octaves."""
    angle = t.unsqueeze(-1) * (math.pi * 2.0 ** torch.arange(size // 2))
    return torch.cat([angle.sin(), angle.cos()], -1)


@register("model", "chain")
@dataclass
class ChainPolicy:
    """A diffusion or flow policy: a decision in a Box results from K denoising steps. Greedy has only the initial
    noise.

    In a bounded Box the decision is in units of half its range about the middle, and the environment gets it scaled and
    clamped. The laws:

    - `noise`: the flow's Euler steps with learnt noise (ReinFlow; pi_RL's Flow-Noise).
    - `sde`: the flow's stochastic equation (pi_RL's Flow-SDE).
    - `ddpm`: diffusion.
    - `consistency`: each step predicts the decision and adds noise of the next level (RLCM: Oertell et al. 2024, arXiv
      2404.03673). Its released code also scores noise of the last step, which never reaches the decision; here it does
      reach it, so it is small.

    A greedy consistency model decides by its first prediction alone, so greedy scores, `mode` and a `steered` role
    around it do not use the later steps, although RL trains them too. `info`: `chain` [B, K, A], and with single
    `noised` [B, K]. Raises ValueError for settings that do not fit together.
    """

    steps: Length = 4
    """Number of denoising steps K; fewer sample faster."""
    law: Literal["noise", "sde", "ddpm", "consistency"] = "noise"
    """Law of the steps: `noise` (a flow with learnt noise), `sde` (a flow with noise of one level), `ddpm` (diffusion)
    or `consistency`."""
    low: Positive = 0.1
    """Lowest standard deviation of the learnt noise; only used by the law `noise`."""
    high: Positive = 0.24
    """Highest standard deviation of the learnt noise; only used by the law `noise`."""
    level: Positive = 0.5
    """Level of the noise; more explores more. Only used by the law `sde`."""
    final_std: Positive = 0.1
    """Standard deviation of the noise in the last step; only used by the law `consistency`."""
    discretisation: Length = 20
    """Number of intervals of the time; the network learns equal predictions from points one interval apart (Song's N -
    1). Only used by the law `consistency`."""
    single: bool = False
    """Add noise in one random step of each chain, and score only that step (pi_RL's mixed sampling); not with the law
    `consistency`."""
    bound: AtLeast0 = 0.0
    """Bound of the steps' means, which are clamped to [-bound, bound]; 0 sets none."""
    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the denoising network; an empty list makes it linear."""
    spread: tuple[Length, ...] = (16,)
    """Widths of the hidden layers of the network that gives the noise; only used by the law `noise`."""
    activation: Activation = "silu"
    """Activation between the layers."""
    time: Annotated[int, Bounds(2, most=10**8)] = 8
    """Size of the embedded time, an even number (sines and cosines)."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
    kind: Literal["exact", "chain", "bound"] = field(default="chain", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"chain: low is {self.low} and high {self.high}: expected low <= high")
        if self.time % 2:
            raise ValueError(f"chain: time is {self.time}: expected an even number, sines and cosines")
        if self.single and self.law == "consistency":
            raise ValueError("chain: single is true and law is 'consistency', whose chain ends at a step without "
                             "noise: expected another law, or single = false")  # fmt: skip

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "chain")
        actions = box(does, "action", "chain")
        self._scale = Scale(actions) if actions.is_bounded() else None
        self._inputs, self.dimensions = Inputs(seen, "chain", self.normalise, see=self.see), int(actions.shape[0])
        d, a = self._inputs.size + self.time, self.dimensions
        body = Mlp((d + a, *self.hidden, a), self.activation)
        learnt = Mlp((d, *self.spread, a), self.activation) if self.law == "noise" else None
        self._net = self.module = Denoiser(self._inputs, body, learnt)
        if self.law == "ddpm":
            self.schedule = ddpm_schedule(self.steps)
        elif self.law == "consistency":
            self.schedule = consistency_schedule(self.steps, self.final_std)
        else:
            self.schedule = flow_schedule(self.steps, self.level if self.law == "sde" else None)
        self._times = embed(torch.arange(self.steps) / self.steps, self.time)  # [K, E]

    def __call__(self, batch: Batch) -> Chain:
        return Chain(self, self.features(self.seen(batch)), batch)

    def sample(self, contexts: Seen, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, K]; taken [B, A] for a bounded Box."""
        honour(sampling, ("greedy",), "chain")
        with torch.no_grad():
            return self.trace(*denoise(self, self.features(contexts), noise, sampling.greedy))

    def trace(self, chain: Tensor, action: Tensor, steps: Steps) -> Traces:
        """Returns the traces of denoised decisions."""
        info = {"chain": chain} if steps.noised is None else {"chain": chain, "noised": steps.noised.float()}
        return Traces(action, steps.log_prob(), info=info, taken=None if self._scale is None else self._scale(action))

    def act(self, action: Tensor) -> Tensor:
        """Returns [B, A] the environment's actions for decisions."""
        return action if self._scale is None else self._scale(action)

    def seen(self, batch: Batch) -> Seen:
        """Returns the contexts of a batch."""
        return self._inputs.of(batch)

    def features(self, seen: Seen) -> Tensor:
        """Returns [B, D] features of contexts."""
        return self._inputs(seen)

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B, ...]; their chains are
        unknown."""
        return {"action": taken if self._scale is None else self._scale.inverse(taken)}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    # ---------------------------------------------------------------- the parts of chains

    def answer(self, features: Tensor, x: Tensor, k: int | slice) -> Tensor:
        """See `Denoises`; features [B, D]."""
        out: Tensor = self._net.body(torch.cat([_over(features, x), x, self._times[k].expand(*x.shape[:-1], -1)], -1))
        return out

    def spread_of(self, features: Tensor, x: Tensor, k: int | slice) -> Tensor:
        assert self._net.spread is not None
        low, high = math.log(self.low), math.log(self.high)
        said = self._net.spread(torch.cat([_over(features, x), self._times[k].expand(*x.shape[:-1], -1)], -1))
        return low + (high - low) * (said.tanh() + 1) / 2

    def gradient(self, features: Tensor, action: Tensor, k: int) -> Tensor:
        """Returns [B, A] the gradient, at `action`, of the log-density of the training decisions, each blurred by noise
        of deviation add / keep, that of the points before step k: minus the predicted noise over that deviation (for
        laws that predict a mean: not `consistency`)."""
        keep, add = self.schedule.keep[k], self.schedule.add[k]
        u = self.answer(features, keep * action, k)
        return -keep / add * (u if self.law == "ddpm" else keep * (action - u))

    def error(self, features: Tensor, action: Tensor, noise: Noise) -> Tensor:
        """See `Chain.denoising`."""
        z, v = noise.normal(0, self.dimensions), noise.uniform(0, 1).float()
        if self.law == "consistency":
            v = v.clamp(max=1 - 1e-6)  # rounding may give 1, where there is no noise
            nearer = (v + 1 / self.discretisation).clamp(max=1.0)
            with torch.no_grad():
                decision = self._predict(features, action, z, nearer)[0]
            _, at, add, u = self._predict(features, action, z, v)
            return (u - (at - decision) / add).square().mean(1)
        if self.law == "ddpm":
            k = (v * self.steps).long().clamp(max=self.steps - 1)
            keep, add, time, target = self.schedule.keep[k], self.schedule.add[k], self._times[k[:, 0]], z
        else:
            keep, add, time, target = v, 1 - v, embed(v[:, 0], self.time), action - z
        u = self._net.body(torch.cat([features, keep * action + add * z, time], 1))
        return (u - target).square().mean(1)

    def _predict(self, features: Tensor, action: Tensor, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Diffuses `action` with noise z to times t [B, 1]; returns the decision at - add u that a consistency model
        predicts, `at`, `add` (the share of noise) and u, the network's output."""
        keep, add = diffused(t)
        x = keep * action + add * z
        u = self._net.body(torch.cat([features, x, embed(t[:, 0], self.time)], 1))
        return keep * x - add * u, keep * x, add, u


def _over(features: Tensor, x: Tensor) -> Tensor:
    """Returns features [B, D] broadcast to points x [B, A] or [B, K, A]."""
    return features if x.dim() == 2 else features[:, None].expand(-1, x.shape[1], -1)
