"""The check of tasks finds one that breaks its port, and passes one that does not; a run tells of such grades too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from grading import Judge, context, requests
from shuhari.config.recipe import RecipeError, load
from shuhari.data import ContractError, Problem, Step
from shuhari.loop.collect import collect_groups
from shuhari.loop.rehearsal import rehearse
from shuhari.loop.run import open_run
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Listed, answer_text
from shuhari.testing import ConformanceError, check_task

CALLS: list[int] = []
GRADES: Mapping[str, tuple[Any, str]] = {  # what `grade` gives -> what is said of it
    "a number": (0.5, r"gave the grade 0\.5: expected numbers by name, such as {'score': 1\.0}, or None"),
    "a list": ([1.0], r"gave the grade \[1\.0\]: expected numbers by name"),
    "out of range": ({"score": 37.0}, r"gave 'score' = 37: expected a number in \[0, 1\]"),
    "below": ({"score": -0.5}, r"gave 'score' = -0\.5: expected a number in \[0, 1\]"),
    "infinite": ({"score": float("inf")}, "gave 'score' = inf: expected a finite number"),
    "text": ({"score": "high"}, "gave 'score' = 'high': expected a finite number"),
    "no name": ({1: 1.0}, r"gave the grade {1: 1\.0}: expected names that are text"),
}


@dataclass
class Parity:
    """Whether a number is even; it does what `fault` says."""

    fault: str = ""
    seed: int = 0
    stamps = ("reward/score",)
    alphabet = "0123456789:"

    def problems(self, split: str) -> Any:
        first = 20 if split == "test" and self.fault != "not held out" else 0
        found: list[Any] = [Problem("parity", str(i), f"{i}: ", str(i % 2)) for i in range(first, first + 20)]
        if self.fault == "one id":
            found = [Problem("parity", "0", p.prompt, p.answer) for p in found]
        if self.fault == "one id of the test" and split == "test":
            found = [found[0], found[0]]
        if self.fault == "no problems":
            found = ["0: ", "1: "]
        if self.fault == "draws anew":
            found = [Problem("parity", str(i), f"{np.random.default_rng().integers(10**9)}: ") for i in range(4)]
        if self.fault == "objects":
            found = [Problem("parity", str(i), f"{i}: ", info={"set": {1}}) for i in range(first, first + 4)]
        if self.fault == "no prompt":
            found = [Problem("parity", str(i), None) for i in range(first, first + 4)]
        return found if self.fault == "a list of them" else Listed([] if self.fault == "none" else found)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Any:
        CALLS.append(1)
        said = answer_text(steps)
        if self.fault in GRADES:
            return GRADES[self.fault][0]
        if self.fault == "raises":
            return {"score": float(int(said) == problem.answer)}
        if self.fault == "global":
            torch.rand(())
        wrong = {"nan": {"score": float("nan")}, "nothing": {}, "always none": None, "other": {"style": 1.0}}
        wrong["counts"] = {"score": len(CALLS) / 10**9}
        return wrong[self.fault] if self.fault in wrong else {"score": float(said == problem.answer)}

    def answers(self, problem: Problem) -> Answers:
        return Answers(("0", "1"), (1.0, 0.0) if self.fault == "lists" else tuple(map(float, _right(problem))))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> Any:
        return (2, 3) if self.fault == "spaces" else None


def _right(problem: Problem) -> tuple[bool, bool]:
    return problem.answer == "0", problem.answer == "1"


@pytest.mark.parametrize(("fault", "message"), [
    *((fault, told) for fault, (_, told) in GRADES.items()),
    ("nan", r"gave 'score' = nan .*: expected a number; where there is none, leave it out"),
    ("nothing", r"gave the grade {} for .*: expected numbers by name"), ("always none", "graded none of"),
    ("raises", "raised ValueError.*expected None where it cannot be graded, for '' to problem '0'"),
    ("other", "gave 'style' .*`stamps` leave out: reward/score"), ("counts", "graded otherwise"),
    ("lists", "lists '0' with the score 1.0 and grades it 0.0"), ("global", "global generator"),
    ("one id", "problems 0 and 1 of the split 'train' both have the id '0', and are not the same"),
    ("one id of the test", "problems 0 and 1 of the split 'test' both have the id '20'"),
    ("not held out", r"problem '0' \('0: '\) is in both splits"), ("none", "no problems in the split 'train'"),
    ("no problems", "problem 0 of the split 'train' is '0: ': expected a Problem"),
    ("a list of them", r"is no source: it has no size\(\)"), ("draws anew", "another one when it is asked for again"),
    ("objects", "cannot be stored"), ("no prompt", "has the prompt None: expected text"),
    ("spaces", r"its spaces are \(2, 3\): expected None for text, or a pair of Gymnasium spaces"),
])  # fmt: skip
def test_a_task(fault: str, message: str) -> None:
    with pytest.raises(ConformanceError, match=message):
        check_task(Parity(fault))


def test_a_task_that_keeps_to_its_port() -> None:
    check_task(Parity())
    check_task(Parity("not held out"), apart=False)


@dataclass
class Door:
    """One of two doors is right; its environment does what `fault` says."""

    fault: str = ""

    def problems(self, split: str) -> Listed:
        return Listed([Problem("door", f"{split}/{i}", None) for i in range(4)])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Any:
        return {"score": 2.0 if self.fault == "grade" else float(steps[0].action == 1)}

    def environment(self, problem: Problem) -> Any:
        return Doorway(self.fault)

    def spaces(self) -> Any:
        return spaces.Discrete(2), spaces.Discrete(2)


class Doorway:
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, problem: Problem) -> int:
        return 0

    def step(self, action: Any) -> Any:
        from shuhari.data import Status

        return 7 if self.fault == "seen" else 1, {}, Status.FINISHED


def test_a_task_that_is_played() -> None:
    check_task(Door())
    for fault, message in (("grade", "'score' = 2: expected"), ("seen", "not in Discrete")):
        with pytest.raises(ConformanceError, match=message):
            check_task(Door(fault))


@pytest.mark.parametrize("given", GRADES)
def test_a_run_that_meets_such_a_grade_is_told(given: str) -> None:
    grade, message = GRADES[given]
    ctx = context(lambda p, j: grade)
    with pytest.raises(ContractError, match=rf"^Graded\.grade \(problem '0'\) {message}"):
        ctx.wait(collect_groups(requests(), ctx))


def test_a_run_is_told_of_what_a_reward_gives_that_is_no_grade() -> None:
    for given, message in ((0.5, "the grade 0.5"), ({"style": "good"}, "'style' = 'good'")):
        ctx = context(lambda p, j: None, weights={"style": 1.0}, style=Judge(lambda i: given))  # noqa: B023
        with pytest.raises(ContractError, match=rf"^Judge\.grade \(reward 'style'\) gave {message}: expected"):
            ctx.wait(collect_groups(requests(), ctx))
    ctx = context(lambda p, j: None, weights={"style": 1.0}, style=Judge(lambda i: {"style": -37.0}))
    assert ctx.wait(collect_groups(requests(), ctx))["reward"].tolist() == [[-37.0]] * 4  # any number is a reward


def test_a_run_refuses_problems_that_are_no_source_and_a_task_without_a_method() -> None:
    listed = {"task": {"name": f"{__name__}.Parity", "fault": "a list of them"}}
    told = r"Parity\.problems\('train'\) gave a list, which is no source: it has no size\(\).*Listed"
    with pytest.raises(RecipeError, match=told):
        open_run(load("baselines/grpo").with_settings(listed))
    with pytest.raises(RecipeError, match=r"Halved is no task: it has no grade\(problem, steps\)"):
        open_run(load("baselines/grpo").with_settings({"task": {"name": f"{__name__}.Halved"}}))


@pytest.mark.parametrize(("fault", "told"), [
    ("one id", r"Parity: problems 0 and 1 of the split 'train' both have the id '0', and are not the same"),
    ("no problems", r"Parity: problem 0 of the split 'train' is '0: ': expected a Problem"),
])  # fmt: skip
def test_a_rehearsal_looks_at_the_first_problems(fault: str, told: str) -> None:
    small = {"use": "causal", "hidden": 16, "layers": 1, "heads": 2}
    own = {"task": {"name": f"{__name__}.Parity", "fault": fault}, "models.policy": small, "remove": ["stage.warm-up"]}
    with pytest.raises(ContractError, match=told):
        rehearse(load("baselines/grpo").with_settings({**own, "evaluate.n": 0}))


@dataclass
class Halved:
    """A task that lacks a method."""

    def problems(self, split: str) -> Listed:
        return Listed([])
