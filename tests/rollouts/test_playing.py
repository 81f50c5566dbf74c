"""An episode as it grows: contexts that are replaced, environments that ask models, actions as they are taken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.data import ContractError, Problem, Request, Sampling, Status, Whole
from shuhari.kernel.pack import pack
from shuhari.needs import Trace
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.playing import EnvironmentFailed, Playing
from shuhari.testing import context


def ids(text: str) -> Any:
    return np.array([ord(c) for c in text], np.int32)


def words(x: Any) -> str:
    return "".join(map(chr, x))


class Letters:
    """An engine whose policies say a, b, c, ... in capitals for the role `loud`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    async def sample(self, role: str, context: Any, sampling: Any, n: int = 1, *, key: Any) -> list[Trace]:
        await asyncio.sleep(0)
        text = chr((ord("A") if role == "loud" else ord("a")) + len(self.asked))
        self.asked.append((role, words(context), key))
        return [Trace(ids(text), np.float32([-1]), 0, {"text": text})]


class World:
    """Answers from a list, then ends."""

    def __init__(self, *answers: Any, first: Any = "go") -> None:
        self.answers, self.first, self.got = list(answers), first, list[Any]()

    def reset(self, problem: Problem) -> Any:
        return self.first

    def step(self, action: Any) -> Any:
        self.got.append(action)
        answer = self.answers.pop(0)
        return answer, {}, None if self.answers else Status.FINISHED


class Chars:
    """A model of text, a token a character, that only reads."""

    encode, decode = staticmethod(ids), staticmethod(words)


def made(world: Any) -> Any:
    task = SimpleNamespace(environment=lambda problem: world)
    return context(engine=Letters(), task=task, models={"policy": Chars(), "loud": Chars()})


def play(world: Any, **fields: Any) -> tuple[Any, Any]:
    ctx = made(world)
    [trajectory] = asyncio.run(Episode(**fields).group(Request(Problem("t", "p", None), 1, Sampling(), key="k"), ctx))
    return trajectory, ctx


def test_a_whole_observation_takes_the_place_of_the_context() -> None:
    trajectory, ctx = play(World("<1>", Whole("page "), "<3>", Whole(ids("end"))))
    assert [c for _, c, _ in ctx.engine.asked] == ["go", "goa<1>", "page ", "page c<3>"]
    assert words(trajectory.steps[-1].context) == "end"
    assert [s.info.get("observation") for s in trajectory.steps] == ["<1>", "page ", "<3>", "end", None]
    batch = pack([trajectory])
    assert batch["mask"].sum(1).tolist() == [2, 2, 0] and batch["parent"].tolist() == [-1, 0, 1]


def test_what_the_world_said_is_kept_as_text_and_nothing_where_it_was_silent() -> None:
    trajectory, _ = play(World("", None, ids("xy"), "z"))
    assert [s.info.get("observation") for s in trajectory.steps] == [None, None, "xy", "z", None]


def test_roles_take_turns_and_the_keys_of_their_noise_differ() -> None:
    trajectory, ctx = play(World("1", "2", "3"), acts=("policy", "loud"))
    assert [(r, c) for r, c, _ in ctx.engine.asked] == [("policy", "go"), ("loud", "goa1"), ("policy", "goa1B2")]
    assert [s.role for s in trajectory.steps] == ["policy", "loud", "policy", "policy"]
    assert len({key for *_, key in ctx.engine.asked}) == 3
    assert Episode(acts=("a", "b")).roles == ("a", "b") and Episode(role="a").roles == ("a",)


class Court(World):
    """Names who is at turn."""

    def __init__(self, *answers: Any, turns: Any) -> None:
        super().__init__(*answers)
        self.turns = list(turns)

    def turn(self) -> Any:
        return self.turns.pop(0)


def test_an_environment_says_who_is_at_turn() -> None:
    """It is asked after the reset and after each step but the last; None leaves it to the cycle of `acts`."""
    court = Court("1", "2", "3", "4", turns=["loud", "loud", "policy", None])
    trajectory, ctx = play(court, acts=("policy", "loud"))
    assert [(r, c) for r, c, _ in ctx.engine.asked] == [
        ("loud", "go"), ("loud", "goA1"), ("policy", "goA1B2"), ("loud", "goA1B2c3")]  # fmt: skip
    assert [s.role for s in trajectory.steps] == ["loud", "loud", "policy", "loud", "loud"] and not court.turns


