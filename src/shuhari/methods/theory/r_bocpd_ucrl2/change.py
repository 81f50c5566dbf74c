"""How often the detector of changes errs (`learners.change_points`), on streams whose law is known.

Left out: what the learner does with an alarm.
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
    """How often a Bayesian change-point detector errs, measured on random streams whose law is known.

    Each stream has a law drawn uniformly. Numbers: `false_alarms`, the share of streams without a change in which it
    alarms; of streams that go over to another law in the middle, `found`, the share in which it alarms after that and
    not before, and `delay`, how many outcomes later on average (half the stream if it does not). See
    `learners.change_points`.
    """

    runs: Length = 20
    """Streams of each sort, with a change and without."""
    length: Length = 200
    """Outcomes in a stream, at least 4; the law changes in the middle."""
    kinds: Length = 6
    """Different outcomes that there are, at least 2."""
    rate: ProperShare = 0.05
    """Chance of a false alarm in a stream, at most, in all its length; smaller detects later."""

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
