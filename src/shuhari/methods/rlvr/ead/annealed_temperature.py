"""Answers sampled hot at first and cold at the end: a temperature for each decision, updated at each step.

Source: "Let it Calm: Exploratory Annealed Decoding for Verifiable Reinforcement Learning" (EAD, arXiv 2510.05251), and
its released sampler. `inner` chooses the problems. Left out: its ablations (by step alone, by answer lengths).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Annotated

from shuhari.bounds import AtLeast0, Bounds, Count, Positive, check
from shuhari.data import Ramp, Request, Sampling
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "annealed_temperature")
@dataclass
class Annealed:
    """Samples the first tokens of an answer at a high temperature and later ones at a lower one (exploratory annealed
    decoding, EAD).

    Decision n (from 0) of an answer to a request of `inner` is sampled at temperature

        max(1 + high - e^(n / d), low),   d = min(decay + growth s, longest) at step s of the stage

    the first `plain` decisions at 1. That is `high` at first, 1 at n = d ln(high), and `low` from d ln(1 + high - low)
    on. Answers keep the log-probabilities at which they were sampled, and are scored at these temperatures unless a
    transform (`untempered_logp`) changes that. A request with its own temperature keeps it. Raises ValueError for low
    above high.
    """

    inner: Curriculum
    """Curriculum that the problems come from."""
    high: Annotated[float, Bounds(0, open="low")] = 1.2
    """Temperature of the first tokens."""
    low: Annotated[float, Bounds(0, open="low")] = 0.1
    """Lowest temperature, that of the last tokens of long answers."""
    decay: Positive = 500.0
    """Tokens over which the temperature falls at the first step (d); about the length of an answer is a good start."""
    growth: AtLeast0 = 100.0
    """Tokens added to d at each step, as answers grow; 0 for answers of fixed length."""
    longest: Positive = 800_000.0
    """Largest d in tokens, after any number of steps."""
    plain: Count = 10
    """Number of first tokens sampled at temperature 1: words before the reasoning."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"annealed: low is {self.low} and high {self.high}: expected low <= high")

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        decay = min(self.decay + self.growth * ctx.count, self.longest)
        temperature = find_temperature(ctx.sampling.max_new, self.high, self.low, decay, self.plain)
        return [_heat(request, temperature) for request in await self.inner.select(n, ctx)]


def find_temperature(n: int, high: float, low: float, decay: float, plain: int) -> float | Ramp:
    """Returns the temperature of each of n decisions, as a schedule over them; one number if all are equal."""
    # beyond log(1 + high) the exponential only falls further below `low`, and would finally overflow
    free = [max(1 + high - exp(min(i / decay, 1 + high)), low) for i in range(n)]
    each = [1.0 if i < plain else x for i, x in enumerate(free)]
    moves = tuple((float(i), x) for i, x in enumerate(each) if i and x != each[i - 1])
    return Ramp(each[0], steps=moves) if moves else each[0]


def _heat(request: Request, temperature: float | Ramp) -> Request:
    """Returns the request at this temperature, unless it sets its own."""
    own: Sampling | Mapping[str, object] | None = request.sampling
    if isinstance(own, Sampling) or (own and "temperature" in own):
        return request
    return replace(request, sampling={**(own or {}), "temperature": temperature})  # type: ignore[arg-type]
