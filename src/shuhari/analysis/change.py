"""Restarted Bayesian online change point detection of a stream of outcomes, and how often it errs.

Sources: Alami, Maillard and Feraud, "Restarted Bayesian Online Change-point Detector achieves Optimal Detection Delay"
(ICML 2020); of outcomes of more than two kinds, Alami, Mahfoud and Moulines, "Restarted Bayesian Online Change-point
Detection for Non-Stationary Markov Decision Processes" (CoLLA 2023, arXiv 2304.00232).

A forecaster that began at s predicts the next outcome by Laplace's rule, (n_o + 1) / (n + O), of what it has seen. With
L_{s:t} its cumulative log-loss and r the last restart, the forecaster of s weighs eta exp(-L_{r:s-1} - L_{s:t}), that
of r exp(-L_{r:t}); where one of a later s outweighs that of r, the stream has changed, and begins anew.

eta = rate / (n (n + 1)) after n outcomes. The ratio of a fixed s is a martingale of mean 1 where nothing changes and
the law is drawn uniformly, so by Ville's inequality at most `rate` of such streams ever alarm. The papers leave eta
open up to a bound; of its order 1 / n alone there is no such sum.

Axes: `n` outcomes of a stream, `O` kinds of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuhari.bounds import Length, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register


def log_evidence(counts: Array) -> Array:
    """[...] -L of Laplace's forecaster on outcomes with these counts [..., O], in any order: the log of
    (O - 1)! prod n_o! / (n + O - 1)!."""
    kinds, n = counts.shape[-1], counts.sum(-1)
    top = int(n.max(initial=0)) + kinds
    log_factorial = np.concatenate([[0.0], np.log(np.arange(1, top)).cumsum()])  # of 0, 1, .., top - 1
    return np.asarray(log_factorial[kinds - 1] + log_factorial[counts].sum(-1) - log_factorial[n + kinds - 1])


def split_evidence(stream: Array, kinds: int) -> Array:
    """[n - 1] by how much a forecaster that began at each later outcome outweighs, in nats and before eta, that of the
    first: L_{r:t} - L_{r:s-1} - L_{s:t}. stream: [n] outcomes in 0..kinds-1 since the last restart."""
    seen = (stream[:, None] == np.arange(kinds)).cumsum(0)  # [n, O]
    return np.asarray(log_evidence(seen[:-1]) + log_evidence(seen[-1] - seen[:-1]) - log_evidence(seen[-1]))


def has_changed(stream: Array, kinds: int, rate: float) -> bool:
    """Whether a stream of outcomes [n] since the last restart calls for another."""
    n = len(stream)
    return n > 1 and bool(split_evidence(stream, kinds).max() > np.log(n * (n + 1) / rate))


@register("analysis", "change")
@dataclass
class Change:
    """How the detector does on `runs` streams of `length` outcomes of `kinds` kinds, each of a law drawn uniformly.

    Numbers: `false_alarms`, the share of streams without a change in which it alarms; of streams that go over to
    another law in the middle, `found`, the share in which it alarms after that and not before, and `delay`, how many
    outcomes later on average (half the stream where it does not). rate: see the module's docstring.
    """

    runs: Length = 20
    length: Length = 200
    kinds: Length = 6
    rate: ProperShare = 0.05

    def __post_init__(self) -> None:
        check(self)
        if self.kinds < 2 or self.length < 4:
            raise ValueError(f"change: {self.kinds} kinds, length {self.length}: expected at least 2 and 4")

    def __call__(self, seed: int) -> dict[str, float]:
        rng, half = np.random.default_rng(seed), self.length // 2
        alarms, found, delays = 0, 0, list[int]()
        for _ in range(self.runs):
            before, after = rng.dirichlet(np.ones(self.kinds), 2)
            u = rng.choice(self.kinds, self.length, p=before)
            alarms += self._first_alarm(u) < self.length
            u[half:] = rng.choice(self.kinds, self.length - half, p=after)
            at = self._first_alarm(u)
            found += half <= at < self.length
            delays += [min(at, self.length) - half] if at >= half else []
        delay = float(np.mean(delays)) if delays else float("nan")
        return {"false_alarms": alarms / self.runs, "found": found / self.runs, "delay": delay}

    def _first_alarm(self, stream: Array) -> int:
        """The place of the outcome at which it first alarms; the length of the stream where it does not."""
        at = (i for i in range(len(stream)) if has_changed(stream[: i + 1], self.kinds, self.rate))
        return next(at, len(stream))
