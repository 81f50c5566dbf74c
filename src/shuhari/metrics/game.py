"""Exact numbers of a game of preferences: two policies answer, and one answer is preferred to the other.

For tasks that list all answers and compare any two of them (`answers`, `compare`). What is no answer has the rest of a
policy's probability, and loses to every answer. Source: Munos et al. 2023, "Nash Learning from Human Feedback", arXiv
2312.00886. Left out: tasks of several decisions.

Axes: `A` answers of one problem, and in matrices one more, the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp, rel_entr

from shuhari.bounds import AtLeast0, Count, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.metrics.exact import ROUNDING, Exact, _chances
from shuhari.needs import role_model
from shuhari.ports import Ctx, ability


@register("metric", "game")
@dataclass
class Game:
    """Exact win rates and exploitability of a policy, on tasks that list their answers and compare any two of them.

    With P(a > b) the probability that a is preferred: `exploitability`, the largest P(y > policy) of any answer y, less
    1/2, in [0, 1/2]; 0 only of a policy that nothing beats. `win.<role>` for each role of `against`: P(policy > role).
    With `tau` above 0, for each role of `against`: `gap.<role>`, how much more the best reply earns than the policy
    where both pay tau KL(.||role), in [0, 1]; 0 only of the equilibrium. All are means over problems. Raises ValueError
    if the task compares no answers or does not list all.
    """

    role: str = "policy"
    """Role of the policy that is measured, a name under `[models]`."""
    against: tuple[str, ...] = ()
    """Roles that the policy plays against, and whose KL it pays; such as `reference`."""
    tau: AtLeast0 = 0.0
    """Weight of the KL to a role in `gap`; 0 leaves the gap out."""
    split: str = "test"
    """Name of the task's split that is measured, such as `test`."""
    n: Count = 256
    """Number of first problems of the split that are measured; 0 takes the whole split."""
    _exact: Exact = field(init=False, repr=False, compare=False)
    _wins: tuple[Any, list[Array]] | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._exact = Exact(role=self.role, split=self.split, n=self.n)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, *self.against)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        now = ctx.task, role_model(ctx.models, self.role), ctx.sampling.max_new
        if self._wins is None or not self._wins[0].serve(*now):
            rows = self._exact._list_answers(ctx, now)
            if not rows.complete:
                raise ValueError(f"game: the task does not list all answers to problems of {self.split!r}")
            self._wins = rows, list(self._compare_all(ctx))
        rows, wins = self._wins
        ctx.charge("scored", len(rows.problem) * len(self.roles))
        chances = {role: _split(_chances(rows, role, ctx), rows.problem) for role in self.roles}
        found: dict[str, list[float]] = {}
        for i, w in enumerate(wins):
            for name, x in self._numbers(w, {role: p[i] for role, p in chances.items()}):
                found.setdefault(name, []).append(x)
        return {name: float(np.mean(xs)) for name, xs in found.items()}

    def _compare_all(self, ctx: Ctx) -> Iterator[Array]:
        """Yields the win rates [A + 1, A + 1] of the answers to each problem; the last is the rest."""
        compare, answers = ability(ctx.task, "compare"), ability(ctx.task, "answers")
        if compare is None:
            expected = "expected one that has compare(problem, first, second)"
            raise ValueError(f"game: the task compares no answers: {expected}")
        source = ctx.task.problems(self.split)
        size = source.size()
        count = min(self.n or size or 0, self.n if size is None else size)
        for problem in map(source.__getitem__, range(count)):
            listed = answers(problem)
            if listed is None or not listed.texts:
                continue
            texts = [str(text) for text in listed.texts]
            wins = np.full((len(texts) + 1,) * 2, 0.5)
            wins[:-1, -1], wins[-1, :-1] = 1.0, 0.0
            for i, a in enumerate(texts):
                for j, b in enumerate(texts[:i]):
                    wins[i, j] = compare(problem, a, b)
                    wins[j, i] = 1.0 - wins[i, j]
            yield wins

    def _numbers(self, wins: Array, p: Mapping[str, Array]) -> Iterator[tuple[str, float]]:
        """Yields the numbers of a problem; p: role -> [A + 1]."""
        mine = p[self.role]
        beats = wins @ mine  # [A + 1], of each answer over the policy
        yield "exploitability", float(beats.max()) - 0.5
        for role in self.against:
            other = p[role]
            yield f"win.{role}", float(mine @ wins @ other)
            if self.tau:
                base = np.maximum(other, ROUNDING)
                best = self.tau * float(logsumexp(beats / self.tau, b=base / base.sum()))
                paid = self.tau * float(rel_entr(mine, base / base.sum()).sum())
                yield f"gap.{role}", best - (0.5 - paid)


def _split(p: Array, problem: Array) -> list[Array]:
    """Returns the probabilities of each problem's answers, with the rest behind them."""
    found = np.split(p, np.flatnonzero(np.diff(problem)) + 1)
    return [np.append(x, max(1.0 - float(x.sum()), 0.0)) for x in found]
