"""Groups in rounds: how the samples so far went says what is asked next. Here it is how much of a hint is given.

A hint is the beginning of the problem's solution, as forced tokens after the prompt: what the policy says goes on from
there and is scored in that context, and the hint's own tokens are decided by nobody and carry no loss. What every round
draws is charged, also where it is thrown away. Evaluation is to be without hints: set `evaluate.rollout = "single"`.
Left out: hints inside a template of the prompt, estimates that outlive a group (a curriculum may give `hint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit

from shuhari.data import ContractError, Problem, Request, Step, Trajectory, altered, is_tokens, paid
from shuhari.ports import Ctx, Rollout
from shuhari.registry import register
from shuhari.rollouts.single import Single

WEAK = 0.01  # the weight of each prior of a curve, in samples
SLOPE = 10.0  # where the prior of `a` has its middle


@register("rollout", "hint_ladder")
@dataclass
class HintLadder:
    """A group whose samples are all wrong is asked anew with the next of `levels`, shares of the solution; the last one
    asked is the group (GHPO, Liu et al. 2025, arXiv 2507.10628). A first level above 0 hints from the start; a single
    one is a fixed hint.

    Wrong is a `measure` (a reward's name) of 0 or less; samples that nothing graded do not count, and a group without
    any graded is not asked again. `of`: how a sample comes about. Each sample carries `hint`, the share it was shown,
    as a column. Charged: `rounds`. Raises ValueError for levels that do not rise within [0, 1].
    """

    levels: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    measure: str = "score"
    of: Rollout = field(default_factory=Single)

    def __post_init__(self) -> None:
        ends = (-1e-9, *self.levels, 1 + 1e-9)
        if not self.levels or any(a >= b for a, b in pairwise(ends)):
            raise ValueError(f"hint_ladder: levels are {self.levels}: expected shares in [0, 1] that rise")

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        found = Round([], [], 0.0)
        for j, level in enumerate(self.levels):
            found = await asked(request, j, level, self.of, self.measure, ctx)
            graded = [s for s in found.scores if s == s]
            if not graded or max(graded) > 0:
                break
        return found.group


@register("rollout", "hint_curve")
@dataclass
class HintCurve:
    """The samples of a group come in `rounds`. After each, a curve of accuracy over the share of the solution shown is
    fitted to all so far, and the next is shown as much as should give the accuracy `target`; all rounds are one group
    (SEELE, Li et al. 2025, arXiv 2509.06923). The first round is shown `first`, or what the request's setting `hint`
    says.

    Accuracy: the mean `measure`, in [0, 1]; ungraded samples do not count. `of`, `hint`, charges: as for `hint_ladder`.
    The samples of a group are compared over different hints, as in the paper. Raises ValueError for shares out of range
    and for fewer samples than rounds.
    """

    rounds: int = 4
    target: float = 0.5
    first: float = 0.5
    measure: str = "score"
    of: Rollout = field(default_factory=Single)

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.target < 1 or not 0 <= self.first <= 1:
            told = f"rounds is {self.rounds}, target {self.target}, first {self.first}"
            raise ValueError(f"hint_curve: {told}: expected at least 1, a number in (0, 1) and one in [0, 1]")

    @property
    def accepts(self) -> Mapping[str, Any]:
        return {**self.of.accepts, "hint": self.first}

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if request.n < self.rounds:
            raise ContractError(f"hint_curve: {request.n} samples in {self.rounds} rounds: set rollout.n to more")
        share = float(request.settings.get("hint", self.first))
        request = replace(request, settings={k: v for k, v in request.settings.items() if k != "hint"})
        group: list[Trajectory] = []
        told: list[tuple[float, float, int]] = []
        for j in range(self.rounds):
            n = request.n * (j + 1) // self.rounds - request.n * j // self.rounds
            found = await asked(request, j, share, self.of, self.measure, ctx, n)
            group += found.group
            graded = [s for s in found.scores if s == s]
            if graded:
                told.append((found.hint, sum(graded) / len(graded), len(graded)))
                share = inverse(self.target, *fitted(tuple(told)))
        return group


# ---------------------------------------------------------------- one round


@dataclass(frozen=True, eq=False)
class Round:
    """What one round gave: samples, their grades (NaN: ungraded), and the share of the solution they were shown."""

    group: list[Trajectory]
    scores: list[float]
    hint: float


async def asked(
    request: Request, j: int, share: float, of: Rollout, measure: str, ctx: Ctx, n: int | None = None
) -> Round:
    """Round `j` of a group: `n` samples (None: the request's) after a hint of `share`. Round 0 without a hint draws
    what the request alone would have drawn. ContractError where there is no solution to hint with."""
    steps, hint = hinted(request.problem, share, ctx, getattr(of, "role", "policy"))
    key = f"{request.key}/{j}" if j else request.key
    ctx.charge("rounds", 1)
    found = await of.group(
        replace(request, n=request.n if n is None else n, key=key, prefix=(*request.prefix, *steps)), ctx
    )
    scores = [paid(t.steps, measure) for t in await ctx.grade(found)]  # the run grades the group that remains once more
    return Round([altered(t, request=request, info={**t.info, "hint": hint}) for t in found], scores, hint)


def hinted(problem: Problem, share: float, ctx: Ctx, role: str = "policy") -> tuple[tuple[Step, ...], float]:
    """The first round(share x length) tokens of the solution as a forced step (none where that is 0), and the share of
    it that they are."""
    if not share:
        return (), 0.0
    said: Any = "".join(problem.solution) if isinstance(problem.solution, tuple) else problem.solution  # type: ignore[arg-type]
    if not (isinstance(said, str) or is_tokens(said)) or not len(said):
        raise ContractError(f"problem {problem.id!r} of {problem.task} has no solution in text to hint with: {said!r}")
    ids: Any = ctx.encode(said, role)
    k = round(share * len(ids))
    text = {"text": ctx.text(ids[:k], role)}
    return ((Step.of("", ids[:k], role=role, info=text),) if k else ()), k / len(ids)


# ---------------------------------------------------------------- the curve: accuracy P over the share h of a hint


def curve(h: Any, a: float, b: float, c: float) -> Any:
    """P(h) = c + (1 - c) / (1 + exp(-a (h - b))): the three-parameter logistic model of item response theory."""
    return c + (1 - c) * expit(a * (np.asarray(h) - b))


def inverse(target: float, a: float, b: float, c: float) -> float:
    """The share in [0, 1] at which the curve says `target`: b + ln((target - c) / (1 - target)) / a; 0 where even
    without a hint it says more."""
    return min(max(b + log((target - c) / (1 - target)) / a, 0.0), 1.0) if target > c else 0.0


@lru_cache(1 << 14)  # few samples a round give few outcomes, so the same curves are asked for again and again
def fitted(told: Sequence[tuple[float, float, int]]) -> tuple[float, float, float]:
    """(a, b, c) of least squares over (share, accuracy, samples) of each round, samples as weights. Weak priors hold
    what a round or two leave open: a about 10, b about the first share, c about 0."""
    h, accuracy, n = np.array(told, np.float64).T

    def parameters(x: Any) -> tuple[float, float, float]:
        return SLOPE * exp(min(max(x[0], -3.0), 3.0)), x[1], x[2] ** 2 / (1 + x[2] ** 2)

    def residuals(x: Any) -> Any:
        prior = sqrt(WEAK) * np.array([x[0], x[1] - h[0], x[2]])
        return np.append(np.sqrt(n) * (curve(h, *parameters(x)) - accuracy), prior)

    a, b, c = parameters(least_squares(residuals, [0.0, h[0], 0.3], method="lm").x)
    return a, float(b), float(c)
