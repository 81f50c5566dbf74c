"""Exact metrics of a policy on tasks that list all their answers: computed from probabilities, without sampling noise.

The probability of an answer is the product over its decisions, scored in one forward. Texts include the end token,
except answers of exactly `max_new` tokens. Left out: tasks of several decisions, sampling that truncates the
distribution (top-p, stop strings), and tokenizations of a text other than the model's own encoding.

Axes: `A` answers of all problems; `N` problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import rel_entr, xlogy

from shuhari.batch import Batch
from shuhari.bounds import Count, Length, Positive, ShareBelow1, check
from shuhari.data import Array, Payload, Problem, Request, Sampling, Step, Trajectory, is_tokens, nearest
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx, Model, Task, ability

ROUNDING = 1e-6  # tolerance: below it, 1 minus a sum of probabilities is rounding error


@dataclass(frozen=True, eq=False)
class Rows:
    """The answers as rows of a batch. made_for: task, model and largest length; problem [A]: index among N; score,
    label [A]; complete: whether all answers are listed; groups: name -> [N] bool over problems; long [A]: answers
    longer than `max_new`, which have probability 0."""

    made_for: tuple[Task, Model, int]
    batch: Batch
    problem: Array
    score: Array
    label: Array
    complete: bool
    groups: Mapping[str, Array]
    long: Array

    def serve(self, task: Task, model: Model, longest: int) -> bool:
        """Whether these rows belong to this task, model and length."""
        return self.made_for[0] is task and self.made_for[1] is model and self.made_for[2] == longest


@register("metric", "exact")
@dataclass
class Exact:
    """Exact accuracy, pass@k, entropy and KL of a policy on tasks that list all their answers, from probabilities and
    without sampling.

    `mean`: expected score. `pass@<k>` for each `k`: 1 - (1 - p)^k, with p the probability of an answer that scores at
    least `solved`; `solved`: the share of problems with p >= 1/2. `modes`: exp of the entropy among right answers,
    averaged over problems that have any. `mass@<label>`: probability of the answers with a label. `rest`: probability
    of unlisted strings. If all answers are listed (`Answers.complete`), with the rest as one more answer: `entropy` in
    nats, and for each role of `against` `kl.<role>`, KL(`role` || it), and `kl_from.<role>`, KL(it || `role`).

    With a `floor`: `reach`, the number of right answers within reach (of probability at least `floor`); `kept.<role>`,
    the share of the answers within that role's reach that are within reach of `role` too; `new.<role>`, the share of
    the answers within reach of `role` that are not within that role's; each over problems that have any. All are means
    over problems, repeated as `@<level>` for every level.
    """

    role: str = "policy"
    """Role of the policy that is measured, a name under `[models]`."""
    split: str = "test"
    """Name of the task's split that is measured, such as `test`."""
    n: Count = 256
    """Number of first problems of the split that are measured; problems that list no answers are skipped. 0 takes the
    whole split."""
    k: tuple[Length, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Values of k for which pass@k is reported."""
    against: tuple[str, ...] = ()
    """Roles that the policy is compared with, for its KL and, with a `floor`, its reach."""
    by: str = ""
    """Key of a problem's `info` by whose values every number is repeated; "" repeats it by task if there are
    several."""
    solved: float = 1.0
    """Smallest score of a right answer."""
    temperature: Positive = 1.0
    """Sampling temperature at which the policy is scored."""
    floor: ShareBelow1 = 0.0
    """Smallest probability, in [0, 1), of a right answer within reach; 0 leaves out these numbers."""
    _rows: Rows | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, *self.against)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        """Computes all numbers. Raises ValueError if the task lists no answers to any problem."""
        rows, now = self._rows, (ctx.task, role_model(ctx.models, self.role), ctx.sampling.max_new)
        if rows is None or not rows.serve(*now):
            rows = self._rows = self._list_answers(ctx, now)
        ctx.charge("scored", len(rows.problem) * len(self.roles))
        chances = {role: _chances(rows, role, ctx) for role in self.roles}
        found = dict(self._numbers(rows, chances))
        every = np.ones(len(next(iter(found.values()))), np.bool_)
        levels = {"": every, **{f"@{name}": inside for name, inside in rows.groups.items()}}
        return {
            f"{name}{end}": _mean(x[inside])
            for name, x in found.items()
            for end, inside in levels.items()
        }

    def _numbers(self, rows: Rows, chances: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yields (name, values [N] of the problems)."""
        p, right = chances[self.role], rows.score >= self.solved
        N = int(rows.problem.max()) + 1

        def total(x: Array) -> Array:
            return np.bincount(rows.problem, x, N)

        q = np.minimum(total(p * right), 1.0)
        yield "mean", total(p * rows.score)
        yield from ((f"pass@{k}", 1.0 - (1.0 - q) ** k) for k in self.k)
        yield "solved", (q >= 0.5).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):  # no right answer, or p = 0: NaN is left out
            share = np.where(right, p / q[rows.problem], 0.0)
            yield "modes", np.where(q > 0, np.exp(-total(xlogy(share, share))), np.nan)
        yield from ((f"mass@{label}", total(p * (rows.label == label))) for label in sorted(set(rows.label) - {""}))
        if self.floor:
            yield from self._reach({role: right & (x >= self.floor) for role, x in chances.items()}, total)
        rest = {role: np.maximum(1.0 - total(x), 0.0) for role, x in chances.items()}
        yield "rest", rest[self.role]
        if not rows.complete:
            return
        yield "entropy", -total(xlogy(p, p)) - xlogy(rest[self.role], rest[self.role])
        for role in self.against:
            for name, a, b in (("kl", self.role, role), ("kl_from", role, self.role)):
                others = rel_entr(np.maximum(rest[a], ROUNDING), np.maximum(rest[b], ROUNDING))
                yield f"{name}.{role}", total(rel_entr(chances[a], chances[b])) + others

    def _reach(
        self, within: Mapping[str, Array], total: Callable[[Array], Array]
    ) -> Iterator[tuple[str, Array]]:
        """Yields the numbers of reach; within: role -> [A] bool, the right answers within its reach."""
        mine = total(within[self.role])
        yield "reach", mine
        with np.errstate(invalid="ignore"):
            for role in self.against:
                both = total(within[self.role] & within[role])
                yield f"kept.{role}", both / total(within[role])
                yield f"new.{role}", 1.0 - both / mine

    def _list_answers(self, ctx: Ctx, made_for: tuple[Task, Model, int]) -> Rows:
        """Returns the rows of all answers, made once for a task and a model."""
        source = ctx.task.problems(self.split)
        size = source.size()
        if size is None and not self.n:
            raise ValueError(f"exact: the split {self.split!r} has no end: set n")
        count = min(self.n or size or 0, self.n if size is None else size)
        answers = ability(ctx.task, "answers")
        all_of = [(p, answers(p)) for p in map(source.__getitem__, range(count))]
        found = [(p, a) for p, a in all_of if a is not None and a.texts]
        if not found:
            message = f"the task lists no answers to the first {count} problems of {self.split!r}"
            raise ValueError(f"exact: {message}: expected one that has answers(problem) -> Answers")
        rows = [
            self._row(p, text, ctx)
            for p, a in found
            for text in a.texts
        ]
        levels = [self._level(p) for p, _ in found]
        several = self.by or len(set(levels)) > 1
        return Rows(
            made_for=made_for,
            batch=pack([t for t, _ in rows]),
            problem=np.repeat(
                np.arange(len(found)),
                [len(a.texts) for _, a in found],
            ),
            score=np.array(
                [
                    s
                    for _, a in found
                    for s in a.scores
                ],
                np.float64,
            ),
            label=np.array([
                x
                for _, a in found
                for x in a.labels or ("",) * len(a.texts)
            ]),
            complete=all(a.complete for _, a in found),
            groups={
                x: np.array([y == x for y in levels])
                for x in dict.fromkeys(levels)
            }
            if several
            else {},
            long=np.array([long for _, long in rows]),
        )

    def _level(self, problem: Problem) -> str:
        if self.by and self.by not in problem.info:
            message = f"problem {problem.id!r} has no {self.by!r} in its info; {nearest(self.by, problem.info)}"
            raise KeyError(f"exact: by names what problems are told apart by, and {message}")
        return str(problem.info[self.by]) if self.by else problem.task

    def _row(self, problem: Problem, answer: Payload, ctx: Ctx) -> tuple[Trajectory, bool]:
        """Returns (prompt and answer as a trajectory without log-probabilities, whether it is too long to be
        generated)."""
        context, long = ctx.encode(problem.prompt, self.role), False
        action = ctx.encode_answer(problem.prompt, answer, self.role)
        if is_tokens(action):
            ids: Any = action
            long = len(ids) - 1 > ctx.sampling.max_new
            if len(ids) > ctx.sampling.max_new:
                action = ids[:-1]  # an answer of this length is cut before its end token
        step = Step.of(context, action, version=-1, role=self.role, sampling=Sampling(temperature=self.temperature))
        return Trajectory(Request(problem), (step,)), long


def _chances(rows: Rows, role: str, ctx: Ctx) -> Array:
    """Returns the probability [A] that a role gives each answer."""
    need = Need((role,), "log_prob")
    logs = ctx.score(rows.batch, [need])[need].double().sum(1).numpy()
    return np.where(rows.long, 0.0, np.exp(logs))


def _mean(x: Array) -> float:
    """Returns the mean over the problems that have a value."""
    return float("nan") if np.isnan(x).all() else float(np.nanmean(x))
