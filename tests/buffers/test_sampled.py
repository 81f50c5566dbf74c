"""Answers of the policy as the stage began: which are kept by given scores, drawn as they were, told of, left out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.buffers.sampled import Sampled
from shuhari.curricula.others import Others
from shuhari.curricula.sequential import Sequential
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.events import Loaded, StageStarted
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward
from shuhari.ports import Buffer, Curriculum
from shuhari.tasks.source import Generated, Listed
from shuhari.testing import context

buffer: Buffer = Sampled()
curriculum: Curriculum = Others(Sequential())
SCORES = {"a": [1, 1, 1, 1], "b": [0, 1, 0, 1], "c": [0, 0, 0, 0], "d": [None, 1, 0, 0]}


class World:
    """A context whose policy answers by given scores; the n-th answer to the i-th problem says 10 i + n."""

    def __init__(self, scores: Mapping[str, Sequence[float | None]], seed: int = 0) -> None:
        self.scores, self.asked, self.told = scores, list[str](), list[Any]()
        self.task = SimpleNamespace(problems=lambda split: Listed([Problem("t", x, x) for x in scores]))
        self.tell, self.rng, self.wait = self.told.append, context(seed).rng, asyncio.run

    def phase(self, *name: object) -> Any:
        return nullcontext()

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Any:
        self.asked += [f"{r.problem.id}{r.n}" for r in requests]
        group = []
        for r in requests:
            for n, score in enumerate(self.scores[r.problem.id]):
                says = np.array([10 * list(self.scores).index(r.problem.id) + n], np.int32)
                step = Step.of(np.zeros(1, np.int32), says, np.full(1, -n, np.float32))
                grade = None if score is None else {"score": score}
                group.append(Trajectory(r, (step,)).graded([grade]))
        return add_reward(pack(group), context(weights={"score": 1.0}))


def drawn(made: Sampled, world: World) -> list[int]:
    """What is said in one draw, all of one stream."""
    (batch,) = made.draw(world)  # type: ignore[arg-type]
    assert batch.weight(made.stream).eq(1).all()
    assert batch["logp"][:, 0].tolist() == [-(x % 10) for x in batch["action"][:, 0].tolist()]  # as it was sampled
    return batch["action"][:, 0].tolist()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"low": 1.0}, [0, 1, 2, 3]),
        ({"low": 0.5, "keep": "right"}, [0, 1, 2, 3, 11, 13]),
        ({"low": 0.25, "keep": "one"}, [0, 11, 31]),
        ({"low": 0.1, "high": 0.9}, [10, 11, 12, 13, 31, 32, 33]),  # of d one answer is not graded: a third is right
        ({"high": 0.0}, [20, 21, 22, 23]),
        ({"pool": 2, "keep": "one"}, [0, 11]),
        ({"keep": "one", "solved": 0.0}, [0, 10, 20, 31]),
    ],
)
def test_what_is_kept(fields: dict[str, Any], says: list[int]) -> None:
    assert sorted(drawn(Sampled(**fields), World(SCORES))) == says


def test_they_are_asked_for_once_a_stage_and_told_of() -> None:
    made, world = Sampled(n=4, low=0.5, keep="one", stream="rehearse"), World(SCORES)
    assert made.wanted() == 0
    for _ in range(3):
        assert drawn(made, world) == [0, 11]
    assert world.asked == ["a4", "b4", "c4", "d4"]
    (loaded,) = world.told
    assert isinstance(loaded, Loaded) and loaded.batch["action"][:, 0].tolist() == [0, 11]
    made.observe(StageStarted("next"))
    drawn(made, world)
    assert len(world.asked) == 8 and len(world.told) == 2


def test_a_draw_is_of_so_many_answers_at_random() -> None:
    made = Sampled(size=2, draws=2)
    seen = [tuple(sorted(b["action"][:, 0].tolist())) for seed in range(8) for b in made.draw(World(SCORES, seed))]
    assert all(len(set(s)) == 2 for s in seen) and len(set(seen)) > 8


def test_of_nothing_one_answer_is_drawn_that_weighs_nothing() -> None:
    world = World({"a": [0, 0]})
    (batch,) = Sampled(low=1.0, stream="rehearse").draw(world)  # type: ignore[arg-type]
    assert len(batch) == 1 and not batch.weight("rehearse").any() and not world.told


def test_a_split_without_end_wants_a_pool() -> None:
    world = World(SCORES)
    world.task = SimpleNamespace(problems=lambda split: Generated(lambda i: Problem("t", "a", "a")))
    with pytest.raises(ValueError, match="sampled: the split 'train' has no end: set pool"):
        next(Sampled().draw(world))  # type: ignore[arg-type]


# ---------------------------------------------------------------- the others


def others(n: int, told: Sequence[str] = (), **fields: Any) -> str:
    made, world = Others(Sequential(shuffle=False), **fields), World(SCORES)
    step = Step.of(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32))
    if told:
        batch = pack([Trajectory(Request(Problem("t", x, x)), (step,)) for x in told])
        made.observe(Loaded(batch))
    return "".join(r.problem.id for r in asyncio.run(made.select(n, world)))  # type: ignore[arg-type]


def test_what_the_data_set_has_is_not_asked_for() -> None:
    assert others(4) == "abcd"
    assert others(2, "ac") == "bd" and others(4, "ac") == "bdbd"
    assert others(2, "abcd", looks=1) == "ab"  # there are no others
    assert others(3, "abd", looks=1) == "cab"


def test_the_buffer_and_the_curriculum_divide_the_problems() -> None:
    world, made, rest = World(SCORES), Sampled(low=0.5), Others(Sequential(shuffle=False))
    list(made.draw(world))  # type: ignore[arg-type]
    rest.observe(world.told[0])
    asked = asyncio.run(rest.select(2, world))  # type: ignore[arg-type]
    assert [r.problem.id for r in asked] == ["c", "d"]
