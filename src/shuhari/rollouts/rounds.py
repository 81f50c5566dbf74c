"""Groups sampled in rounds, where the results so far set the length of the next hint.

A hint is the beginning of the problem's solution, as forced tokens after the prompt. The policy continues from there
and is scored in that context; the hint's tokens carry no loss. The tokens of every round are charged, also of discarded
ones. Evaluate without hints: `evaluate.rollout = "single"`.
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

from shuhari.bounds import Length, ProperShare, Share, check
from shuhari.data import ContractError, Problem, Request, Step, Trajectory, copy_with, is_tokens, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single

WEAK = 0.01  # weight of each prior of a curve, in samples
SLOPE = 10.0  # centre of the prior of `a`


@register("rollout", "hint_ladder")
@dataclass
class HintLadder:
    """Hints for hard problems: a group whose samples are all wrong is sampled again with more of the solution shown.

    Only the last sampled group counts (GHPO, Liu et al. 2025, arXiv 2507.10628). A single level is a fixed hint. Wrong
    is a `measure` of 0 or less; ungraded samples do not count, and a group without graded samples is not sampled again.
    Adds to the info of each sample, and so as a column: `hint`, the share of the solution shown. Charges `rounds`.
    Raises ValueError for levels that do not rise within [0, 1].
    """

    levels: tuple[Share, ...] = (0.0, 0.25, 0.5, 0.75)
    """Shares of the solution shown in each round, rising within [0, 1]; the first is mostly 0."""
    measure: str = "score"
    """Name of the reward that is above 0 for a right sample."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the answers."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("hint",), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    def __post_init__(self) -> None:
        check(self)
        if not self.levels or any(a >= b for a, b in pairwise(self.levels)):
            raise ValueError(f"hint_ladder: levels are {self.levels}: expected at least one, and that they rise")

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        group: list[Trajectory] = []
        for j, level in enumerate(self.levels):
            group, graded, _ = await sample_round(request, j, level, self, ctx)
            if not graded or max(graded) > 0:
                break
        return group


@register("rollout", "hint_curve")
@dataclass
class HintCurve:
    """Hints with a length chosen for a target accuracy: samples come in rounds, and a fitted curve sets the next hint.

    After each round, a curve of accuracy over the share of the solution shown is fitted to all samples so far; all
    rounds form one group (SEELE, Li et al. 2025, arXiv 2509.06923). The request's setting `hint` overrides `first`.
    Ungraded samples, the column `hint` and charges are as for `hint_ladder`. Raises ValueError for shares out of range,
    ContractError for fewer samples than rounds.
    """

    rounds: Length = 4
    """Number of rounds in which a group is sampled, at most its number of samples."""
    target: ProperShare = 0.5
    """Accuracy that the hints should lead to, in (0, 1)."""
    first: Share = 0.5
    """Share of the solution shown in the first round, in [0, 1]."""
    measure: str = "score"
    """Name of the reward, in [0, 1], whose mean is the accuracy."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the answers."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("hint",), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    @property
    def least_n(self) -> int:
        return self.rounds

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return {**self.of.accepts, "hint": self.first}

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if request.n < self.rounds:
            raise ContractError(f"hint_curve: {request.n} samples in {self.rounds} rounds: set rollout.n to more")
        share = float(request.settings.get("hint", self.first))
        group: list[Trajectory] = []
        points: tuple[tuple[float, float, int], ...] = ()
        for j in range(self.rounds):
            n = request.n * (j + 1) // self.rounds - request.n * j // self.rounds
            found, graded, shown = await sample_round(replace(request, n=n), j, share, self, ctx)
            group += [copy_with(t, request=request) for t in found]
            if graded:
                points += ((shown, sum(graded) / len(graded), len(graded)),)
                share = invert_curve(self.target, *fit_curve(points))
        return group


async def sample_round(
    request: Request, j: int, share: float, by: HintLadder | HintCurve, ctx: Ctx
) -> tuple[list[Trajectory], list[float], float]:
    """Returns (samples, graded until the measure is known; the known grades; the share shown) of round `j`, sampled
    after a hint of about `share`. Round 0 without a hint draws the same samples as the plain request."""
    steps, shown = make_hint(request.problem, share, ctx, ability(by.of, "role"))
    settings = {k: v for k, v in request.settings.items() if k != "hint"}
    ctx.charge("rounds", 1)
    key = f"{request.key}/{j}" if j else request.key
    found = await by.of.group(replace(request, settings=settings, key=key, prefix=(*request.prefix, *steps)), ctx)
    found = await ctx.grade(found, until=by.measure)
    scores = [sum_reward(t.steps, by.measure) for t in found]
    group = [copy_with(t, request=request, info={**t.info, "hint": shown}) for t in found]
    return group, [s for s in scores if s == s], shown


def make_hint(problem: Problem, share: float, ctx: Ctx, role: str = "policy") -> tuple[tuple[Step, ...], float]:
    """Returns the first round(share x length) tokens of the solution as a forced step (empty if 0 tokens), and the
    share that they make up. Raises ContractError if there is no solution in text."""
    if not share:
        return (), 0.0
    said: Any = "".join(problem.solution) if isinstance(problem.solution, tuple) else problem.solution  # type: ignore[arg-type]
    if not (isinstance(said, str) or is_tokens(said)) or not len(said):
        raise ContractError(f"problem {problem.id!r} of {problem.task} has no solution in text to hint with: {said!r}")
    ids: Any = ctx.encode_text(said, role)
    k = round(share * len(ids))
    text = {"text": ctx.text(ids[:k], role)}
    return ((Step.of("", ids[:k], role=role, info=text),) if k else ()), k / len(ids)


def predict_accuracy(h: Any, a: float, b: float, c: float) -> Any:
    """Returns the accuracy c + (1 - c) / (1 + exp(-a (h - b))) at hint share h: the three-parameter logistic model."""
    return c + (1 - c) * expit(a * (np.asarray(h) - b))


def invert_curve(target: float, a: float, b: float, c: float) -> float:
    """Returns the hint share in [0, 1] at which the predicted accuracy is `target`; 0 if it is higher without a
    hint."""
    return min(max(b + log((target - c) / (1 - target)) / a, 0.0), 1.0) if target > c else 0.0


@lru_cache(1 << 14)  # few samples a round give few outcomes, so the same curves are fitted again and again
def fit_curve(points: Sequence[tuple[float, float, int]]) -> tuple[float, float, float]:
    """Returns (a, b, c), fitted by least squares to (share, accuracy, samples) of each round, weighted by samples. Weak
    priors settle what one or two rounds leave open: a about 10, b about the first share, c about 0."""
    h, accuracy, n = np.array(points, np.float64).T

    def parameters(x: Any) -> tuple[float, float, float]:
        return SLOPE * exp(min(max(x[0], -3.0), 3.0)), x[1], x[2] ** 2 / (1 + x[2] ** 2)

    def residuals(x: Any) -> Any:
        prior = sqrt(WEAK) * np.array([x[0], x[1] - h[0], x[2]])
        return np.append(np.sqrt(n) * (predict_accuracy(h, *parameters(x)) - accuracy), prior)

    a, b, c = parameters(least_squares(residuals, [0.0, h[0], 0.3], method="lm").x)
    return a, float(b), float(c)
