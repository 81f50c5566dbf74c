"""Losses [P] of pairs of a better and a worse sample, by the name of their form.

Axes: `P` pairs. Sources stand in the table of `objectives/preference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log, log1p

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Pairs:
    """Scores of pairs. better, worse: beta s of each sample, [P]; h: their difference less the margin, [P]; smoothing,
    tau: settings of the objective."""

    better: Tensor
    worse: Tensor
    h: Tensor
    beta: float
    smoothing: float = 0.0
    tau: float = 0.05

    def swap(self) -> Pairs:
        """Return the same pairs with the other sample as the better one."""
        return replace(self, better=self.worse, worse=self.better, h=-self.h)


def compute_exo(of: Pairs) -> Tensor:
    """Return KL of the policy's choice between both samples to that of the labels, of which a share is wrong."""
    won, lost = F.logsigmoid(of.h), F.logsigmoid(-of.h)
    return won.exp() * (won - log1p(-of.smoothing)) + lost.exp() * (lost - log(of.smoothing))


def compute_robust(of: Pairs) -> Tensor:
    """Return the loss whose mean over labels, of which a share is wrong, is that of right labels."""
    e = of.smoothing
    return (-(1 - e) * F.logsigmoid(of.h) + e * F.logsigmoid(-of.h)) / (1 - 2 * e)


def compute_discopop(of: Pairs) -> Tensor:
    """Return a mixture of logistic and exponential loss, whose share depends on h."""
    share = torch.sigmoid(of.h / of.tau)
    return -F.logsigmoid(of.h) * (1 - share) + torch.exp(-of.h) * share


def compute_odds(of: Pairs) -> Tensor:
    """Return minus the log-sigmoid of the log odds ratio; scores are mean log-probabilities."""
    better, worse = (x / of.beta for x in (of.better, of.worse))
    odds = better - worse - (log1mexp(better) - log1mexp(worse))
    return -F.logsigmoid(odds)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) of numbers below 0, exact near 0 and far from it."""
    x = x.clamp(max=-1e-7)
    near = x > -log(2)
    return torch.where(near, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


OF_DIFFERENCE: Mapping[str, Callable[[Pairs], Tensor]] = {
    "sigmoid": lambda of: -F.logsigmoid(of.h),
    "hinge": lambda of: F.relu(1 - of.h),
    "ipo": lambda of: ((of.h - 0.5) / of.beta).square(),  # (s_w - s_l - 1 / (2 beta))^2
    "robust": compute_robust,
    "exo": compute_exo,
    "discopop": compute_discopop,
}
OF_EACH: Mapping[str, Callable[[Pairs], Tensor]] = {
    "nca": lambda of: (
        -F.logsigmoid(of.better) - 0.5 * F.logsigmoid(-of.better) - 0.5 * F.logsigmoid(-of.worse)
    ),
    "bco": lambda of: -F.logsigmoid(of.better) - F.logsigmoid(-of.worse),
    "sppo": lambda of: ((of.better - 0.5) / of.beta).square() + ((of.worse + 0.5) / of.beta).square(),
    "apo_zero": lambda of: torch.sigmoid(-of.better) + torch.sigmoid(of.worse),
    "apo_down": lambda of: torch.sigmoid(of.better) + torch.sigmoid(of.worse - of.better),
    "odds": compute_odds,
}
SMOOTHED = ("sigmoid", "hinge", "ipo", "aot", "aot_unpaired", "exo", "robust")


def change_scores(s: Tensor, divergence: str, alpha: float) -> Tensor:
    """Return f'(ratio) of log-ratios s, any shape: what the score of a sample is under another divergence than the
    reverse KL."""
    if divergence == "forward_kl":
        return 1 - torch.exp(-s)
    if divergence == "js":
        return log(2) + F.logsigmoid(s)
    if divergence == "alpha" and abs(alpha - 1) > 1e-6:
        return torch.expm1(((alpha - 1) * s).clamp(max=80.0)) / (alpha - 1)
    return s


def sort_margins(policy: Tensor, reference: Tensor) -> Tensor:
    """Return [P] of sorted margins of the policy less sorted ones of the reference, from their scores [P, 2]."""
    margins = (x[:, 0] - x[:, 1] for x in (policy, reference))
    one, other = (x.sort().values for x in margins)
    return one - other
