"""How often the change detector errs (`learners.change_points`), on streams with known distributions.

Left out: the learner's reaction to an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuhari.bounds import Length, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.learners.change_points import has_changed


@register("analysis", "change")
@dataclass
class Change:
    """How often a Bayesian change-point detector errs, measured on random streams with known distributions.

    Each stream has a uniformly drawn distribution. Numbers: `false_alarms`, the share of streams without a change in
    which it alarms; for streams that change in the middle, `found`, the share in which it alarms after that and not
    before, and `delay`, the mean number of outcomes until then (half the stream if it does not alarm). See
    `learners.change_points`.
    """

    runs: Length = 20
    """Number of streams of each kind, with a change and without."""
    length: Length = 200
    """Number of outcomes in a stream, at least 4; the distribution changes in the middle."""
    kinds: Length = 6
    """Number of different outcomes, at least 2."""
    rate: ProperShare = 0.05
    """Largest probability of a false alarm in a whole stream; smaller detects later."""

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
        """Returns the position of the outcome at which it first alarms; the length of the stream if it does not."""
        at = (i for i in range(len(stream)) if has_changed(stream[: i + 1], self.kinds, self.rate))
        return next(at, len(stream))
