"""The parts of a run's context, each alone; and what a fork of it shares and has of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shuhari import testing
from shuhari.data import Ramp, Sampling
from shuhari.engines.clock import Virtual, VirtualLoop
from shuhari.loop import wording
from shuhari.loop.accounts import MESSAGES, Accounts
from shuhari.loop.closing import Opened
from shuhari.loop.eventloop import EventLoop, run_in
from shuhari.loop.randomness import Streams
from shuhari.ports import CURRENT_GROUP, REPLAYING

# ---------------------------------------------------------------- random streams


def test_a_stream_of_a_group_does_not_depend_on_when_it_runs() -> None:
    early, late = Streams(7), Streams(7)
    late.step, late.within = 5, ("collect", 2)
    assert early.rng("x").initial_seed() != late.rng("x").initial_seed()
    token = CURRENT_GROUP.set("a#0")
    try:
        assert early.rng("x").initial_seed() == late.rng("x").initial_seed()
    finally:
        CURRENT_GROUP.reset(token)
    assert early.key("x") == late.key("x") != Streams(8).key("x")


def test_a_schedule_has_its_value_at_the_count() -> None:
    streams = Streams(0)
    streams.count = 2.5
    assert streams.at(Ramp(1.0, 0.0, 10)) == 0.75
    assert streams.at(0.3) == 0.3
    assert streams.now(Sampling(epsilon=Ramp(1.0, 0.0, 10))) == Sampling(epsilon=0.75)


# ---------------------------------------------------------------- costs and messages


def test_what_is_asked_for_again_is_neither_charged_nor_told() -> None:
    accounts = Accounts()
    accounts.charge("tokens", 2)
    accounts.muted = True
    accounts.charge("tokens", 3)
    accounts.record_failure("errors", ValueError("no"))
    accounts.muted = False
    token = REPLAYING.set(True)
    accounts.charge("tokens", 5)
    REPLAYING.reset(token)
    assert accounts.ledger == {"tokens": 2} and accounts.problems == []


def test_each_failure_is_counted_and_the_first_messages_are_kept() -> None:
    accounts = Accounts()
    for i in (0, 0, *range(MESSAGES + 2)):
        accounts.record_failure("errors", ValueError(str(i)), "lane")
    assert accounts.ledger == {"errors": MESSAGES + 4}
    assert accounts.problems == [f"errors (lane): ValueError: {i}" for i in range(MESSAGES)]
    accounts.fatal = (KeyError,)
    with pytest.raises(KeyError):
        accounts.record_failure("errors", KeyError("x"))
    assert accounts.ledger == {"errors": MESSAGES + 4}


# ---------------------------------------------------------------- the event loop


def test_one_loop_serves_until_time_is_of_another_kind() -> None:
    eventloop = EventLoop()
    real = eventloop.get(None)
    assert eventloop.get(None) is real
    virtual = eventloop.get(Virtual())
    assert real.is_closed() and isinstance(virtual, VirtualLoop)
    assert eventloop.get(Virtual()) is virtual
    eventloop.close()
    assert virtual.is_closed()


def test_closing_cancels_what_is_left() -> None:
    eventloop = EventLoop()
    ended = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append("cancelled")

    task = eventloop.get(None).create_task(work())
    run_in(eventloop.get(None), asyncio.sleep(0))
    assert not ended
    eventloop.close()
    assert ended == ["cancelled"] and task.cancelled()


def test_in_a_notebook_another_thread_waits() -> None:
    eventloop = EventLoop()

    async def cell() -> int:
        return run_in(eventloop.get(None), asyncio.sleep(0, 3))

    assert asyncio.run(cell()) == 3
    eventloop.close()


# ---------------------------------------------------------------- what is opened


@dataclass
class Part:
    """Writes down that it is opened and closed. `inner`: a rollout within it."""

    name: str
    told: list[Any]
    inner: Any = None
    accepts: tuple[str, ...] = field(default=(), init=False)

    async def group(self, request: Any, ctx: Any) -> list[Any]:
        return []

    def open(self, task: Any, key: Any) -> None:
        self.told.append(("open", self.name, task, key))

    def close(self) -> None:
        self.told.append(("close", self.name))


def test_rollouts_are_opened_once_with_those_inside_and_closed_in_order() -> None:
    told, opened = list[Any](), Opened()
    inner = Part("inner", told)
    outer: Any = Part("outer", told, inner)
    both: Any = {"train": (outer, "t"), "test": (outer, "u")}
    for _ in range(2):
        opened.open(both, [], len)
    assert told == [("open", "outer", "t", len("train")), ("open", "inner", "t", len("train/inner"))]
    del told[:]
    opened.close(Part("team", told), None)
    assert told == [("close", name) for name in ("outer", "inner", "team")]


def test_an_engine_is_closed_as_the_next_one_is_opened() -> None:
    told, opened = list[Any](), Opened()
    first, second = (Part(name, told) for name in ("first", "second"))
    for engine in (first, first, second):
        opened.open_engine(engine, 3, print)  # type: ignore[arg-type]
    assert told == [("open", "first", 3, print), ("close", "first"), ("open", "second", 3, print)]
    opened.close()
    assert told[-1] == ("close", "second")


# ---------------------------------------------------------------- text


class Letters:
    """Reads text: a letter a token."""

    def encode(self, prompt: Any) -> np.ndarray:
        words = prompt if isinstance(prompt, str) else "".join(m["content"] for m in prompt)
        return np.array([ord(c) for c in words], np.int32)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(map(chr, ids))


def test_words_and_messages_are_encoded_and_nothing_else() -> None:
    models: Any = {"policy": Letters()}
    assert wording.encode("ab", models, "policy").tolist() == [97, 98]  # type: ignore[union-attr]
    assert wording.encode(({"content": "a"}, {"content": "c"}), models, "policy").tolist() == [97, 99]  # type: ignore
    for other in (np.zeros(2), (), (1, 2)):
        assert wording.encode(other, models, "policy") is other  # type: ignore[arg-type]
    assert wording.decode(np.array([98, 97]), models, "policy") == "ba"
    with pytest.raises(TypeError, match="'policy' reads no text"):
        wording.encode("ab", {"policy": object()}, "policy")  # type: ignore[dict-item]


# ---------------------------------------------------------------- forks


def test_a_fork_shares_what_is_spent_and_moves_on_by_itself() -> None:
    run = testing.context(3, step=2)
    with run.phase("collect", 0):
        other = run.fork("evaluate", ticket=9)
        with other.phase("greedy"):
            assert (run.within, other.within) == (("collect", 0), ("evaluate", "greedy"))
    other.charge("tokens", 4)
    other.record_failure("errors", ValueError("no"))
    assert run.ledger == {"tokens": 4, "errors": 1} and run.problems == ["errors: ValueError: no"]
    other.step, other.next_ticket = 8, 10
    assert (run.step, run.next_ticket) == (2, 0)
    assert other.models is run.models and other.loop is run.loop and other.in_flight is run.in_flight
    run.problems = []  # as at the next step: a fork of the last one keeps its own
    assert other.problems == ["errors: ValueError: no"]
    assert not other.apart and run.fork(task=object()).apart  # type: ignore[arg-type]
    run.close()


def test_a_fork_with_accounts_of_its_own_leaves_the_runs_alone() -> None:
    run = testing.context()
    run.charge("tokens", 1)
    other = run.fork(accounts=Accounts())
    other.charge("tokens", 4)
    assert (run.ledger, other.ledger) == ({"tokens": 1}, {"tokens": 4})
    run.close()


def test_what_only_the_run_has_is_refused_where_it_is_not() -> None:
    class Away(Exception):
        pass

    other = testing.context().fork()
    other.refuse = Away

    async def work() -> None:
        pass

    with pytest.raises(Away, match="background"):
        other.background("x", work())
    with pytest.raises(Away, match="probe"):
        other.wait(other.probe([], tag="probe"))
    other.close()


def test_a_field_that_a_context_has_not_is_named_with_those_that_it_has() -> None:
    with pytest.raises(TypeError, match=r"has no 'stepp': expected one of .*rewards, .*step, "):
        testing.context(stepp=3)
