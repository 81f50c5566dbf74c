"""Schedules of denoising: the constants of each step of a flow, of its stochastic equation, of a diffusion, and of a
consistency model.

Times run from 0, noise, to 1, a decision. With u a network's output and x a point, a step leads to a normal with mean c
x + c' u, or without noise to such a sum itself. Axes: `K` steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETA_MIN, BETA_MAX = 0.1, 20.0  # of the variance-preserving process (Song et al. 2021, arXiv 2011.13456, appendix C)


class Schedule(NamedTuple):
    """Constants of each step, [K] each: the mean of its law is `x` times the point plus `u` times the network's output,
    its deviation `std` (None: learnt); `still_x`, `still_u`: the step without noise. `keep`, `add`: the shares of
    decision and noise in the points before the step."""

    x: Tensor
    u: Tensor
    std: Tensor | None
    still_x: Tensor
    still_u: Tensor
    keep: Tensor
    add: Tensor


def flow_schedule(steps: int, level: float | None) -> Schedule:
    """Returns the schedule of a flow from noise z to a decision a, x_t = (1 - t) z + t a, whose network predicts the
    velocity a - z.

    level: None for Euler steps with learnt noise (ReinFlow: Zhang et al. 2025, arXiv 2505.22094, section 4.1), else the
    a of sigma = a sqrt((1 - t) / t), at t = 0 with the next t in the denominator: the stochastic equation with the same
    marginals, with steps as in pi_RL (Chen et al. 2025, arXiv 2510.25889, Flow-SDE), whose time runs backwards.
    """
    t, delta = torch.arange(steps, dtype=torch.float64) / steps, 1 / steps
    one, move = torch.ones_like(t), torch.full_like(t, delta)
    still, mixed = (one.float(), move.float()), (t.float(), (1 - t).float())
    if level is None:
        return Schedule(*still, None, *still, *mixed)
    variance = level**2 * (1 - t) / t.where(t > 0, delta)
    drift = variance * delta / (2 * (1 - t))
    noisy = (1 - drift).float(), (move + drift * t).float(), (variance * delta).sqrt().float()
    return Schedule(*noisy, *still, *mixed)


def ddpm_schedule(steps: int) -> Schedule:
    """Returns the schedule of a diffusion whose network predicts the noise in x = sqrt(a) decision + sqrt(1 - a) noise
    (Ho et al. 2020, arXiv 2006.11239, equations 7 and 11), a by the variance-preserving process cut into `steps`. The
    deviation is that of the posterior; the last step, which has none, uses the previous one (a single step its forward
    process)."""
    now, after = _cut(steps)
    beta = 1 - now / after
    x = (1 - beta).rsqrt()
    variance = beta * (1 - after) / (1 - now)
    variance[-1] = variance[-2] if steps > 1 else beta[-1]
    still = (after / now).sqrt()
    found = (
        x, -beta * x / (1 - now).sqrt(), variance.sqrt(), still, (1 - after).sqrt() - still * (1 - now).sqrt(),
        now.sqrt(), (1 - now).sqrt(),
    )  # fmt: skip
    return Schedule(*(v.float() for v in found))


def consistency_schedule(steps: int, final_std: float) -> Schedule:
    """Returns the schedule of a consistency model (Song et al. 2023, arXiv 2303.01469): f(x, t), the decision at the
    end of the probability flow from a point, for the diffusion of `ddpm_schedule`. The network's output u estimates
    sqrt(a) z - sqrt(1 - a) decision, so that f = sqrt(a) x - sqrt(1 - a) u, and f(x, 1) = x. A step predicts the
    decision and adds noise z of the next level, sqrt(a') f + sqrt(1 - a') z (their algorithm 1), the last one f +
    `final_std` z. Without noise the first step jumps to f, and the point stays there."""
    now, after = _cut(steps)
    keep, add, onto, std = now.sqrt(), (1 - now).sqrt(), after.sqrt(), (1 - after).sqrt()
    std[-1] = final_std
    first = torch.arange(steps) == 0
    found = (onto * keep, -onto * add, std, keep.where(first, 1.0), -add * first, keep, add)
    return Schedule(*(v.float() for v in found))


def diffused(t: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (sqrt(a), sqrt(1 - a)) at times t: the shares of decision and noise in a diffused point."""
    left = _left(1 - t.double())
    return left.sqrt().float(), (1 - left).sqrt().float()


def _cut(steps: int) -> tuple[Tensor, Tensor]:
    """Returns [K] `a` before and after each of `steps`."""
    left = _left(torch.arange(steps, -1, -1, dtype=torch.float64) / steps)
    return left[:-1], left[1:]


def _left(s: Tensor) -> Tensor:
    return torch.exp(-(BETA_MIN * s + (BETA_MAX - BETA_MIN) * s.square() / 2))
