"""Votes of several samples by hand: majority, weighed votes, ties, and the chance of a right majority."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest

from shuhari.data import EMPTY, ContractError, Problem, Request, Sampling, Step, Trajectory
from shuhari.ports import Ctx
from shuhari.rollouts.vote_answers import VoteAnswers, count_votes, find_part
from shuhari.testing import context


def test_most_votes_by_hand() -> None:
    assert count_votes(["a", "b", "b", "c"], [1, 1, 1, 1]) == (1, 0.5)
    assert count_votes(["a", "b", "b", "c"], [0.9, 0.2, 0.3, 0.4]) == (0, pytest.approx(0.5))  # the sure one
    assert count_votes(["a", "b", "b", "c"], [0.4, 0.2, 0.3, 0.4]) == (2, pytest.approx(0.5 / 1.3))  # the better b
    assert count_votes(["b", "a"], [1, 1]) == (0, 0.5)  # of equal ones the first
    assert count_votes(["a", "b"], [0, 0]) == (0, 0.0)


def test_equal_weights_are_a_majority() -> None:
    for said in product("abc", repeat=4):
        assert count_votes(said, [0.3] * 4)[0] == count_votes(said, [1.0] * 4)[0]


def test_the_part_that_is_compared() -> None:
    assert find_part("so  it is 12 ") == "so it is 12"
    assert find_part("12 #### 13 #### 14\n", "####") == "14"
    assert find_part(r"so \boxed{12}.", r"\boxed{", "}") == "12"
    assert find_part("no mark", "####") == "no mark"


@dataclass
class Say:
    """Gives texts in turn, each with a reward (None: ungraded)."""

    texts: list[str]
    rewards: list[float | None]
    accepts: Any = field(init=False, default_factory=lambda: EMPTY)
    role = "policy"
    stamps = ()
    asked: int = 0

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        found = []
        for _ in range(request.n):
            i, self.asked = self.asked, self.asked + 1
            step = Step.of(np.array([0], np.int32), np.array([1], np.int32), None, info={"text": self.texts[i]})
            x = self.rewards[i]
            found.append(Trajectory(request, (step,)).graded([None if x is None else {"sure": x}], by="sure"))
        return found


def ask(vote: VoteAnswers, n: int = 1) -> list[Trajectory]:
    ctx = context()

    async def grade(group: Any, until: str = "") -> Any:
        return group

    ctx.grade = grade  # type: ignore[method-assign]
    request = Request(Problem("test", "0", "?"), n, Sampling(max_new=1), key="0#0")
    found = asyncio.run(vote.group(request, ctx))
    assert all(t.request is request for t in found)
    return found


def read(found: list[Trajectory]) -> list[tuple[str, float]]:
    return [(t.steps[-1].info["text"], t.info["share"]) for t in found]


def test_each_answer_has_votes_of_its_own() -> None:
    of = Say(["x #1", "y #2", "z #2", "p #3", "q #3", "r #4"], [None] * 6)
    share = pytest.approx(2 / 3)
    assert read(ask(VoteAnswers(3, after="#", of=of), n=2)) == [("y #2", share), ("p #3", share)]


def test_votes_by_a_reward_and_an_ungraded_answer_has_none() -> None:
    of = Say(["1", "2", "2", "3"], [0.9, 0.2, 0.3, None])
    assert read(ask(VoteAnswers(4, weight="sure", of=of))) == [("1", pytest.approx(0.9 / 1.4))]


def test_a_reward_below_0_is_no_number_of_votes() -> None:
    of = Say(["1", "2"], [0.9, -0.2])
    with pytest.raises(ContractError, match="by reward 'sure': expected 0 or more, as a reward model gives"):
        ask(VoteAnswers(2, weight="sure", of=of))


@pytest.mark.parametrize("p", [0.3, 0.6])
def test_the_chance_of_a_right_majority_of_three(p: float) -> None:
    """Of two answers, right with p: by enumeration of all eight outcomes as by the binomial."""
    chance = 0.0
    for said in product("rw", repeat=3):
        weight = np.prod([p if x == "r" else 1 - p for x in said])
        chance += float(weight) * (said[count_votes(said, [1.0] * 3)[0]] == "r")
    assert chance == pytest.approx(sum(comb(3, k) * p**k * (1 - p) ** (3 - k) for k in (2, 3)))
