"""Picked solutions: which problems by given outcomes, in what order they are shown, what is asked and remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.buffers.picked import Picked
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.events import StageStarted
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward
from shuhari.ports import Buffer
from shuhari.tasks.source import Generated, Listed
from shuhari.testing import context

buffer: Buffer = Picked()
END = 99
SCORES: list[list[float | None]] = [[1, 1, 1], [0, 1, 0], [0, 0, 0], [None, None, None], [None, 0, 1], [0, 0, 0]]


class World:
    """A context of six problems, the i-th of which is answered with given scores and solved by the id 10 + i."""

    def __init__(self, endless: bool = False) -> None:
        self.asked, self.charged = list[tuple[str, int]](), 0.0
        problems = [Problem("t", str(i), str(i), solution=str(i)) for i in range(6)]
        source = Generated(problems.__getitem__) if endless else Listed(problems)
        self.task = SimpleNamespace(problems=lambda split: source, environment=lambda problem: None)
        self.models, self.wait = {"policy": SimpleNamespace(end=END)}, asyncio.run

    def encode(self, text: str, role: str) -> Any:
        return np.array([10 + int(text)], np.int32)

    def encode_answer(self, prompt: str, text: str, role: str) -> Any:
        return np.array([10 + int(text), END], np.int32)

    def charge(self, what: str, amount: float) -> None:
        assert what == "decisions"
        self.charged += amount

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Any:
        self.asked += [(r.problem.id, r.n) for r in requests]
        group = []
        for r in requests:
            for score in SCORES[int(r.problem.id)]:
                step = Step.of(np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.float32))
                group.append(Trajectory(r, (step,)).graded([None if score is None else {"score": score}]))
        return add_reward(pack(group), context(weights={"score": 1.0}))


def shown(made: Picked, world: World) -> list[int]:
    """The problems whose solutions one draw shows."""
    (batch,) = made.draw(world)  # type: ignore[arg-type]
    assert batch.weight(made.stream).eq(1).all() and batch["logp"].isnan().all()
    assert batch["action"][:, 1].eq(END).all() and batch["mask"].all()
    return (batch["action"][:, 0] - 10).tolist()


@pytest.mark.parametrize(
    ("fields", "picked"),
    [
        ({"high": 0.34}, [1, 2, 5]),  # of 3 nothing is graded
        ({"high": 0.34, "most": 2}, [1, 2]),
        ({"low": 0.5}, [0, 4]),  # of 4 one of two graded answers is right
        ({"pool": 3}, [0, 1, 2]),
        ({"graded": False, "pool": 4}, [0, 1, 2, 3]),
        ({"graded": False, "most": 5}, [0, 1, 2, 3, 4]),
    ],
)
def test_which_problems(fields: dict[str, Any], picked: list[int]) -> None:
    assert sorted(shown(Picked(size=len(picked), **fields), World())) == picked


def test_they_are_asked_for_once_a_stage_and_walked_round_and_round() -> None:
    made, world = Picked(size=2, high=0.34, n=3), World()
    passes = [x for _ in range(6) for x in shown(made, world)]
    assert [sorted(passes[i : i + 3]) for i in range(0, 12, 3)] == [[1, 2, 5]] * 4
    assert world.asked == [(str(i), 3) for i in range(6)] and world.charged == 24
    assert len({tuple(passes[i : i + 3]) for i in range(0, 12, 3)}) > 1  # each pass in an order of its own
    made.observe(StageStarted("next"))
    shown(made, world)
    assert len(world.asked) == 12


def test_rows_have_ids_of_their_own_and_state_goes_on() -> None:
    made, world = Picked(size=2, high=0.34), World()
    ids = [next(made.draw(world))["id"].tolist() for _ in range(2)]  # type: ignore[arg-type]
    assert len({*ids[0], *ids[1]}) == 4
    other = Picked(size=2, high=0.34)
    other.state = dict(made.state)
    assert shown(other, World()) == shown(made, world)


def test_where_none_is_picked_nothing_is_learnt_or_charged_and_nothing_is_asked_again() -> None:
    made, world = Picked(size=2, low=0.9, high=0.95), World()
    for _ in range(2):
        (batch,) = made.draw(world)  # type: ignore[arg-type]
        assert batch.weight("ce").eq(0).all() and (batch["action"][:, 0] == 10).all()
    assert world.charged == 0 and len(world.asked) == 6


def test_refusals() -> None:
    with pytest.raises(ValueError, match="has no end: set pool"):
        shown(Picked(), World(endless=True))
    assert shown(Picked(size=1, pool=1, graded=False), World(endless=True)) == [0]
    with pytest.raises(ValueError, match="low <= high"):
        Picked(low=0.5, high=0.4)
