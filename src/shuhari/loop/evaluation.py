"""Held-out measurement: the same rollouts and graders as training, on problems that training never sees.

Every evaluation of a run asks for the same problems under the same request keys, and so samples them with the same
noise (common random numbers): two checkpoints differ by their weights, not by the luck of the draw. The price is that
the error of that draw is common to all points of a curve; it averages out over seeds, not over steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari import reduce
from shuhari.batch import STATUS, Batch
from shuhari.data import EMPTY, Array, Ramp, Request, Sampling, Status, code, nearest
from shuhari.loop.context import Context
from shuhari.measure import turns
from shuhari.ports import Learner, Rollout
from shuhari.profile import spanned
from shuhari.stats import by_problem, powers


@dataclass
class Evaluation:
    """When and how a run is measured: every `every` steps (0: at the ends only), `n` problems of `split` greedily (all,
    where it has fewer), and `samples` draws each for the mean and pass@k where that is above 1. `measure`: the reward
    that is read (default: the first of `score`, `task` and `reward`, the weighted sum, that there is); `solved`: from
    which value a sample counts as solved. `watch`: so many further problems of the split, behind those, on whose scores
    a rule that waits for a `plateau` acts, so that what is reported was chosen by nothing (0: it acts on what is
    reported)."""

    every: int = 0
    n: int = 256
    samples: int = 1
    split: str = "test"
    k: tuple[int, ...] = ()
    sampling: Sampling | None = None
    measure: str = ""
    solved: float = 1.0
    settings: Mapping[str, Any] = EMPTY
    watch: int = 0


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Grades of one evaluation: problem ids, greedy [n], sampled [n, samples]. NaN: ungraded, as an episode that ended
    in an error is. `told`: further facts, [n] each, of the greedy episodes, and `distinct` of the sampled ones;
    `tasks`: of each problem."""

    ids: list[str]
    greedy: Array
    sampled: Array | None
    told: Mapping[str, Array] = EMPTY
    tasks: Sequence[str] = ()

    def scores(self, evaluation: Evaluation) -> dict[str, float]:
        """`greedy`, `mean`, `pass@k`, the mean `length` of greedy episodes in decisions and, where some have several,
        in `turns`; `distinct`, the mean number of different texts among the samples that solve a problem, where a
        sample ends in a text; and `ungraded`, the share of all episodes, where there are any. What is ungraded counts
        nowhere else. Of several tasks, the same of each: `<name>@<task>`."""
        out = {"greedy": _mean(self.greedy), **{name: _mean(values) for name, values in self.told.items()}}
        grades = self.greedy
        if self.sampled is not None:
            k = evaluation.k or powers(self.sampled.shape[1])
            found = by_problem(self.sampled, k, evaluation.solved)
            out |= {name: _mean(values) for name, values in found.items()}
            grades = np.append(self.greedy, self.sampled)
        if ungraded := float(np.isnan(grades).mean()):
            out["ungraded"] = ungraded
        for task, part in self.parts().items():
            out |= {f"{name}@{task}": value for name, value in part.scores(evaluation).items()}
        return out

    def parts(self) -> dict[str, Outcomes]:
        """The outcomes of each task, where there are several."""
        out = {}
        for task in dict.fromkeys(self.tasks) if len(set(self.tasks)) > 1 else ():
            at = np.flatnonzero([t == task for t in self.tasks])
            told = {name: values[at] for name, values in self.told.items()}
            sampled = None if self.sampled is None else self.sampled[at]
            out[task] = Outcomes([self.ids[i] for i in at], self.greedy[at], sampled, told)
        return out


def evaluate(ctx: Context, evaluation: Evaluation, rollout: Rollout, first: int = 0) -> Outcomes:
    """Roll out the held-out problems, from index `first` on, and grade them. Charged under `evaluate/`; nothing of the
    run changes but that, and that what is in flight goes on meanwhile.
    Raises ValueError where there are no problems, or fewer samples than a k of pass@k."""
    if evaluation.samples > 1 and max(evaluation.k, default=1) > evaluation.samples:
        raise ValueError(f"[evaluate] pass@{max(evaluation.k)} of {evaluation.samples} samples: expected more samples")
    source = ctx.task.problems(evaluation.split)
    size = source.size()
    n = evaluation.n if size is None else min(evaluation.n, size - first)
    if n <= 0:
        behind = f" behind the first {first}, and [evaluate] watch asks for some" if first else ""
        raise ValueError(f"the task has no problems in split {evaluation.split!r}{behind}: nothing to evaluate")
    problems = [source[i] for i in range(first, first + n)]
    sampling = evaluation.sampling or ctx.now(ctx.sampling)
    greedy = [
        Request(p, 1, replace(sampling, greedy=True, epsilon=0.0), settings=evaluation.settings) for p in problems
    ]
    sampled = [Request(p, evaluation.samples, sampling, settings=evaluation.settings) for p in problems]
    kept = ctx.rollout, ctx.next_row, ctx.next_ticket
    ctx.rollout, ctx.next_ticket = rollout, 0
    try:
        with ctx.phase("evaluate", *((first,) if first else ()), root=True):
            once, told = _graded(greedy, ctx, evaluation)
            rest, more = _graded(sampled, ctx, evaluation) if evaluation.samples > 1 else (None, {})
    finally:
        ctx.rollout, ctx.next_row, ctx.next_ticket = kept
    told |= {name: more[name] for name in ("distinct",) if name in more}
    return Outcomes([p.id for p in problems], once[:, 0], rest, told, [p.task for p in problems])