def test_who_is_at_turn_is_one_of_those_that_act() -> None:
    with pytest.raises(ContractError, match=r"Court.turn gave 'lout' after a reset; did you mean 'loud'"):
        play(Court("1", turns=["lout"]), acts=("policy", "loud"))


def test_an_environment_may_ask_a_model_and_take_a_decision_as_it_is() -> None:
    class User(World):
        """A simulated user: another role says what is observed, from the first word on."""

        def bind(self, ctx: Any, key: Any) -> None:
            self.ctx, self.key = ctx, key

        async def reset(self, problem: Problem) -> Any:
            return (await self.ctx.engine.sample("loud", ids(""), None, key=(*self.key, "first")))[0].action

        def takes(self, trace: Trace) -> Any:
            return trace.version

        async def step(self, action: Any) -> Any:
            answer, reward, status = super().step(action)
            [said] = await self.ctx.engine.sample("loud", ids(answer), None, key=(*self.key, len(self.got)))
            return said.action, reward, status

    world = User("1", "2")
    trajectory, ctx = play(world)
    assert [(r, c) for r, c, _ in ctx.engine.asked] == [
        ("loud", ""), ("policy", "A"), ("loud", "1"), ("policy", "AbC"), ("loud", "2"),
    ]  # fmt: skip
    assert world.got == [0, 0] and world.key == ("k", "environment", 0)
    assert [s.role for s in trajectory.steps] == ["policy"] * 3  # what it said is no step of the policy's


def test_another_world_than_the_tasks_and_none_at_all() -> None:
    class Elsewhere:
        def environment(self, request: Any, ctx: Any) -> Any:
            return World("x", first="there") if request.settings else ctx.task.environment(request.problem)

    ctx = made(World("y", first="here"))
    rollout, request = Episode(environments=Elsewhere()), Request(Problem("t", "p", None), 1, Sampling(), key="k")
    for settings, seen in (({}, "here"), ({"max_steps": 2}, "there")):
        one = Request(request.problem, 1, request.sampling, settings=settings, key="k")
        [trajectory] = asyncio.run(rollout.group(one, ctx))
        assert words(trajectory.steps[0].context) == seen


def test_a_rollout_of_ones_own_decides_in_between() -> None:
    async def go() -> Playing:
        world = World("1", "2", "3")
        own = Playing(world, Request(Problem("t", "p", None), key="k"), made(world))
        await own.begin()
        await own.decide()
        plan = await own.ask(ids("plan?"))
        await own.give("z")
        await own.act(plan)
        return own

    own = asyncio.run(go())
    assert own.env.got == ["a", "z", "b"] and own.moves == 3 and own.decided == 3
    assert [words(s.context) for s in own.steps] == ["go", "plan?", "goa1", "goa1z2"]
    assert [bool(s.mask.all()) for s in own.steps] == [True, True, False, True]
    trajectory = own.trajectory()
    assert trajectory.status is Status.FINISHED and words(trajectory.steps[-1].context) == "goa1z2b3"


def test_a_failure_is_the_environments_and_names_what_it_was() -> None:
    async def go() -> None:
        own = Playing(World(), Request(Problem("t", "p", None), key="k"), made(None))
        await own.begin()
        with pytest.raises(EnvironmentFailed, match="IndexError: pop from empty list"):
            await own.decide()

    asyncio.run(go())


def test_an_error_of_a_step_or_a_reset_says_whose_it_is() -> None:
    trajectory, ctx = play(World())
    assert trajectory.status is Status.ERROR
    place = "raised by step 1 of an episode of World"
    assert ctx.problems == [f"errors (environment): IndexError: pop from empty list ({place})"]

    class Shut(World):
        def reset(self, problem: Any) -> Any:
            raise KeyError("door")

    with pytest.raises(KeyError) as told:
        play(Shut())
    assert told.value.__notes__ == ["raised by the reset of Shut"]
