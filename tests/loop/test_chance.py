"""What chance scores: by counting, on worlds where it is known, and left out where nobody knows it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from shuhari.config.evaluation import Evaluation
from shuhari.data import EMPTY, Problem, Status
from shuhari.loop.chance import measure_chance, play_randomly
from shuhari.ports.answers import Answers
from shuhari.rollouts.episode import Episode
from shuhari.tasks.source import Listed
from shuhari.testing import context


class Coin:
    """An episode of `turns` flips: a reward of 1 for action 1; action 2 is never allowed."""

    turns = 4

    def __init__(self) -> None:
        self.taken: list[int] = []

    def reset(self, problem: Problem) -> Any:
        return {"observation": 0, "action_mask": np.array([1, 1, 0])}

    def step(self, action: Any) -> Any:
        self.taken.append(int(action))
        status = Status.FINISHED if len(self.taken) == self.turns else None
        return self.reset(Problem("", "", None)), {"task": float(action)}, status


class Coins:
    """A task of such episodes, or of answers that are listed."""

    def __init__(self, *, played: bool = True, complete: bool | None = None) -> None:
        self.played, self.complete = played, complete

    def problems(self, split: str) -> Listed:
        return Listed([Problem("coins", f"{split}/{i}", 0) for i in range(200)])

    def answers(self, problem: Problem) -> Answers | None:
        return None if self.complete is None else Answers(("a", "b", "c"), (0.0, 0.5, 0.25), complete=self.complete)

    def spaces(self) -> Any:
        return (gymnasium.spaces.Discrete(1), gymnasium.spaces.Discrete(3)) if self.played else None

    def environment(self, problem: Problem) -> Any:
        return Coin() if self.played else None

    def grade(self, problem: Problem, steps: Any) -> Any:
        return EMPTY if self.complete is None else {"score": float(len(steps))}


def chance(task: Any, *, names: tuple[str, ...] = ("task",), rollout: Any = None, **settings: Any) -> dict[str, float]:
    ctx = context(task=task, reward_names=set(names))
    return measure_chance(ctx, Evaluation(**{"n": 20, **settings}), rollout or Episode())


def test_random_actions_of_a_controller() -> None:
    """80 flips: 40 are expected, with a deviation of sqrt(20); none is what the mask forbids."""
    found = chance(Coins())
    assert found == chance(Coins()) and found["length"] == 4
    assert abs(found["greedy"] * 20 - 40) < 4 * 20**0.5
    env = Coin()
    play_randomly(env, Problem("coins", "test/1", 0), Coins().spaces()[1], 100)
    assert set(env.taken) <= {0, 1}


def test_an_episode_ends_at_the_limit_of_evaluation() -> None:
    assert chance(Coins(), settings={"max_steps": 3})["length"] == 3
    assert chance(Coins(), rollout=Episode(max_steps=2))["length"] == 2


def test_the_task_grades_what_its_environment_does_not() -> None:
    """Four decisions and the closing step."""
    assert chance(Coins(complete=False), names=("score",)) == {"greedy": 5.0, "length": 4.0}


def test_all_answers_there_are() -> None:
    assert chance(Coins(played=False, complete=True), names=("score",)) == {"greedy": 0.25}


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (Coins(played=False), {}),  # text whose answers nobody lists
        (Coins(played=False, complete=False), {}),  # ... or not all of them
        (Coins(), {"n": 0}),
        (Coins(), {"measure": "style"}),  # what a grader gives
        (Coins(), {"rollout": Episode(acts=("policy", "other"))}),
    ],
)
def test_what_nobody_knows_is_left_out(task: Any, settings: dict[str, Any]) -> None:
    assert chance(task, names=("score", "task"), **settings) == {}


def test_what_cannot_be_played_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Late(Coins):
        def environment(self, problem: Problem) -> Any:
            raise RuntimeError("the simulator is down")

    assert chance(Late()) == {} and "the simulator is down" in caplog.text


def test_two_choices_have_a_mask_behind_the_other() -> None:
    class Two(Coin):
        def reset(self, problem: Problem) -> Any:
            return {"observation": 0, "action_mask": np.array([0, 1, 1, 0, 0])}

        def step(self, action: Any) -> Any:
            assert np.asarray(action).tolist() == [1, 0]
            return super().step(0)

    steps = play_randomly(Two(), Problem("two", "0", 0), gymnasium.spaces.MultiDiscrete([2, 3]), 100)
    assert len(steps) == 5
