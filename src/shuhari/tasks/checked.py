"""Checks what a Gymnasium environment returns at every step, so that a broken one is named at its error: otherwise a
reward that is no number would silently drop whole episodes from training and reports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Array
from shuhari.tasks.contract import LARGEST
from shuhari.tasks.lanes import Stepped

Env = gymnasium.Env[Any, Any]
FIVE = "gymnasium's five values, (observation, reward, terminated, truncated, info)"
TWO = "gymnasium's two values, (observation, info)"
MOST = float(np.finfo(np.float32).max)  # largest absolute value in an observation: models see float32
LOOKED = 100  # observations per environment that are checked against the bounds of their Box
_OUTSIDE: set[str] = set()  # environments with a warning already given


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes everything on, and checks it. Raises ValueError for a reward that is not a finite number of at most
    LARGEST in size (with `entries`: not a row of that many), for an observation that does not match its space's shape
    or holds a NaN or an infinity, for ends that are not booleans, and for a `step` or a `reset` of the old gym. An
    environment's own error is unchanged, with a note that names the environment and the step."""

    moves: ClassVar = "at", "seen"

    def __init__(self, env: Env, called: str, entries: int = 0) -> None:
        super().__init__(env)
        self.called, self.entries = called, entries
        self.at = 0  # steps of this episode
        self.seen = 0  # observations checked against the bounds of a Box

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        try:
            found: Any = self.env.reset(seed=seed, options=options)
        except BaseException as error:
            if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
                raise ValueError(f"{self.called}: {error}: expected reset(self, *, seed=None, options=None)") from error
            error.add_note(f"raised by the reset of {self.called}")
            raise
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise ValueError(f"{self.called}: its reset returned {_show(found)}: expected {TWO}")
        self._see(found[0], self.env.observation_space)
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.at += 1
        try:
            found: Any = self.env.step(action)
        except BaseException as error:
            if isinstance(error, ValueError) and not _is_five(bare := self._ask_bare(action)):
                self._refuse(bare, error)
            error.add_note(f"raised by step {self.at} of an episode of {self.called}")
            raise
        if not _is_five(found):
            self._refuse(found)
        self._check(found[0], found[1])
        for name, over in (("terminated", found[2]), ("truncated", found[3])):
            if type(over) is not bool and not _is_truth(over):
                raise ValueError(f"{self.called}: {name} at {self._when()} is {_show(over)}: expected True or False")
        return found

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        lanes.at, envs = lanes.at + 1, lanes.envs
        space: Any = self.env.observation_space
        try:
            found = lanes.step(actions)
        except BaseException as error:
            error.add_note(f"raised by a step of {len(envs)} lanes of {self.called}")
            raise
        if not _is_five(found):
            self._refuse(found)
        (seen, reward), N = found[:2], len(envs)
        shapes = [(N, *space.shape), (N, self.entries) if self.entries else (N,), (N,), (N,)]
        if [x.shape if isinstance(x, np.ndarray) else None for x in found[:4]] != shapes:
            self._refuse_lanes(found, shapes)
        for name, over in (("terminated", found[2]), ("truncated", found[3])):
            if over.dtype.kind != "b" and (over.dtype.kind not in "iuf" or not np.isin(over, (0, 1)).all()):
                raise ValueError(f"{self.called}: {name} of its step_lanes are {over.dtype}: expected True or False")
        fine = seen.dtype.kind in "biu" or (seen.dtype.kind == "f" and _are_within(seen, MOST))
        fine = fine and _are_within(reward, LARGEST)
        looks = np.flatnonzero(lanes.seen < LOOKED) if isinstance(space, spaces.Box) else ()
        for i in looks if fine else range(N):
            envs[i].at, envs[i].seen = int(lanes.at[i]), int(lanes.seen[i])
            envs[i]._check(seen[i], reward[i])
            lanes.seen[i] = envs[i].seen
        return found

    def _check(self, seen: Any, reward: Any) -> None:
        if self.entries and np.size(reward) != self.entries:
            raise ValueError(f"{self.called}: its reward has {np.size(reward)} entries, "
                             f"and `rewards` names {self.entries}")  # fmt: skip
        if not (_are_rewards(reward, self.entries) if self.entries else _is_reward(reward)):
            expected = f"{self.entries} finite numbers" if self.entries else "a finite number"
            if np.size(reward) and np.asarray(reward).dtype.kind in "biuf" and np.isfinite(reward).all():
                expected += f" of at most {LARGEST:g} in size"
            raise ValueError(f"{self.called}: its reward at {self._when()} is {_show(reward)}: expected {expected}")
        self._see(seen, self.env.observation_space)

    def _ask_bare(self, action: Any) -> Any:
        """Returns what the unwrapped environment returns for a step, since a wrapper may fail to unpack it; five values
        if it raises, as then the error is its own. The episode is lost anyway, so it may be stepped again."""
        try:
            return self.env.unwrapped.step(action)
        except Exception:
            return (None,) * 5

    def _refuse(self, found: Any, error: Exception | None = None) -> NoReturn:
        raise ValueError(f"{self.called}: its step returned {_show(found)}: expected {FIVE}") from error

    def _refuse_lanes(self, found: Stepped, shapes: Sequence[tuple[int, ...]]) -> NoReturn:
        has = [x.shape if isinstance(x, np.ndarray) else None for x in found[:4]]
        i = next(i for i in range(4) if has[i] != shapes[i])
        what = f"{_show(found[i])}, no array" if has[i] is None else f"of shape {has[i]}"
        name = ("observations", "rewards", "terminated", "truncated")[i]
        raise ValueError(f"{self.called}: {name} of its step_lanes are {what}: expected an array of shape {shapes[i]}")

    def _see(self, seen: Any, space: Any, key: str = "") -> None:
        if isinstance(space, spaces.Dict):
            if not isinstance(seen, Mapping) or (lost := space.keys() - seen.keys()):
                has = f"lacks {min(lost)!r}" if isinstance(seen, Mapping) else f"is {_show(seen)}"
                raise ValueError(f"{self.called}: its observation{key} at {self._when()} {has}: expected {space}")
            for name, part in space.items():
                self._see(seen[name], part, f"{key} {name!r}")
            return
        x, shape = np.asarray(seen), space.shape
        kind = x.dtype.kind
        if x.shape != shape and shape is not None:
            problem = f"has shape {x.shape}: expected {shape}"
        elif kind not in "biuf":
            problem = f"is {_show(seen)}: expected numbers"
        elif kind == "f" and not _are_within(x, MOST):
            what = "a NaN" if np.isnan(x).any() else "an infinity" if np.isinf(x).any() else "what float32 has not"
            problem = f"holds {what}: {_show(seen)}: expected finite numbers"
        else:
            if self.seen < LOOKED and isinstance(space, spaces.Box):
                self._warn_outside(x, space, key)
            return
        raise ValueError(f"{self.called}: its observation{key} at {self._when()} {problem}")

    def _warn_outside(self, x: Any, space: spaces.Box, key: str) -> None:
        """Warns once if observations leave their Box; only the first ones are checked."""
        self.seen += 1
        slack = 1e-4 * (1 + np.abs(x))
        if self.called not in _OUTSIDE and bool(((x < space.low - slack) | (x > space.high + slack)).any()):
            _OUTSIDE.add(self.called)
            bounds = f"[{space.low.min():g}, {space.high.max():g}]"
            message = f"its observation{key} at {self._when()} is {_show(x.tolist())}, outside of its Box {bounds}"
            warnings.warn(f"{self.called}: {message}: models take it as it is", stacklevel=2)

    def _when(self) -> str:
        return f"step {self.at} of an episode" if self.at else "the reset"


