"""An off-policy bandit, trained by contrasting pairs of samples and by unweighted policy gradients.

Pairs come from a fixed distribution mu, not from the policy. The optimum of E[R] - beta KL(pi || ref) is known, pi*
proportional to ref e^(R / beta), so the final distance of a method is exact. Contrastive policy gradient (arXiv
2406.19185) has pi* as its only fixed point for any mu; the policy gradient on the same samples has another one, without
a baseline and with the mean reward of mu as baseline. The losses are those of the objective `log_ratio`.

Axes: `B` samples, two per pair, `A` arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, Positive, PositiveShare, check
from shuhari.kernel.registry import register
from shuhari.objectives.log_ratio import Centre, LogRatio

# -> (centring of the loss, whether the mean reward of mu is subtracted first)
METHODS: dict[str, tuple[Centre, bool]] = {
    "copg": ("leave-one-out", False),
    "pg": ("none", False),
    "pg_baseline": ("none", True),
}


@register("analysis", "off_policy_bandit")
@dataclass
class OffPolicyBandit:
    """Compares contrastive policy gradient with plain policy gradient on an off-policy bandit with a known optimum
    (CoPG).

    Every method learns a table of logits by plain gradient descent on pairs of arms drawn from mu; all see the same
    pairs, and the reference policy is uniform. Numbers, for each method: `distance/<method>`, the total variation
    between its result and pi*, in [0, 1], and `gain`, how much smaller that of `copg` is than the smallest of the
    others. The result is the mean of the logits over the second half of the steps, which averages out noise.
    """

    rewards: tuple[float, ...] = (1.0, 0.5, 0.0)
    """Reward of each arm."""
    mu: tuple[PositiveShare, ...] = (0.1, 0.2, 0.7)
    """Probability of each arm in the fixed sampling distribution; they sum to 1."""
    beta: Positive = 0.5
    """Strength of the KL penalty to the uniform reference, in units of reward per nat."""
    steps: Length = 1000
    """Number of gradient steps of each method."""
    pairs: Length = 32
    """Number of pairs of arms drawn for each step."""
    lr: Positive = 0.3
    """Learning rate of plain gradient descent."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.rewards) != len(self.mu) or len(self.mu) < 2:
            raise ValueError(f"{len(self.rewards)} rewards and a mu of {len(self.mu)}: expected one of each an arm")
        if abs(sum(self.mu) - 1) > 1e-6:
            raise ValueError(f"mu is {self.mu}: expected probabilities that sum to 1")

    def __call__(self, seed: int) -> dict[str, float]:
        best = (torch.tensor(self.rewards, dtype=torch.float64) / self.beta).softmax(0)
        far = {name: float((self.learn(name, seed) - best).abs().sum() / 2) for name in METHODS}
        gain = min(x for name, x in far.items() if name != "copg") - far["copg"]
        return {f"distance/{name}": x for name, x in far.items()} | {"gain": gain}

    def learn(self, method: str, seed: int) -> Tensor:
        """Trains with one of METHODS; returns the final probabilities [A]."""
        centre, baseline = METHODS[method]
        objective = LogRatio(beta=self.beta, centre=centre, over="reference")
        reward, mu = torch.tensor(self.rewards, dtype=torch.float64), torch.tensor(self.mu, dtype=torch.float64)
        rng = torch.Generator().manual_seed(seed)
        logits, kept = torch.zeros(len(mu), dtype=torch.float64), torch.zeros(len(mu), dtype=torch.float64)
        group, ctx = torch.arange(self.pairs).repeat_interleave(2), SimpleNamespace(at=float)
        for step in range(self.steps):
            arms = torch.multinomial(mu, 2 * self.pairs, replacement=True, generator=rng)
            z = logits.requires_grad_()
            columns: dict[Any, Tensor] = {
                "mask": torch.ones(len(arms), 1, dtype=torch.bool),
                "group": group,
                "advantage": (reward[arms] - (reward @ mu if baseline else 0.0))[:, None],
                objective.needs[0].key: z.log_softmax(0)[arms][:, None],
                objective.needs[1].key: torch.full((len(arms), 1), 1 / len(mu), dtype=torch.float64).log(),
            }
            loss, _ = objective(Batch(columns), ctx)
            (slope,) = torch.autograd.grad(loss.mean(), z)
            logits = (logits - self.lr * slope).detach()
            kept += logits * (step >= self.steps // 2)
        return (kept / (self.steps - self.steps // 2)).softmax(0)
