"""Any Gymnasium environment as a task: `gym/CartPole-v1`.

An episode's seed is a hash of its problem, so episodes repeat. Observations and actions may be Box or Discrete spaces;
others are refused with the wrapper that helps. A vectorised rollout takes bare environments from `make`, and saves
them by `snapshot` and `restore`. Left out: a score in [0, 1], which Gymnasium does not define; evaluation reads the
return, `task`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import EMPTY, Array, Payload, Problem, Status, Step, code
from shuhari.registry import register
from shuhari.tasks.snapshots import Env, Recorder, copies, repeats, restore, snapshot, thawed
from shuhari.tasks.source import Generated, check_sizes, check_split

__all__ = ["Episode", "Gym", "restore", "snapshot"]

# where Gymnasium keeps a family of environments -> what installs the libraries under it
_INSTALL = {
    "mujoco": 'pip install "shuhari[control]"',
    "box2d": 'pip install swig && pip install "gymnasium[box2d]"',
    "toy_text": 'pip install "gymnasium[toy-text]"',
    "classic_control": 'pip install "gymnasium[classic-control]"',
    "phys2d": 'pip install "gymnasium[jax]"',
    "tabular": 'pip install "gymnasium[jax]"',
}


@register("task", "gym")
@dataclass
class Gym:
    """A Gymnasium environment, named as `gym/<id>`; the reward is `task`.

    path: the id (`CartPole-v1`; of another package `module:id`). kwargs: for `gymnasium.make`, `max_episode_steps`
    among them. test_size: episodes of the test split. seed: moves the training
    episodes; those of the test split are the same under every seed, so that runs of several seeds compare.
    Raises LookupError for an unknown id, ModuleNotFoundError with the command that mends it for a missing library,
    ValueError for spaces that no model here reads.
    """

    path: str = ""
    kwargs: Mapping[str, Any] = EMPTY
    test_size: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("task gym: an id is missing: expected gym/<id>, for example gym/CartPole-v1")
        check_sizes(f"gym/{self.path}", 0.5, self.test_size)
        env = self._bare()
        try:
            _check_space(self.path, "observation", env.observation_space)
            _check_space(self.path, "action", env.action_space)
            self._spaces = env.observation_space, env.action_space
        finally:
            env.close()

    @classmethod
    def preview(cls) -> dict[str, Any]:
        return {"name": "gym/<id>", "spaces": "of the environment; CartPole-v1: Box(4) -> Discrete(2)"}

    def problems(self, split: str) -> Generated:
        """One problem an episode: without end for `train`, `test_size` of them for `test`, whose seeds are odd and
        no others are."""
        count = self.test_size if check_split(split) == "test" else None
        return Generated(lambda i: Problem(f"gym/{self.path}", f"{split}/{i}", None), count)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Nothing to add to the rewards of the steps."""
        return EMPTY

    def environment(self, problem: Problem) -> Episode:
        return Episode(self)

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """(observation space, action space)."""
        return self._spaces

    def make(self) -> Env:
        """A fresh environment for a vectorised rollout. Where copying its attributes does not bring it back, it comes
        in a `Recorder`, so that `snapshot` and `restore` replay it. Seed its first reset."""
        env = self._bare()
        return env if self.copies else Recorder(env)

    @cached_property
    def copies(self) -> bool:
        """Whether a snapshot is a copy of attributes (else a replay): found out once, by trying."""
        if copies(self._bare):
            return True
        if not repeats(self._bare):
            warnings.warn(
                f"gym/{self.path} does not repeat itself from its seed: a resumed run will differ from one that was "
                "never stopped",
                stacklevel=2,
            )
        return False

    def _bare(self) -> Env:
        if ":" not in self.path and self.path not in gymnasium.registry:
            raise LookupError(f"gym/{self.path}: {_unknown(self.path)}")
        try:
            return gymnasium.make(self.path, disable_env_checker=True, **self.kwargs)
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise ModuleNotFoundError(f"gym/{self.path}: {_missing(self.path, error)}") from error
        except gymnasium.error.UnregisteredEnv:
            raise LookupError(f"gym/{self.path}: {_unknown(self.path)}") from None
        except (gymnasium.error.Error, ImportError) as error:  # moved or withdrawn
            raise LookupError(f"gym/{self.path}: {error}") from None
        except TypeError as error:
            raise ValueError(f"gym/{self.path}: kwargs {dict(self.kwargs)}: {error}") from None