def _graded(requests: list[Request], ctx: Context, evaluation: Evaluation) -> tuple[Array, dict[str, Array]]:
    """[problems, n] outcomes in order, and facts [problems]; a group that failed is NaN."""
    batch = ctx.wait(ctx.probe(requests, tag="evaluate"))
    n = requests[0].n
    out = np.full((len(requests), n), np.nan)
    if not len(batch):
        return out, {"length": np.full(len(requests), np.nan)}
    measure = evaluation.measure or next((n for n in ("score", "task") if n in ctx.reward_names), "reward")
    leaf = batch["leaf"]
    outcome = _outcome(batch, measure, ctx)[leaf].masked_fill(batch["status"][leaf] == STATUS[Status.ERROR], np.nan)
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
    counts = {"length": batch["mask"].sum(1)}
    if bool((batch["segment"] > 0).any()):
        counts["turns"] = turns(batch)
    rows = [place[int(p)] for p in batch["problem"]]
    told = {name: np.bincount(rows, count, len(requests)) for name, count in counts.items()}
    with np.errstate(invalid="ignore"):
        facts: dict[str, Array] = {name: total / np.array(filled) for name, total in told.items()}
    texts = [batch.arena[i].info.get("text") for i in batch["step"][leaf].tolist()] if n > 1 and "step" in batch else []
    if any(text is not None for text in texts):
        said = zip(batch["problem"][leaf].tolist(), texts, outcome.tolist(), strict=True)
        right = {(place[p], text) for p, text, value in said if value >= evaluation.solved}
        count = np.bincount([i for i, _ in right], minlength=len(requests))
        facts["distinct"] = np.where(np.isnan(out).all(1), np.nan, count)
    return out, facts


def _outcome(batch: Batch, measure: str, ctx: Context) -> Tensor:
    """[B] of the measured reward; NaN where its grader failed. KeyError for a name that nothing has ever graded, while
    something was graded."""
    if f"reward/{measure}" in batch or measure == "reward":
        return batch.outcome(f"reward/{measure}" if f"reward/{measure}" in batch else "reward")
    if measure not in ctx.reward_names and not bool(batch["reward"].isnan().all()):
        told = f"[evaluate] measure names {measure!r}, which nothing grades; {nearest(measure, ctx.reward_names)}"
        raise KeyError("; ".join([told, *ctx.problems]))
    return torch.full((len(batch),), torch.nan)


def _mean(x: Array) -> float:
    return float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")


@dataclass
class Held:
    """The last held-out scores of a run, the step they were measured at, and their `basis`."""

    scores: dict[str, float] = field(default_factory=dict)
    step: int = -1
    basis: tuple[Any, ...] = ()

    @spanned("evaluate")
    def measure(
        self, ctx: Context, evaluation: Evaluation, rollout: Rollout, learners: Mapping[str, Learner], *, again: bool
    ) -> dict[str, float]:
        """The scores now, with those of `recorded`. Where not `again`, the others of this step stand, if what they rest
        on is the same."""
        on = basis(ctx, evaluation, rollout)
        if again or not on or (self.step, self.basis) != (ctx.step, on):
            scores = evaluate(ctx, evaluation, rollout).scores(evaluation)
            self.scores, self.step, self.basis = scores, ctx.step, on
        played = {k: v for k, v in self.scores.items() if "/" not in k.partition("@")[0]}
        self.scores = {**played, **recorded(ctx, evaluation, learners)}
        return self.scores


@spanned("evaluate")
def watched(ctx: Context, evaluation: Evaluation, rollout: Rollout) -> dict[str, float]:
    """The scores of the `watch` problems behind those that are reported."""
    return evaluate(ctx, replace(evaluation, n=evaluation.watch), rollout, evaluation.n).scores(evaluation)


def recorded(ctx: Context, evaluation: Evaluation, learners: Mapping[str, Learner]) -> dict[str, float]:
    """What learners that learn from recorded problems say of held-out ones: `<part>/loss/<term>`, `<part>/<info>`. What
    cannot be said, because these have nothing to show, is counted and shown."""
    out: dict[str, float] = {}
    try:
        with ctx.phase("evaluate", "recorded", root=True):
            for name, learner in learners.items():
                if hasattr(learner, "held_out"):
                    found = learner.held_out(evaluation.split, evaluation.n, ctx)
                    out |= {f"{name}/{k}" if len(learners) > 1 else k: v for k, v in found.items()}
    except ValueError as error:
        ctx.complain("unmeasured", error)
    return out


def basis(ctx: Context, evaluation: Evaluation | None, rollout: Rollout) -> tuple[Any, ...]:
    """What scores rest on beside the weights: where it is the same, evaluating the same weights again gives the same.
    Empty where that cannot be said."""
    sampling = (evaluation and evaluation.sampling) or ctx.sampling
    if evaluation is None or isinstance(sampling.epsilon, Ramp):
        return ()
    weights = tuple((name, ctx.at(weight)) for name, weight in ctx.weights.items())
    parts = ctx.task, ctx.engine, rollout, *ctx.rewards.values()
    return replace(evaluation, every=0), sampling, weights, *map(id, parts)
