"""Restarted Bayesian online change point detection of a stream of outcomes.

Sources: Alami, Maillard and Feraud, "Restarted Bayesian Online Change-point Detector achieves Optimal Detection Delay"
(ICML 2020); for more than two kinds of outcomes, Alami, Mahfoud and Moulines, "Restarted Bayesian Online Change-point
Detection for Non-Stationary Markov Decision Processes" (CoLLA 2023, arXiv 2304.00232).

A forecaster that began at s predicts the next outcome by Laplace's rule, (n_o + 1) / (n + O), from what it has seen.
With L_{s:t} its cumulative log-loss and r the last restart, the forecaster of s has weight eta exp(-L_{r:s-1} -
L_{s:t}), and that of r has exp(-L_{r:t}). If one of a later s outweighs that of r, the stream has changed, and the
detector restarts.

eta = rate / (n (n + 1)) after n outcomes. For fixed s, if nothing changes and the distribution is drawn uniformly, the
ratio is a martingale of mean 1, so by Ville's inequality at most `rate` of such streams ever alarm. The papers leave
eta open up to a bound of order 1 / n, whose sum over n would be infinite.

Axes: `n` outcomes of a stream, `O` kinds of outcomes.
"""

from __future__ import annotations

import numpy as np

from shuhari.data import Array


def log_evidence(counts: Array) -> Array:
    """Returns -L [...] of Laplace's forecaster on outcomes with counts [..., O], in any order: the log of (O - 1)! prod
    n_o! / (n + O - 1)!."""
    kinds, n = counts.shape[-1], counts.sum(-1)
    top = int(n.max(initial=0)) + kinds
    log_factorial = np.concatenate([[0.0], np.log(np.arange(1, top)).cumsum()])  # of 0, 1, .., top - 1
    return np.asarray(log_factorial[kinds - 1] + log_factorial[counts].sum(-1) - log_factorial[n + kinds - 1])


def split_evidence(stream: Array, kinds: int) -> Array:
    """Returns [n - 1]: how much the forecaster that began at each later outcome outweighs the first one's, in nats and
    before eta: L_{r:t} - L_{r:s-1} - L_{s:t}. stream: [n] outcomes in 0..kinds-1 since the last restart."""
    seen = (stream[:, None] == np.arange(kinds)).cumsum(0)  # [n, O]
    return np.asarray(log_evidence(seen[:-1]) + log_evidence(seen[-1] - seen[:-1]) - log_evidence(seen[-1]))


def has_changed(stream: Array, kinds: int, rate: float) -> bool:
    """Whether a stream of outcomes [n] since the last restart has changed."""
    n = len(stream)
    return n > 1 and bool(split_evidence(stream, kinds).max() > np.log(n * (n + 1) / rate))
