"""Held-out measurement: the same rollouts and graders as training, on problems that training never sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from shuhari import reduce
from shuhari.context import Context
from shuhari.data import EMPTY, Request, Sampling, code
from shuhari.ports import Rollout
from shuhari.stats import pass_at_k


@dataclass
class Evaluation:
    """When and how a run is measured: every `every` steps (0: at the ends only), `n` problems of `split` greedily, and
    `samples` draws each for the mean and pass@k where that is above 1. `measure`: the reward that is read (default
    `score` where the task gives one, else `task`); `solved`: from which value a sample counts as solved."""

    every: int = 0
    n: int = 256
    samples: int = 1
    split: str = "test"
    k: tuple[int, ...] = ()
    sampling: Sampling | None = None
    measure: str = ""
    solved: float = 1.0
    settings: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Grades of one evaluation: problem ids, greedy [n], sampled [n, samples] (NaN: ungraded)."""

    ids: list[str]
    greedy: np.ndarray[Any, Any]
    sampled: np.ndarray[Any, Any] | None
    length: float

    def scores(self, evaluation: Evaluation) -> dict[str, float]:
        """`greedy`, `mean`, `pass@k` and the mean length of greedy episodes in decisions."""
        out = {"greedy": _mean(self.greedy), "length": self.length}
        if self.sampled is not None:
            out["mean"] = _mean(self.sampled)
            solved = (self.sampled >= evaluation.solved).sum(1)
            for k in evaluation.k or _powers(self.sampled.shape[1]):
                out[f"pass@{k}"] = float(np.mean([pass_at_k(self.sampled.shape[1], int(c), k) for c in solved]))
        return out


def evaluate(ctx: Context, evaluation: Evaluation, rollout: Rollout) -> Outcomes:
    """Roll out the held-out problems and grade them. Charged under `evaluate/`; nothing of the run changes but that."""
    source = ctx.task.problems(evaluation.split)
    size = source.size()
    n = evaluation.n if size is None else min(evaluation.n, size)
    if n == 0:
        raise ValueError(f"the task has no problems in split {evaluation.split!r}: nothing to evaluate")
    problems = [source[i] for i in range(n)]
    sampling = evaluation.sampling or ctx.now(ctx.sampling)
    greedy = [
        Request(p, 1, replace(sampling, greedy=True, epsilon=0.0), settings=evaluation.settings) for p in problems
    ]
    sampled = [Request(p, evaluation.samples, sampling, settings=evaluation.settings) for p in problems]
    kept = ctx.rollout, ctx.next_row, ctx.next_ticket
    ctx.rollout, ctx.next_ticket = rollout, 0
    try:
        first, length = _graded(greedy, ctx, evaluation)
        rest = _graded(sampled, ctx, evaluation)[0] if evaluation.samples > 1 else None
    finally:
        ctx.rollout, ctx.next_row, ctx.next_ticket = kept
    return Outcomes([p.id for p in problems], first[:, 0], rest, length)


def _graded(requests: list[Request], ctx: Context, evaluation: Evaluation) -> tuple[np.ndarray[Any, Any], float]:
    """[problems, n] outcomes in order; a group that failed is NaN."""
    batch = ctx.wait(ctx.probe(requests, tag="evaluate"))
    n = requests[0].n
    out = np.full((len(requests), n), np.nan)
    if not len(batch):
        return out, 0.0
    names = {name.removeprefix("reward/") for name in batch.names() if name.startswith("reward/")}
    measure = evaluation.measure or ("score" if "score" in names else next(iter(ctx.weights)))
    leaf = batch["leaf"]
    outcome = batch.outcome(f"reward/{measure}")[leaf]
    place = {code(r.problem.task, r.problem.id): i for i, r in enumerate(requests)}
    episodes, inverse = torch.unique(batch["episode"][leaf], return_inverse=True)  # in request order
    mean = reduce.mean_by(outcome, inverse, len(episodes))[0].tolist()  # a tree counts once: the mean of its leaves
    problem = torch.empty(len(episodes), dtype=torch.long).index_copy_(0, inverse, batch["problem"][leaf]).tolist()
    filled = [0] * len(requests)
    for p, value in zip(problem, mean, strict=True):
        i = place.get(p, -1)
        if i < 0 or filled[i] == n:
            raise ValueError("the rollout returned episodes that evaluation did not ask for: set [evaluate] rollout")
        out[i, filled[i]] = value
        filled[i] += 1
    return out, float(batch["mask"].sum()) / len(episodes)


def _mean(x: np.ndarray[Any, Any]) -> float:
    return float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")


def _powers(n: int) -> list[int]:
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k <= n]
