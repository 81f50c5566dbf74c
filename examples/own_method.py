"""A method of your own, with no file of shuhari edited: an objective here, the rest of a recipe by name.

The objective is SPO (Simple Policy Optimization, Xie et al. 2024, arXiv 2401.16025, eq. 11): where PPO cuts the
gradient off outside of the trust region, a quadratic penalty on the ratio pulls back to it.

    python examples/own_method.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

import shuhari
from shuhari.batch import Batch
from shuhari.kernel.ratio import log_ratio
from shuhari.needs import Need

NEW = Need(("policy",), "log_prob", live=True)  # recomputed, with gradient, at each optimiser step


@shuhari.register("objective", "spo")
@dataclass
class Spo:
    """-(r A - |A| / (2 epsilon) (r - 1)^2) a decision, r the importance ratio; `epsilon` > 0 is PPO's clip range."""

    epsilon: float = 0.2
    needs: tuple[Need, ...] = field(init=False, default=(NEW,))
    couples: str = field(init=False, default="row")

    def __call__(self, batch: Batch, ctx: Any) -> tuple[Tensor, dict[str, Any]]:
        ratio, advantage = log_ratio(batch[NEW], batch["logp"], batch).exp(), batch["advantage"]  # [B, K]
        loss = -(ratio * advantage - advantage.abs() / (2 * self.epsilon) * (ratio - 1) ** 2)
        return loss, {"ratio": ratio}


def main(**settings: Any) -> shuhari.Trained:
    """Train it on CartPole in the place of PPO's clipped surrogate; everything else is the recipe's."""
    loss = {"use": "spo", "epsilon": 0.2}
    return shuhari.train("baselines/ppo_cartpole", **{"part.policy.terms.loss": loss, **settings})


if __name__ == "__main__":
    run = main()
    print(f"{run.path}: mean return {run.summary['after']['greedy']:.0f} after {run.summary['wall_s']:.0f} s")
