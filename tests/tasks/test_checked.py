"""Environments that break Gymnasium's interface are named where they break."""

from __future__ import annotations

import asyncio
import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shuhari.data import Problem
from shuhari.engines.time_limit import EscapeError, Overdue
from shuhari.rollouts.vector.lanes import Inline
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.checked import Checked
from shuhari.tasks.gym import Gym

FINE = np.zeros(2, np.float32)


@dataclass
class Broken(gymnasium.Env[Any, Any]):
    """Breaks at the third step of an episode, or at the reset of one after the first; good at first sight."""

    reward: Any = 1.0
    seen: Any = None
    values: int = 5
    raises: str = ""
    over: Any = False
    late: Any = False
    escapes: BaseException | None = None
    hangs: float = 0.0  # seconds
    begin: Any = (FINE, {})

    def __post_init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self.begin

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count < 3:
            return FINE, 1.0, False, False, {}
        if self.raises:
            raise (ValueError if "values" in self.raises else ZeroDivisionError)(self.raises)
        if self.escapes is not None:
            raise self.escapes
        if self.hangs:
            threading.Event().wait(self.hangs)
        whole = FINE if self.seen is None else self.seen, self.reward, self.over, self.late, {}
        return whole[: self.values]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Broken-v0", entry_point=Broken)
    yield
    del gymnasium.registry["Broken-v0"]


def third(**how: Any) -> Any:
    task = Gym("Broken-v0", kwargs=how)
    task.__dict__["copies"] = True  # the trial of copies would come upon it before
    problem = Problem("gym/Broken-v0", "train/0", None)
    episode = task.environment(problem)
    episode.reset(problem)
    return [episode.step(0) for _ in range(3)][-1]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1.0", np.array([1.0]), [1.0, 2.0]])
def test_reward_that_is_no_finite_number_is_refused(reward: Any) -> None:
    with pytest.raises(ValueError, match=r"gym/Broken-v0: its reward at step 3 of an episode is .*a finite number"):
        third(reward=reward)


@pytest.mark.parametrize("reward", [0.5, 2, True, np.float32(3), np.array(4.0), np.int64(-1)])
def test_numbers_of_any_type_are_rewards(reward: Any) -> None:
    assert third(reward=reward)[1] == {"task": float(reward)}


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (np.array([0, np.nan], np.float32), r"observation at step 3 of an episode holds a NaN"),
        (np.zeros(3, np.float32), r"at step 3 of an episode has shape \(3,\): expected \(2,\)"),
        (np.zeros(1, np.float32), r"has shape \(1,\): expected \(2,\)"),  # which would be spread over the row
        (np.array(["a", "b"]), "expected numbers"),
    ],
)
def test_observation_that_is_not_of_its_space_is_refused(seen: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"gym/Broken-v0: its .*{says}"):
        third(seen=seen)


def test_parts_of_a_nested_observation_are_named() -> None:
    env = Broken()
    env.observation_space = spaces.Dict({"arm": spaces.Dict({"joint": spaces.Box(-1, 1, (2,))})})
    env.begin = {"arm": {"joint": np.zeros(3)}}, {}
    with pytest.raises(ValueError, match=r"mine: its observation 'arm' 'joint' at the reset has shape \(3,\)"):
        Checked(env, "mine").reset()
    env.begin = {"arm": {}}, {}
    with pytest.raises(ValueError, match="mine: its observation 'arm' at the reset lacks 'joint'"):
        Checked(env, "mine").reset()


@pytest.mark.parametrize("kwargs", [{}, {"max_episode_steps": 9}])
@pytest.mark.parametrize("values", [4, 3])
def test_step_of_the_old_gym_is_refused(values: int, kwargs: Any) -> None:
    told = f"gym/Broken-v0: its step returned a tuple of {values}: expected gymnasium's five values"
    with pytest.raises(ValueError, match=told):
        third(values=values, **kwargs)


def test_reset_without_info_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gym/Broken-v0: its reset returned array.*expected gymnasium's two values"):
        Gym("Broken-v0", kwargs={"begin": FINE})


def test_error_of_the_environment_names_it() -> None:
    with pytest.raises(ZeroDivisionError, match="boom") as error:
        third(raises="boom")
    assert error.value.__notes__ == ["raised by step 3 of an episode of gym/Broken-v0"]


def test_an_error_that_sounds_like_that_of_the_old_gym_is_left_as_it_is() -> None:
    with pytest.raises(ValueError, match="values to unpack") as error:
        third(raises="not enough values to unpack (expected 5, got 4)", max_episode_steps=9)
    assert error.value.__notes__ == ["raised by step 3 of an episode of gym/Broken-v0"]


def test_vector_reward_needs_its_entries() -> None:
    env = Checked(Broken(reward=[1.0, 2.0]), "mine", 2)
    env.reset()
    for _ in range(2):
        env.env.step(0)
    assert env.step(0)[1] == [1.0, 2.0]
    env.unwrapped.reward = [1.0, math.nan]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"mine: its reward at step 2 .*expected 2 finite numbers"):
        env.step(0)


