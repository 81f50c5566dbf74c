"""Each value that an environment gives, in a wrong type: a run is told of class, method, value and what was expected,
and the check of environments says the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shuhari.data import ContractError, Problem, Request, Sampling, Status, Whole
from shuhari.needs import Trace
from shuhari.rollouts.episode import Episode
from shuhari.testing import ConformanceError, ScriptedEngine, check_environment, context


def ids(text: str) -> Any:
    return np.array([ord(c) for c in text], np.int32)


class Chars:
    """A model of text, a token a character."""

    encode = staticmethod(lambda prompt: ids(str(prompt)))
    decode = staticmethod(lambda x: "".join(map(chr, x)))


GOOD: dict[str, Any] = {"first": "go", "given": ("on", {}, None), "facts": {}}


class World:
    """Gives what it is told to; its second step ends it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.facts, self.at = {**GOOD, **given}, {**GOOD, **given}["facts"], 0

    def reset(self, problem: Problem) -> Any:
        self.at = 0
        return self.given["first"]

    def step(self, action: Any) -> Any:
        self.at += 1
        seen = "" if isinstance(self.given["first"], str) else 1
        return self.given["given"] if self.at == 1 else (seen, {}, Status.FINISHED)


class Task:
    """Of text, or of the spaces Discrete(9) -> Discrete(2)."""

    def __init__(self, text: bool, **given: Any) -> None:
        self.text, self.given = text, given

    def problems(self, split: str) -> Any:
        return [Problem("t", "p", None)]

    def grade(self, problem: Problem, steps: Any) -> Any:
        return {}

    def environment(self, problem: Problem) -> Any:
        return World(self.given) if "env" not in self.given else self.given["env"]

    def spaces(self) -> Any:
        return None if self.text else (spaces.Discrete(9), spaces.Discrete(2))


def play(task: Task) -> Any:
    action = Trace(ids("a"), np.zeros(1, np.float32), 0, {"text": "a"}) if task.text else np.int64(0)
    engine = ScriptedEngine({"policy": lambda context, i: action})
    ctx = context(engine=engine, task=task, models={"policy": Chars() if task.text else SimpleNamespace()})
    (found,) = asyncio.run(Episode().group(Request(Problem("t", "p", None), 1, Sampling(), key="k"), ctx))
    return found


TEXT = {  # what is wrong -> (what, value, what is said of it)
    "reset, a truth": ("first", True, r"reset gave True to be read: expected text, messages, token ids, or a Whole"),
    "reset, a pair": ("first", ("go", {}), r"reset gave \('go', {}\) to be read: expected text"),
    "reset, nothing": ("first", None, "reset gave None: expected text"),
    "reset, empty": ("first", "", "reset gave '': expected text.* reads something first"),
    "reset, a number": ("first", 7.5, r"reset gave 7\.5 to be read: expected text"),
    "reset, a whole of none": ("first", Whole(3), r"reset gave Whole\(context=3\) to be read: expected text"),
    "step, a text": ("given", "on", r"step gave 'on': expected \(observation, rewards by name, Status or None\)"),
    "step, none": ("given", None, r"step gave None: expected \(observation, rewards by name"),
    "step, a pair": ("given", ("on", 1.0), "step gave a tuple of 2: expected"),
    "step, gymnasium's five": ("given", ("on", 1.0, True, False, {}), "step gave a tuple of 5: expected"),
    "step, a list": ("given", ["on", {}, None], r"step gave \['on', {}, None\]: expected"),
    "observation, a number": ("given", (7.5, {}, None), r"step gave 7\.5 to be read: expected text"),
    "observation, a list": ("given", (["on"], {}, None), r"step gave \['on'\] to be read: expected text"),
}
DENSE = {
    "reset, a pair": ("first", (1, {}), r"reset gave the observation \(1, {}\): expected numbers, an array"),
    "reset, nothing": ("first", None, "reset gave the observation None: expected numbers"),
    "reset, a text": ("first", "go", "reset gave the observation 'go': expected numbers"),
    "step, four": ("given", (1, 1.0, True, {}), "step gave a tuple of 4: expected"),
    "observation, nothing": ("given", (None, {}, None), "step gave the observation None: expected numbers"),
}
BOTH = {
    "rewards, a number": (1.0, None, r"step gave the rewards 1\.0: expected numbers by name, such as {'task': 1\.0}"),
    "rewards, none": (None, None, "step gave the rewards None: expected numbers by name"),
    "rewards, an array": (np.zeros(2), None, r"step gave the rewards array\(\[0., 0.\]\): expected numbers by name"),
    "rewards, no names": ({1: 1.0}, None, r"step gave the rewards {1: 1\.0}: expected names that are text"),
    "rewards, a text": ({"task": "high"}, None, "step gave 'task' = 'high': expected a finite number"),
    "rewards, infinite": ({"task": float("inf")}, None, "step gave 'task' = inf: expected a finite number"),
    "status, a truth": ({}, True, "step gave the status True: expected None where .* one of Status.FINISHED"),
    "status, a text": ({}, "finished", "step gave the status 'finished': expected None where"),
    "status, a mapping": ({}, {}, "step gave the status {}: expected None where"),
}
FACTS = {
    "facts, a list": ([1.0], r"facts has the facts \[1\.0\]: expected numbers or arrays by the name of a column"),
    "facts, a text": ({"cost": "dear"}, "facts tells 'cost' = 'dear': expected a number or an array"),
}
CASES = [(True, n, {what: v}, told) for n, (what, v, told) in TEXT.items()]
CASES += [(False, n, {what: v}, told) for n, (what, v, told) in DENSE.items()]
for text in (True, False):
    seen: Any = "on" if text else 1
    CASES += [(text, n, {"given": (seen, r, status)}, told) for n, (r, status, told) in BOTH.items()]
    CASES += [(text, n, {"given": (seen, {}, None), "facts": v}, told) for n, (v, told) in FACTS.items()]


@pytest.mark.parametrize(("text", "name", "given", "told"), CASES, ids=[f"{n} ({t})" for t, n, _, _ in CASES])
def test_a_wrong_value(text: bool, name: str, given: dict[str, Any], told: str) -> None:
    start = {} if text else {"first": 1, "given": (1, {}, None)}
    with pytest.raises(ContractError, match=rf"^World\.{told}.*\(problem 'p'\)$"):
        play(Task(text, **{**start, **given}))
    method, _, rest = told.partition(" ")
    said = rest if method == "facts" else f"its {method} {rest}"
    with pytest.raises(ConformanceError, match=rf"^World: .*{said}"):
        check_environment(Task(text, **{**start, **given}), n=3)


@pytest.mark.parametrize("text", [True, False])
def test_what_is_right(text: bool) -> None:
    start = {} if text else {"first": 1, "given": (1, {"task": 1.0}, None)}
    assert play(Task(text, **start)).status is Status.FINISHED
    for observation in ("on", "", None, ids("on"), Whole("page"), ({"role": "user", "content": "on"},)) if text else ():
        assert play(Task(text, given=(observation, {"task": np.float32(1.0)}, None))).status is Status.FINISHED


@pytest.mark.parametrize(("env", "told"), [
    ("text", r"str is not an environment: it has no reset and no step"),
    (SimpleNamespace(reset=lambda problem: "go"), "SimpleNamespace is not an environment: it has no step"),
])  # fmt: skip
def test_what_is_no_environment(env: Any, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        play(Task(True, env=env))
