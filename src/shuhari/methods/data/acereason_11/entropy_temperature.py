"""A sampling temperature that suits the policy: the one at which its answers have a given entropy per decision.

Source: "AceReason-Nemotron 1.1: Advancing Math and Code Reasoning through SFT and RL Synergy" (Liu et al. 2025, arXiv
2506.13284): RL explores enough and not too much if the entropy at its temperature is about 0.3 at the start. `inner`
chooses the problems. Left out: the scaling of supervised data, and stages of length, which a recipe sets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Length, Positive, check
from shuhari.curricula.others import look
from shuhari.data import Info, Request, Sampling
from shuhari.events import Event, StageStarted
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

HALVINGS = 20  # bisections of the interval of temperatures: to a millionth of it


@register("curriculum", "entropy_temperature")
@dataclass
class Calibrated:
    """Sets the sampling temperature so that the policy's tokens have a given mean entropy, once, at the start of a
    stage.

    The requests of `inner`, sampled at the temperature T in [`low`, `high`] at which the mean entropy of a decision,
    H(T) = the mean over decisions of the entropy of softmax(logits / T), is `entropy` nats. T is found at a stage's
    first step, by bisection, as H rises in T. If H is larger even at `low`, or smaller at `high`, T is that end.

    The decisions are those of answers of the current policy, sampled as in the run (charged as probes); they are not
    sampled again for each T. If none can be used (no answer, or only errors), the step uses the run's own temperature,
    with a warning, and the next step tries and charges again. Training also scores at T. A request with its own
    temperature keeps it. Evaluation uses the run's own. Reports, once T is found, `curriculum/temperature` and
    `curriculum/entropy`, H(T) at that time. Raises ValueError for low above high.
    """

    inner: Curriculum
    """Curriculum that the problems come from."""
    entropy: Positive = 0.3
    """Target mean entropy of a sampled token, in nats; 0.3 in the paper, for long chains of thought."""
    problems: Length = 64
    """Number of problems on which the entropy is measured."""
    n: Length = 4
    """Number of answers to each of these problems."""
    low: Positive = 0.1
    """Smallest temperature that may be chosen."""
    high: Positive = 2.0
    """Largest temperature that may be chosen."""
    role: str = "policy"
    """Role of the policy whose entropy is measured."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"temperature": None, "entropy": None})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"calibrated: low is {self.low} and high {self.high}: expected low <= high")

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state |= {"temperature": None, "entropy": None}

    def report(self) -> Info:
        return {f"curriculum/{k}": v for k, v in self.state.items() if v is not None}

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        if self.state["temperature"] is None:
            asked = [Request(r.problem, self.n) for r in await look(self.inner, self.problems, 1, ctx)]
            batch = await ctx.probe(asked, tag="probe")
            if not bool(find_decisions(batch).any()):
                message = "calibrated: no usable decision among %d answers; this step has the run's own temperature"
                logging.getLogger("shuhari").warning(message, len(asked) * self.n)
                return await self.inner.select(n, ctx)
            t, h = find_root(lambda t: measure_entropy(batch, t, self.role, ctx), self.entropy, self.low, self.high)
            self.state |= {"temperature": t, "entropy": h}
        t = self.state["temperature"]
        return [_heat(request, t) for request in await self.inner.select(n, ctx)]


def find_decisions(batch: Batch) -> torch.Tensor:
    """Returns [B, K] bool: the decisions of episodes that did not end in an error."""
    return batch["mask"] & find_usable(batch)[:, None]


def measure_entropy(batch: Batch, temperature: float, role: str, ctx: Ctx) -> float:
    """Returns the mean entropy in nats of the decisions of a batch at this temperature; NaN if there are none."""
    need = Need((role,), "entropy")
    hot = batch.put({"temperature": torch.full(batch["mask"].shape, temperature)})
    return float(ctx.score(hot, [need])[need][find_decisions(batch)].double().mean())


def find_root(rising: Callable[[float], float], target: float, low: float, high: float) -> tuple[float, float]:
    """Returns (x, rising(x)) at which an increasing function has the target value, by bisection in [low, high]; else
    the nearest end."""
    if (least := rising(low)) >= target:
        return low, least
    if (most := rising(high)) <= target:
        return high, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2, rising((low + high) / 2)


def _heat(request: Request, temperature: float) -> Request:
    """Returns the request at this temperature, unless it sets its own."""
    own: Sampling | Mapping[str, object] | None = request.sampling
    if isinstance(own, Sampling) or (own and "temperature" in own):
        return request
    return replace(request, sampling={**(own or {}), "temperature": temperature})  # type: ignore[arg-type]