def check_has_spaces(env: Env, called: str) -> None:
    """Raises ValueError if an environment has no observation or action space."""
    for name in ("observation_space", "action_space"):
        try:
            found = getattr(env, name)
        except AttributeError:
            found = None
        if not isinstance(found, spaces.Space):
            message = f"its {name} is {found!r}: expected a gymnasium.spaces.Space, of the class or set in __init__"
            raise ValueError(f"{called}: {message}")


def _is_five(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 5


def _is_reward(reward: Any) -> bool:
    try:
        return (type(reward) is float or np.ndim(reward) == 0) and isfinite(reward) and abs(reward) <= LARGEST
    except (TypeError, ValueError, OverflowError):  # None, a text, a ragged list
        return False


def _are_rewards(reward: Any, n: int) -> bool:
    x = np.asarray(reward)
    return x.size == n and x.dtype.kind in "biuf" and _are_within(x, LARGEST)


def _are_within(x: Array, most: float) -> bool:
    """Whether all are finite, and of at most this size. For few numbers, counting takes half the time of `all`."""
    return bool(np.count_nonzero(np.abs(x) <= most) == x.size)


def _is_truth(over: Any) -> bool:
    """Whether a value is a boolean (also of numpy or torch), or 0 or 1."""
    x = np.asarray(over)
    return x.ndim == 0 and x.dtype.kind in "biuf" and x.item() in (0, 1)


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
