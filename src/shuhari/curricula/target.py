"""Aims at a success rate: samples surplus candidate problems and keeps the ones that the policy is predicted to solve
about half the time, on which a group of samples learns most.

Three parts: the source of candidates, the predictor of success rates, and the rule that picks near the target.
Predictors are components of their own (`beta`, `attention`). Left out: a predictor's own state and costs.

Axes: `Q` candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from shuhari.batch import Batch
from shuhari.bounds import Fraction, Length, PositiveNumber, Share, check
from shuhari.data import Array, Info, Problem, Request, code
from shuhari.events import Collected, Event
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum, Predictor
from shuhari.ports.declares import together


@register("curriculum", "target")
@dataclass
class Target:
    """Trains on problems with a predicted success rate near a target, out of surplus candidates.

    The predictor estimates how often the policy solves each candidate; picked ones keep their order. `topk` and
    `threshold` are MoPPS (arXiv 2507.04632), `sample` is DOTS (arXiv 2506.05316), `failed` the prioritised sampling of
    Kimi k1.5 (arXiv 2501.12599, section 2.3.4). `threshold` picks at random within [low, high], filled up with the
    nearest to it; `sample` is without replacement, with probabilities proportional to exp(-|p - target| / tau),
    `failed` likewise with 1 - the expected rate, whatever the target. A repeated candidate counts once, unless there
    are too few. With `of` = 1 all problems of `candidates` are kept.

    A request carries `predicted`, the expected rate, which becomes a column. The report compares predictions with
    observations, per problem: `curriculum/predicted` and `curriculum/observed` (means, in [0, 1]) and
    `curriculum/spearman`, their rank correlation over the step's problems, if both vary. Raises ValueError for an
    outcome outside [0, 1].
    """

    predictor: Predictor
    """Component that predicts each problem's success rate, such as `beta`."""
    candidates: Curriculum
    """Curriculum that supplies the candidates, mostly `sequential`."""
    of: Length = 8
    """Number of candidates for each requested problem; 1 keeps all of them."""
    target: Fraction = 0.5
    """Success rate aimed at, in [0, 1]; 0.5 gives groups the most varied outcomes."""
    pick: Literal["topk", "threshold", "sample", "failed"] = "topk"
    """Rule that keeps candidates: `topk` nearest the target, `threshold` within [low, high], `sample` by nearness at
    random, or `failed` by failure rate at random."""
    low: Share = 0.3
    """Lowest success rate that `threshold` keeps."""
    high: Share = 0.7
    """Highest success rate that `threshold` keeps."""
    tau: PositiveNumber = 1e-3
    """Temperature of `sample`, in units of the success rate; smaller keeps nearer to the target."""
    ahead: Length = 1
    """Number of steps that one prediction picks for at once; no problem comes twice in them."""
    reward: str = "reward"
    """Column whose outcome, in [0, 1], counts as success."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"queue": [], "pairs": []})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("predicted",), self.candidates)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"target: low, high are {self.low}, {self.high}: expected low <= high")

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        queue = list(self.state["queue"])
        while len(queue) < n:
            queue += await self._pick(n * self.ahead, ctx)
        self.state["queue"] = queue[n:]
        return queue[:n]

    async def _pick(self, n: int, ctx: Ctx) -> list[Request]:
        asked = await self.candidates.select(self.of * n, ctx)
        once: dict[str, Request] = {}
        for request in asked:
            once.setdefault(name_of(request.problem), request)
        asked = list(once.values()) if len(once) >= n else asked
        p, expected = await self.predictor.predict([r.problem for r in asked], ctx)
        by = expected if self.pick == "failed" else p  # its weights are expected rates, not draws of them
        kept = self.nearest_to_target(by, n, ctx).sort().values.tolist()
        return [replace(asked[i], info={**asked[i].info, "predicted": float(expected[i])}) for i in kept]

    def nearest_to_target(self, p: Tensor, n: int, ctx: Ctx) -> Tensor:
        """Returns the n positions of p [Q] that `pick` keeps, best first."""
        rng = ctx.rng("target")
        if self.pick == "threshold":
            shuffled = torch.randperm(len(p), generator=rng)
            away = (self.low - p).clamp(min=0) + (p - self.high).clamp(min=0)
            return shuffled[away[shuffled].argsort(stable=True)][:n]
        if self.pick == "failed":
            return draw_weighted((1 - p.double()).clamp(min=1e-6).log(), n, rng)
        away = (p.double() - ctx.at(self.target)).abs()
        if self.pick == "sample":
            return draw_weighted(-away / ctx.at(self.tau), n, rng)
        return away.argsort(stable=True)[:n]

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected) and "predicted" in event.batch:
            said = dict(zip(event.batch["problem"].tolist(), event.batch["predicted"].tolist(), strict=True))
            found = count_successes(event.batch, self.reward)
            self.state["pairs"] += [[said[int(k)], s.rate] for k, s in found.items()]

    def report(self) -> Info:
        """Returns predicted and observed success rates of the problems collected since the last report."""
        pairs, self.state["pairs"] = self.state["pairs"], []
        if not pairs:
            return {}
        predicted, observed = np.array(pairs).T
        info = {"curriculum/predicted": float(predicted.mean()), "curriculum/observed": float(observed.mean())}
        rho = spearman(predicted, observed)
        return info if np.isnan(rho) else {**info, "curriculum/spearman": rho}


class Success(NamedTuple):
    """The number of graded samples of a problem, and the sum of their outcomes."""

    n: float
    total: float

    @property
    def rate(self) -> float:
        return self.total / self.n


def count_successes(batch: Batch, reward: str = "reward") -> Mapping[str, Success]:
    """Returns problem (its `name_of`) -> successes of its graded samples, without ungraded and failed ones. Raises
    ValueError for an outcome outside [0, 1], which is no success rate."""
    if not len(batch):
        return {}
    outcome = batch.outcome(reward).double()
    rows = batch["leaf"] & find_usable(batch) & ~outcome.isnan()
    outcome = outcome[rows]
    if len(outcome) and not 0 <= float(outcome.min()) <= float(outcome.max()) <= 1:
        worst = float(outcome[((outcome < 0) | (outcome > 1))][0])
        raise ValueError(f"an outcome of {reward!r} is {worst:g}: a success rate needs 0 to 1, as 'reward/score' has")
    problem, index = batch["problem"][rows].unique(return_inverse=True)
    n, total = index.bincount(), outcome.new_zeros(len(problem)).index_add_(0, index, outcome)
    return {str(p): Success(*x) for p, *x in zip(problem.tolist(), n.tolist(), total.tolist(), strict=True)}


def name_of(problem: Problem) -> str:
    """Returns the key of a problem in a predictor's state: the column `problem` as text, the same in every epoch."""
    return str(code(problem.task, problem.id))


def draw_weighted(log_weights: Tensor, n: int, rng: Generator) -> Tensor:
    """Draws n positions without replacement, proportional to exp(log_weights) [Q] (Gumbel top-k; Kool et al. 2019)."""
    u = torch.rand(len(log_weights), generator=rng, dtype=torch.float64)
    return (log_weights - (-u.log()).log()).argsort(descending=True, stable=True)[:n]


def spearman(x: Array, y: Array) -> float:
    """Returns the rank correlation of two series, with mean ranks for ties; NaN if one of them is constant."""
    from scipy.stats import spearmanr  # takes a second to import

    return float(spearmanr(x, y).statistic) if np.ptp(x) and np.ptp(y) else float("nan")