class Episode:
    """One episode of a Gymnasium environment. Observations: float32 (Box), uint8 (images), int64, or an int."""

    def __init__(self, task: Gym) -> None:
        self.task, self.env = task, task.make()
        self.observation, self.action = task.spaces()
        self.last: Payload = None
        self.ended = True

    def reset(self, problem: Problem) -> Payload:
        """The first observation of the episode that the problem's hash seeds, or of its `start` snapshot."""
        if problem.start is not None:
            return self.restore(problem.start)
        held = problem.id.startswith("test/")
        seed = code(problem.task, problem.id, 0 if held else self.task.seed) % 2**30 * 2 + held
        self.last, self.ended = observed(self.env.reset(seed=seed)[0], self.observation), False
        return self.last

    def step(self, action: Any) -> tuple[Payload, dict[str, float], Status | None]:
        """(observation, {"task": reward}, how the episode ended if it did). RuntimeError after the end."""
        if self.ended:
            raise RuntimeError(f"gym/{self.task.path}: the episode has ended: reset before the next step")
        taken = acted_as(action, self.action)
        observation, reward, terminated, truncated, _ = self.env.step(taken)
        self.last, self.ended = observed(observation, self.observation), bool(terminated or truncated)
        status = Status.FINISHED if terminated else Status.TRUNCATED if truncated else None
        return self.last, {"task": float(reward)}, status

    def snapshot(self) -> Payload:
        return {"env": snapshot(self.env), "last": self.last, "ended": self.ended}

    def restore(self, snapshot: Payload) -> Payload:
        """Back to a snapshot; the observation there."""
        s: Any = snapshot
        restore(self.env, s["env"])
        self.last, self.ended = thawed(s["last"]), bool(s["ended"])
        return self.last


def observed(observation: Any, space: spaces.Space[Any]) -> int | Array:
    """An observation as a context. Integer boxes become int64, since one-dimensional int32 arrays are token ids."""
    if isinstance(space, spaces.Discrete):
        return int(observation)
    kind = space.dtype.kind if space.dtype is not None else "f"
    dtype: Any = np.float32 if kind == "f" else np.uint8 if space.dtype == np.uint8 else np.int64
    return np.array(observation, dtype)  # a copy: some environments hand out their own state


def acted_as(action: Any, space: spaces.Space[Any]) -> int | Array:
    """A decision as the environment takes it. ValueError where it does not fit the space's shape or range."""
    if isinstance(space, spaces.Discrete):
        index = int(np.asarray(action).item())
        if not 0 <= index < space.n:
            raise ValueError(f"the action is {index}: expected 0..{space.n - 1}")
        return index
    taken = np.asarray(action, space.dtype)
    if taken.shape != space.shape:
        raise ValueError(f"the action has shape {taken.shape}: expected {space.shape}")
    return taken


def _check_space(path: str, what: str, space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Discrete):
        if space.start == 0:
            return
        found, wrapper = f"Discrete starting at {space.start}", f"Transform{what.capitalize()} (subtract {space.start})"
    elif isinstance(space, spaces.Box):
        if what == "observation" or (space.dtype is not None and space.dtype.kind == "f"):
            return
        found, wrapper = f"Box of {space.dtype}", "TransformAction (to a float Box)"
    else:
        flat = what == "observation" and space.is_np_flattenable
        found = type(space).__name__
        wrapper = "FlattenObservation" if flat else f"Transform{what.capitalize()} (to Box or Discrete)"
    raise ValueError(
        f"gym/{path}: its {what} space is a {found}: expected Box or Discrete; register an id whose environment is "
        f"wrapped in gymnasium.wrappers.{wrapper}"
    )


def _unknown(path: str) -> str:
    name = path.rpartition(":")[2]
    near = get_close_matches(name, gymnasium.registry, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists those there are"
    return f"Gymnasium knows no such id; {hint} (an id of another package is written module:id, as ale_py:ALE/Pong-v5)"


def _missing(path: str, error: Exception) -> str:
    spec = gymnasium.registry.get(path)
    family = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec is not None else None
    command = _INSTALL.get(family[1]) if family else None
    if command is None and isinstance(error, ModuleNotFoundError) and error.name:
        command = f"pip install {error.name.partition('.')[0]}"
    return f"{command} (a library is missing: {error})" if command else str(error)
