"""Snapshots of Gymnasium environments: plain data from which an episode continues exactly.

Three ways. *Copy*: plain attributes of the environment and of its wrappers, and the state of its generator; enough for
classic control and other small environments in Python, and verified by `is_copyable`. *Replay*: the seed of the last
reset and the actions since, stepped again; right for every environment that is deterministic given a seed, at the cost
of those steps. *Simulator*: for a MuJoCo environment the copy, and the simulator's own state; verified like a copy,
since some read simulator values that depend on more than its state. `Recorder` keeps what the last two need; an
environment without one is copied. Left out: states kept outside Python, which replay covers; rendering.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from shuhari.data import Array, Payload, code
from shuhari.models.spaces import MASK, alternatives

Env = gymnasium.Env[Any, Any]
_CONTAINERS = (list, dict, set, bytearray)
SIMULATOR = ("model", "data", "mujoco_renderer")  # what Gymnasium's MuJoCo environments keep of the simulator
_STILL = (gymnasium.Env, gymnasium.Space, EnvSpec, np.random.Generator, np.dtype, ModuleType)  # constant, or copied


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the seed of the last reset and the actions since, or, if it `simulates`, has snapshots by the state of
    MuJoCo's simulator. Every reset is seeded: one without a seed takes the next of a sequence that the last given seed
    starts, so `reset()` repeats after a restore too."""

    def __init__(self, env: Env, simulates: bool = False) -> None:
        super().__init__(env)
        self.simulates = simulates
        self.first: int | None = None  # the last given seed
        self.count = 0  # resets since
        self.options: dict[str, Any] | None = None
        self.actions: list[Array] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and self.first is None:
            raise ValueError("the first reset of this environment needs a seed: its episodes must be repeatable")
        self.first, self.count = (self.first, self.count + 1) if seed is None else (seed, 0)
        self.options, self.actions = options, []
        return self._begin()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.simulates:
            self.actions.append(np.array(action))
        return self.env.step(action)

    def record(self) -> dict[str, Payload]:
        actions = np.stack(self.actions) if self.actions else np.zeros(0)
        return {"first": self.first, "count": self.count, "options": self.options, "actions": actions}

    def replay(self, record: Mapping[str, Any]) -> None:
        """Resets and steps as recorded. An environment that ends earlier than before has begun a new episode after
        it, with a warning: a run that cannot be repeated goes on all the same."""
        self.first, self.count = record["first"], int(record["count"])
        self.options, self.actions = record["options"], []
        if self.first is None:
            return
        self._begin()
        ended = False
        for i, action in enumerate(np.asarray(record["actions"]).copy()):  # some environments change what they get
            if ended:
                warnings.warn(
                    f"{self.env}: the replay ended after {i} of {len(record['actions'])} steps: it does not repeat "
                    "itself from its seed, so the resumed run differs, and goes on with a new episode",
                    stacklevel=2,
                )
                self.reset()
                return
            _, _, terminated, truncated, _ = self.step(action if np.ndim(action) else action.item())
            ended = terminated or truncated

    def _begin(self) -> tuple[Any, dict[str, Any]]:
        assert self.first is not None
        seed = self.first if self.count == 0 else code(self.first, "reset", self.count) % 2**31
        return self.env.reset(seed=seed, options=self.options)


def snapshot(env: Env) -> dict[str, Payload]:
    """Returns the state of an environment as a payload, for `restore` on any environment made the same way."""
    recorder = next((e for e in _list_layers(env) if isinstance(e, Recorder)), None)
    if recorder is not None and not recorder.simulates:
        return {"replay": recorder.record()}
    layers = tuple(
        {k: p for k, v in vars(e).items() if (p := _to_plain(v)) is not _NO}
        for e in _list_layers(env)
    )
    generator = env.unwrapped._np_random
    state = "" if generator is None else json.dumps(generator.bit_generator.state)
    physics = {} if recorder is None else {"physics": _physics_state(env)}
    return {"layers": layers, "generator": state, **physics}


def begin(env: Env, start: Any = None) -> Any:
    """Returns the first observation of an episode that begins at `start`, the snapshot of an `Episode`; None:
    `env.reset()`."""
    if start is None:
        return env.reset()[0]
    restore(env, start["env"])
    return thaw(start["last"])


def restore(env: Env, state: Mapping[str, Any]) -> None:
    """Sets `env` to the state of a snapshot, from which it continues exactly."""
    if "replay" in state:
        recorder = next((e for e in _list_layers(env) if isinstance(e, Recorder)), None)
        if recorder is None:
            raise ValueError(f"{env}: a snapshot for replay, but the environment has no Recorder")
        recorder.replay(state["replay"])
        return
    layers = list(_list_layers(env))
    if len(layers) != len(state["layers"]):
        raise ValueError(f"{env}: a snapshot of {len(state['layers'])} layers: expected {len(layers)}, one a wrapper")
    for layer, values in zip(layers, state["layers"], strict=True):
        vars(layer).update({k: thaw(v) for k, v in values.items()})
    if "physics" in state:
        _set_physics(env, thaw(state["physics"]))
    if state["generator"]:
        env.unwrapped.np_random.bit_generator.state = json.loads(state["generator"])


def is_copyable(make: Callable[[], Env], steps: int = 256) -> bool:
    """Whether a copy is enough: no state is in objects that a copy leaves out, an environment restored in the middle of
    another one's episode does the same for `steps` random steps, including resets, and no container has changed."""
    try:
        return _same_after_restore(make, steps)
    except (TypeError, ValueError, AttributeError):  # a generator or an attribute that does not copy
        return False


def repeats(make: Callable[[], Env], steps: int = 256) -> bool:
    """Whether the environment is deterministic given a seed, as a replay requires."""
    return _same_after_restore(lambda: Recorder(make()), steps)


