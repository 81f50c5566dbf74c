"""Phases by length and by kind, and what comes again: a partition, and the weights by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.curricula.phases import Phases
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.events import Collected
from shuhari.ports import Curriculum
from shuhari.testing import context

of_phases: Curriculum = Phases(None, limits=(3,))  # type: ignore[arg-type]


class Given:
    """Problems whose prompt has 1, 2, .. 6 tokens in turn, of kinds a, b, c in turn."""

    def __init__(self) -> None:
        self.at = 0

    async def select(self, n: int, ctx: Any) -> list[Request]:
        first, self.at = self.at, self.at + n
        return [Request(Problem("abc"[i % 3], str(i), np.zeros(i % 6 + 1, np.int32))) for i in range(first, self.at)]


def select(phases: Phases, n: int, at: float, step: int = 0) -> list[Problem]:
    """n problems where a share `at` of the stage is done."""
    phases.progress = at
    ctx: Any = context(step=step)
    ctx.encode = lambda prompt, role="policy": prompt
    return [r.problem for r in asyncio.run(phases.select(n, ctx))]


def graded(problem: Problem, scores: list[float]) -> list[Trajectory]:
    step = Step(None, 0, np.ones(1, bool), np.zeros(1, np.int64))
    return [Trajectory(Request(problem), (step,)).graded([{"score": x}]) for x in scores]


def tell(phases: Phases, *groups: list[Trajectory]) -> None:
    phases.observe(Collected(SimpleNamespace(), groups))  # type: ignore[arg-type]


def test_lengths_are_parted() -> None:
    """Limits 2 and 5: of 1 and 2 tokens, of 3 to 5, and 6 are of none."""
    phases = Phases(Given(), limits=(2, 5))
    first, second = select(phases, 12, 0.0), select(phases, 12, 0.5)
    assert {len(p.prompt) for p in first} == {1, 2} and {len(p.prompt) for p in second} == {3, 4, 5}  # type: ignore[arg-type]
    assert len({p.id for p in [*first, *second]}) == 24, "no problem twice"
    ids = sorted(int(p.id) for p in second)
    assert ids[:3] == [2, 3, 4], "what came in the first phase has waited"


@pytest.mark.parametrize(("at", "phase"), [(0.0, 0), (0.33, 0), (0.34, 1), (0.66, 1), (0.67, 2), (1.0, 2)])
def test_each_phase_has_as_much_of_the_stage(at: float, phase: int) -> None:
    phases = Phases(Given(), order=(("a",), ("b",), ("c",)))
    assert {p.task for p in select(phases, 5, at)} == {"abc"[phase]}
    assert phases.report() == {"curriculum/phase": phase}


def test_one_phase_is_what_the_candidates_give() -> None:
    phases, alone = Phases(Given(), limits=(6,)), Given()
    for n, at in ((4, 0.0), (7, 0.5), (1, 1.0)):
        expected = asyncio.run(alone.select(n, None))
        assert [p.id for p in select(phases, n, at)] == [r.problem.id for r in expected]


def test_what_was_hard_comes_again_by_one_over_its_rate() -> None:
    """Rates .5, .25 and 1: weights 2, 4, 1 of 7. A rate of 0 of four samples counts as 1/4."""
    phases = Phases(Given(), order=(("a",), ("b",)), again=0.25)
    a = select(phases, 4, 0.0)
    assert all(p.task == "a" for p in a), "nothing is earlier yet"
    tell(phases, graded(a[0], [1.0, 0.0]), graded(a[1], [1.0, 0.0, 0.0, 0.0]), graded(a[2], [1.0, 1.0]))
    drawn: Counter[str] = Counter()
    n = 700
    for step in range(n):
        some = select(phases, 4, 0.9, step)
        assert [p.task for p in some] == ["b", "b", "b", "a"]
        drawn[some[-1].id] += 1
    assert drawn.keys() == {p.id for p in a[:3]}, "the fourth was not graded"
    for p, share in zip(a[:3], (2 / 7, 4 / 7, 1 / 7), strict=True):
        assert abs(drawn[p.id] / n - share) < 4 * (share * (1 - share) / n) ** 0.5
    tell(phases, graded(a[0], [0.0, 0.0, 0.0, 0.0]))
    rates = [s["rate"] for s in phases.state["asked"].values() if s["phase"] == 0]
    assert rates == [0.25, 0.25, 1.0, None]


def test_a_batch_has_none_twice_and_is_filled_where_few_are_earlier() -> None:
    phases = Phases(Given(), order=(("a",), ("b",)), again=0.5)
    (one,) = select(phases, 1, 0.0)
    tell(phases, graded(one, [0.0, 1.0]))
    asked = select(phases, 8, 1.0)
    assert len(asked) == 8 == len({p.id for p in asked}) and [p.task for p in asked].count("a") == 1


def test_a_phase_without_a_problem_takes_them_as_they_come() -> None:
    given = Given()
    phases = Phases(given, order=(("nowhere",), ("b",)))
    assert len(select(phases, 3, 0.0)) == 3
    looked = given.at
    assert len(select(phases, 3, 0.0)) == 3 and given.at == looked + 3, "it is not looked for again"
    assert {p.task for p in select(phases, 3, 1.0)} == {"b"}


def test_it_says_what_it_cannot_be() -> None:
    for wrong in ({}, {"order": (("a",),), "limits": (1,)}, {"limits": (4, 2)}):
        with pytest.raises(ValueError, match="phases: "):
            Phases(Given(), **wrong)  # type: ignore[arg-type]