def test_lanes_refuse_it_too() -> None:
    with pytest.raises(ValueError, match=r"gym/Broken-v0: its reward at step 3 .* is nan"):
        VectorRollout(lanes=2).open(Gym("Broken-v0", kwargs={"reward": math.nan}), 0)


def test_an_observation_outside_of_its_box_is_said_once() -> None:
    """It is no error: the bounds of many environments are loose. Rounding is none either."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third(seen=FINE + np.float32(1.00001))
    with pytest.warns(UserWarning, match=r"gym/Broken-v0: its observation at step 3 .*\[5.0, 5.0\].*Box \[-1, 1\]"):
        third(seen=FINE + 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third(seen=FINE + 5)


class Bare(gymnasium.Env[Any, Any]):
    """Without spaces."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return FINE, {}


class Seedless(Broken):
    def reset(self) -> Any:  # type: ignore[override]
        return self.begin


class Unlicensed(Broken):
    def __post_init__(self) -> None:
        raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Bare, "gym/Own-v0: its observation_space is None: expected a gymnasium.spaces.Space"),
        (Seedless, "gym/Own-v0: .*unexpected keyword argument 'seed': expected reset\\(self, \\*, seed=None"),
        (Unlicensed, "no licence"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named(made: Any, message: str) -> None:
    gymnasium.register("Own-v0", entry_point=made)
    try:
        with pytest.raises((ValueError, RuntimeError), match=message) as error:
            Gym("Own-v0")
    finally:
        del gymnasium.registry["Own-v0"]
    assert "gym/Own-v0" in f"{error.value}{getattr(error.value, '__notes__', '')}"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"over": "False"}, "terminated at step 3 of an episode is 'False': expected True or False"),
        ({"late": None}, "truncated at step 3 of an episode is None: expected True or False"),
        ({"over": 2}, "terminated at step 3 of an episode is 2"),
        ({"over": [False]}, "terminated at step 3"),
        ({"seen": np.array([0, np.inf], np.float32)}, "observation at step 3 of an episode holds an infinity"),
        ({"seen": np.array([0, 1e300])}, "holds what float32 has not"),
        ({"reward": 1e308}, r"its reward at step 3 of an episode is 1e\+308: expected .* of at most 1e\+18 in size"),
        ({"reward": -1e19}, "at most"),
        ({"reward": "1"}, "its reward at step 3 of an episode is '1': expected a finite number"),
    ],
)
def test_what_would_be_trained_on_as_it_is_not_meant_is_told(how: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        third(**how)


@pytest.mark.parametrize("over", [np.True_, 1, np.array(0), np.float32(1.0), False])
def test_what_is_a_truth_value_is_taken(over: Any) -> None:
    assert bool(third(over=over)[2]) == bool(over)


def play_three(seconds: float, **how: Any) -> None:
    """Three steps of two lanes."""
    envs = Inline(lambda: Checked(Broken(**how), "gym/Broken-v0"), range(2), seconds)
    seen, reward = np.zeros((2, 2), np.float32), np.zeros(2)
    envs.start([0, 1], seen)
    for _ in range(3):
        envs.post(slice(0, 2), [0, 0], {})
        envs.poll(slice(0, 2), seen, reward, {})


ESCAPES = (SystemExit(3), GeneratorExit("x"), BaseException("odd"), asyncio.CancelledError())


@pytest.mark.parametrize("error", ESCAPES, ids=lambda e: type(e).__name__)
def test_what_would_end_the_run_without_a_word_is_an_error_of_its_step(error: BaseException) -> None:
    told = r"called exit\(3\)" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    with pytest.raises(EscapeError, match=f"it {told}") as caught:
        play_three(60.0, escapes=error)
    notes = "; ".join(caught.value.__notes__)
    with pytest.raises(EscapeError, match=f"it {told}"):  # found as the task's environments are tried out
        assert Gym("Broken-v0", kwargs={"escapes": error}).copies
    assert "raised by step 3 of an episode of gym/Broken-v0" in notes and "in lane 0" in notes


def test_a_step_that_hangs_is_ended_with_its_lane_named() -> None:
    with pytest.raises(Overdue, match=r"the step of Broken in lane 0, .* has not returned within 0\.2 s"):
        play_three(0.2, hangs=60.0)


def test_a_close_that_hangs_or_exits_is_told_and_left(caplog: pytest.LogCaptureFixture) -> None:
    envs = Inline(Gym("Broken-v0").make, range(2), 0.2)
    for env, close in zip(envs.envs.values(), (lambda: threading.Event().wait(60), lambda: exit(4)), strict=True):
        env.close = close  # type: ignore[method-assign]
    envs.close()
    assert "the close of Broken in lane 0" in caplog.text and "called exit(4)" in caplog.text
