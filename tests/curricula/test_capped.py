"""Limits of length: the law by hand, what requests get, and that an answer cut by it is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from shuhari.curricula.capped import Capped
from shuhari.data import Problem, Ramp, Request, Sampling, Step
from shuhari.ports import Curriculum
from shuhari.tasks.work import Work
from shuhari.testing import context


class Given:
    """A curriculum that asks for these."""

    stamps = ()

    def __init__(self, *requests: Request) -> None:
        self.requests = requests

    async def select(self, n: int, ctx: Any) -> list[Request]:
        return list(self.requests[:n])


REQUEST = Request(Problem("t", "a", "a"))
curriculum: Curriculum = Capped(Given())


def caps(of: Capped, counts: list[float], longest: int = 32) -> list[int]:
    sampling = Sampling(max_new=longest)
    made = [asyncio.run(of.select(1, context(count=t, sampling=sampling)))[0].sampling for t in counts]
    return [s["max_new"] for s in made]  # type: ignore[index]


def test_a_cosine_from_the_longest_to_the_share_and_back() -> None:
    of = Capped(Given(REQUEST), share=0.5, period=20)
    assert caps(of, [0, 5, 10, 15, 20, 25, 30, 1000]) == [32, 24, 16, 24, 32, 24, 16, 32]
    assert caps(of, [2]) == [30]  # 16 + 8 (1 + cos 36°) = 30.47
    assert caps(Capped(Given(REQUEST), share=0.25, period=4), [0, 1, 2, 3]) == [32, 20, 8, 20]


def test_stairs_and_one_limit() -> None:
    assert caps(Capped(Given(REQUEST), share=0.5, period=4, shape="stair"), [0, 1, 2, 3, 4]) == [16, 16, 32, 32, 16]
    assert caps(Capped(Given(REQUEST), share=0.5), [0, 7]) == [16, 16]
    grows = Capped(Given(REQUEST), share=Ramp(0.5, steps=((10, 1.0),)))
    assert caps(grows, [0, 9, 10, 20]) == [16, 16, 32, 32]


def test_a_share_of_one_is_the_runs_own_limit_and_one_token_is_the_least() -> None:
    assert caps(Capped(Given(REQUEST), share=1.0, period=8), list(range(9))) == [32] * 9
    assert caps(Capped(Given(REQUEST), share=0.01), [0]) == [1]


def test_a_request_keeps_what_it_says() -> None:
    own = Request(REQUEST.problem, sampling=Sampling(max_new=5))
    made_by: Any = Request
    named, other = (made_by(REQUEST.problem, sampling={k: 3}) for k in ("max_new", "top"))
    made = Capped(Given(own, named, other))
    a, b, c = asyncio.run(made.select(3, context(sampling=Sampling(max_new=8))))
    assert a is own and b is named and dict(c.sampling) == {"top": 3, "max_new": 4}  # type: ignore[call-overload]


@pytest.mark.parametrize(("cap", "score"), [(5, 0.0), (6, 1.0)])
def test_work_that_is_cut_is_wrong(cap: int, score: float) -> None:
    """`+2=5;5` for 3+2, six characters, of which five lack the answer."""
    problem = Problem("work", "3+2", "3+2=", ";5")
    said = "+2=5;5"[:cap]
    step = Step.of(np.zeros(1, np.int32), np.zeros(cap, np.int32), np.zeros(cap, np.float32), info={"text": said})
    assert Work(terms=2).grade(problem, [step]) == {"score": score}
