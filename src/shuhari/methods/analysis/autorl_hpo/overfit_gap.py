"""How much better than it is the best of many trials looks, by the number of tuning seeds (Eimer et al. 2023, arXiv
2306.01324). Simulated: nothing is trained. `shuhari sweep` measures it on real runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuhari.bounds import AtLeast0, Length, check
from shuhari.kernel.registry import register

SEEDS = (1, 2, 5, 10)


@register("analysis", "overfit_gap")
@dataclass
class OverfitGap:
    """How much better than it is the best of many trials looks, and how good it is, by the number of tuning seeds.

    Each trial has a true score, drawn with `deviation`; a run of it scores that plus noise of deviation `noise`.
    The trial with the best mean over its tuning seeds is chosen. Numbers, in units of the score, the mean over
    `sweeps`: `gap/<seeds>`, the chosen trial's tuning score less its true one; `score/<seeds>`, its true score;
    `equal/<seeds>`, its true score if all sweeps train as many runs, so that more seeds leave fewer trials. `best` is
    the true score of the best trial.
    """

    trials: Length = 16
    """Number of trials of a sweep, with one tuning seed each."""
    deviation: AtLeast0 = 1.0
    """Standard deviation of the true scores of trials; 0: no setting matters."""
    noise: AtLeast0 = 1.0
    """Standard deviation of a run around its trial's true score."""
    sweeps: Length = 2000
    """Number of simulated sweeps."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        true = self.deviation * rng.standard_normal((self.sweeps, self.trials))
        out = {"best": float(true.max(1).mean())}
        for seeds in SEEDS:
            seen = true + self.noise / np.sqrt(seeds) * rng.standard_normal(true.shape)
            chosen = seen.argmax(1)[:, None]
            score = np.take_along_axis(true, chosen, 1)
            out[f"gap/{seeds}"] = float((np.take_along_axis(seen, chosen, 1) - score).mean())
            out[f"score/{seeds}"] = float(score.mean())
            few = max(1, self.trials // seeds)
            fewer = seen[:, :few].argmax(1)[:, None]
            out[f"equal/{seeds}"] = float(np.take_along_axis(true, fewer, 1).mean())
        return out
