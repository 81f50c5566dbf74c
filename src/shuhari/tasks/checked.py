"""What a Gymnasium environment returns, checked at every step, so that a broken one is named where it breaks: left
alone, a reward that is no number makes whole episodes vanish from what is learnt and reported."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Array
from shuhari.tasks.lanes import Stepped

Env = gymnasium.Env[Any, Any]
FIVE = "gymnasium's five values, (observation, reward, terminated, truncated, info)"
TWO = "gymnasium's two values, (observation, info)"
LOOKED = 100  # observations of an environment that are held against the bounds of their Box
_OUTSIDE: set[str] = set()  # environments whose users were warned that theirs leave it


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes everything on. Raises ValueError for a reward that is no finite number (with `entries`: no row of so many
    of them), for an observation that is not of its space's shape or holds a NaN, and for a `step` or a `reset` of the
    old gym. An error of the environment's own is left as it is, with a note that names the environment and the step."""

    moves: ClassVar = "at", "seen"

    def __init__(self, env: Env, called: str, entries: int = 0) -> None:
        super().__init__(env)
        self.called, self.entries = called, entries
        self.at = 0  # steps of this episode
        self.seen = 0  # observations held against the bounds of a Box

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        try:
            found: Any = self.env.reset(seed=seed, options=options)
        except Exception as error:
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
        except Exception as error:
            if isinstance(error, ValueError) and not _is_five(bare := self._ask_bare(action)):
                self._refuse(bare, error)
            error.add_note(f"raised by step {self.at} of an episode of {self.called}")
            raise
        if not _is_five(found):
            self._refuse(found)
        self._check(found[0], found[1])
        return found

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        lanes.at, envs = lanes.at + 1, lanes.envs
        space: Any = self.env.observation_space
        try:
            found = lanes.step(actions)
        except Exception as error:
            error.add_note(f"raised by a step of {len(envs)} lanes of {self.called}")
            raise
        if not _is_five(found):
            self._refuse(found)
        (seen, reward), N = found[:2], len(envs)
        shapes = [(N, *space.shape), (N, self.entries) if self.entries else (N,), (N,), (N,)]
        if [x.shape if isinstance(x, np.ndarray) else None for x in found[:4]] != shapes:
            self._refuse_lanes(found, shapes)
        fine = seen.dtype.kind in "biuf" and not np.isnan(seen).any()
        fine = fine and _are_finite(reward, N * (self.entries or 1))
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
        if not (_are_finite(reward, self.entries) if self.entries else _is_finite(reward)):
            expected = f"{self.entries} finite numbers" if self.entries else "a finite number"
            raise ValueError(f"{self.called}: its reward at {self._when()} is {_show(reward)}: expected {expected}")
        self._see(seen, self.env.observation_space)

    def _ask_bare(self, action: Any) -> Any:
        """What the environment itself returns for a step, without its wrappers, of which one could not take it apart;
        five where it raises, as then the error is its own. The episode is over for good: it may be stepped again."""
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
        elif kind == "f" and np.count_nonzero(np.isnan(x)):  # half of what `any()` takes of a few
            problem = f"holds a NaN: {_show(seen)}: expected numbers"
        else:
            if self.seen < LOOKED and isinstance(space, spaces.Box):
                self._warn_outside(x, space, key)
            return
        raise ValueError(f"{self.called}: its observation{key} at {self._when()} {problem}")

    def _warn_outside(self, x: Any, space: spaces.Box, key: str) -> None:
        """Say once that observations leave their Box; the first ones alone are looked at."""
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
    """ValueError where an environment does not say what it shows and takes."""
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


def _is_finite(reward: Any) -> bool:
    try:
        return (type(reward) is float or np.ndim(reward) == 0) and isfinite(reward)
    except (TypeError, ValueError):  # None, a text, a ragged list
        return False


def _are_finite(reward: Any, n: int) -> bool:
    x = np.asarray(reward)
    return x.size == n and x.dtype.kind in "biuf" and bool(np.isfinite(x).all())


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