def simulates(make: Callable[[], Env], steps: int = 256) -> bool:
    """Whether it is a MuJoCo environment for which a copy and the simulator's state are enough, tested as in
    `is_copyable`."""
    env = make()
    try:
        has = all(name in vars(env.unwrapped) for name in SIMULATOR)
    finally:
        env.close()
    return has and is_copyable(lambda: Recorder(make(), simulates=True), steps)


def is_seeded(make: Callable[[], Env], steps: int = 16) -> bool:
    """Whether two environments do the same from one seed, for some random steps of an episode."""
    env, other = make(), make()
    try:
        env.action_space.seed(0)
        seen, same = env.reset(seed=1)[0], other.reset(seed=1)[0]
        for _ in range(steps):
            if not _are_equal(seen, same):
                return False
            action = sample_action(env.action_space, seen)
            mine, theirs = env.step(copy(action)), other.step(action)
            if not _are_equal(mine[:4], theirs[:4]) or mine[2] or mine[3]:
                return _are_equal(mine[:4], theirs[:4])
            seen, same = mine[0], theirs[0]
        return True
    finally:
        env.close()
        other.close()


def _same_after_restore(make: Callable[[], Env], steps: int) -> bool:
    env, other = make(), make()
    try:
        env.action_space.seed(0)
        other.action_space.seed(0)
        seen = env.reset(seed=1)[0]
        _wander(other, other.reset(seed=2)[0])
        before = _list_containers(env)
        seen = _wander(env, seen)
        recorder = next((e for e in _list_layers(env) if isinstance(e, Recorder)), None)
        recorded, known = recorder is not None and not recorder.simulates, SIMULATOR if recorder is not None else ()
        kept = [
            v
            for e in _list_layers(env)
            for k, v in vars(e).items()
            if k not in known
        ]
        lost = any(map(_is_opaque, kept)) or _list_containers(env) != before
        if not recorded and lost:
            return False
        restore(other, snapshot(env))
        for _ in range(steps):
            action = sample_action(env.action_space, seen)
            mine, theirs = env.step(copy(action)), other.step(action)
            if not _are_equal(mine[:4], theirs[:4]):
                return False
            seen = mine[0]
            if mine[2] or mine[3]:
                seen, second = env.reset()[0], other.reset()[0]
                if not _are_equal(seen, second):
                    return False
        return _are_equal(env.reset()[0], other.reset()[0])
    finally:
        env.close()
        other.close()


def _wander(env: Env, seen: Any) -> Any:
    """Takes five random steps from `seen`, or resets if the episode ends before; returns the last observation."""
    for _ in range(5):
        seen, _, terminated, truncated, _ = env.step(sample_action(env.action_space, seen))
        if terminated or truncated:
            return env.reset()[0]
    return seen


def sample_action(space: Any, seen: Any) -> Any:
    """Samples a uniform action by the generator of its space, among those that an `action_mask` in the observation
    allows (one alternative per choice), in the space's type and counted from its `start`."""
    mask = seen.get(MASK) if isinstance(seen, Mapping) else None
    if mask is None:
        return space.sample()
    choices = np.split(np.asarray(mask), np.cumsum(alternatives(space))[:-1])
    picks = [space.np_random.choice(np.flatnonzero(c)) for c in choices]
    return np.add(picks if space.shape else picks[0], getattr(space, "start", 0)).astype(space.dtype)


def _are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_are_equal(a[k], b[k]) for k in a)
    return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f"))


def _list_layers(env: Env) -> Iterator[Any]:
    """Yields the wrappers from the outermost to the innermost, then the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _list_containers(env: Env) -> list[str]:
    """Returns the objects in containers, which a copy leaves out."""
    return [
        repr(v)
        for e in _list_layers(env)
        for k, v in sorted(vars(e).items())
        if isinstance(v, _CONTAINERS)
    ]


def _physics_state(env: Env) -> Array:
    """Returns all that MuJoCo's next step depends on: positions, velocities, time, controls, the start of its
    solver."""
    import mujoco

    of: Any = env.unwrapped
    state = np.empty(mujoco.mj_stateSize(of.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(of.model, of.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def _set_physics(env: Env, state: Array) -> None:
    import mujoco

    of: Any = env.unwrapped
    mujoco.mj_setState(of.model, of.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(of.model, of.data)  # derives the rest, and resets its solver
    mujoco.mj_setState(of.model, of.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)


_NO: Any = object()


def _is_opaque(value: Any) -> bool:
    """Whether an attribute may hold state that a copy misses: an object that is not known to be constant."""
    text = isinstance(value, np.ndarray) and value.dtype.kind in "SU"
    still = text or isinstance(value, (*_CONTAINERS, *_STILL)) or callable(value)
    return not still and _to_plain(value) is _NO and not (type(value) is tuple and not any(map(_is_opaque, value)))


def _to_plain(value: Any) -> Any:
    """Returns an attribute as a payload, or _NO if it is not plain. NumPy scalars become arrays without axes."""
    if isinstance(value, np.generic):
        return np.array(value) if value.dtype.kind in "biuf" else _NO
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray):
        return value.copy() if value.dtype.kind in "biuf" else _NO
    if type(value) is tuple:
        items = tuple(map(_to_plain, value))
        return _NO if any(i is _NO for i in items) else items
    return _NO


def thaw(value: Any) -> Any:
    """Restores an attribute from a payload that may have been stored as tensors and JSON (which has no tuples)."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.copy() if value.ndim else value[()]
    if isinstance(value, Mapping):
        return {k: thaw(v) for k, v in value.items()}
    return tuple(map(thaw, value)) if isinstance(value, tuple | list) else value
