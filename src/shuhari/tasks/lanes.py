"""Steps environments of several lanes together, in numpy.

In addition to `step`, an environment may have `step_lanes(lanes, actions)`: the same step of N environments that were
made alike. Its class lists in `moves` the attributes that differ between environments, those that a reset draws and a
step changes: numbers or arrays of numbers. `lanes` has them under the same names as arrays [N, ...], to be assigned.
All other attributes are those of `self`; `lanes.draw("random")` returns [N] numbers, each from its environment's own
`np_random`; `actions` are [N, ...]. It returns what `gymnasium.vector.VectorEnv.step` does: observations [N, ...],
rewards [N], terminated [N], truncated [N], and name -> [N, ...] of the numbers in `info`.

The results are the same bits as those of `step`, so that it does not matter which lanes are stepped together;
environments stay separate, and each is reset, saved and restored on its own. A wrapper may have it too; then
`lanes.step(actions)` is the step of the wrapped environments.

Left out: Gymnasium's own vector environments, whose lanes share a generator and cannot be saved, or reset, separately.

Axes: `N` environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from shuhari.data import Array
from shuhari.ports.hooks import ability

Stepped = tuple[Array, Array, Array, Array, dict[str, Any]]
FOREIGN: dict[type, tuple[str, ...]] = {OrderEnforcing: (), TimeLimit: ("_elapsed_steps",)}  # wrappers of Gymnasium
PLAIN = {np.dtype(t) for t in (bool, int, float)}  # Python's own
LONG = 100  # longest tuple or list that is compared


def are_alike(envs: Sequence[gymnasium.Env[Any, Any]]) -> bool:
    """Whether these can be stepped together: they have the same classes, including wrappers, each of which defines
    `step_lanes` itself. An inherited one does not count, as it may not match an overridden `step`."""
    kinds = {tuple(map(type, _list_layers(env))) for env in envs}
    return len(kinds) == 1 and all(
        kind in FOREIGN or ("step_lanes" in vars(kind) and ability(kind, "step_lanes") is not None)
        for kind in kinds.pop()
    )


class Lanes:
    """N environments that are alike, or one layer of their wrappers. Changing attributes are in arrays, and are written
    to `envs` only by `put`. Raises ValueError for `moves` that do not name numbers, or use a name of this class, and
    for another attribute that differs between the environments."""

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs = envs
        self.inner = Lanes([env.env for env in envs]) if isinstance(envs[0], gymnasium.Wrapper) else None
        kind = type(envs[0])
        self.moves: tuple[str, ...] = FOREIGN[kind] if kind in FOREIGN else ability(kind, "moves")
        if not isinstance(self.moves, tuple) or not all(isinstance(name, str) for name in self.moves):
            raise ValueError(f"{kind.__name__}: moves is {self.moves!r}: expected a tuple of names of attributes")
        if taken := [name for name in self.moves if name in dir(self)]:
            raise ValueError(f"{kind.__name__}: moves has {taken[0]!r}, a name that lanes use themselves")
        for name in self.moves:
            setattr(self, name, _gather(envs, name))
        for name in () if kind in FOREIGN else vars(envs[0]).keys() - {*self.moves, "_np_random", "_np_random_seed"}:
            if len({_mark(vars(env)[name]) for env in envs if name in vars(env)}) > 1:
                message = "is not the same in all environments: expected in moves what a reset draws or a step changes"
                raise ValueError(f"{kind.__name__}: {name} {message}")

    def step(self, actions: Array) -> Stepped:
        """Steps the wrapped environments."""
        assert self.inner is not None
        return self.inner.act(actions)

    def draw(self, how: str, *args: Any) -> Array:
        """Returns [N, ...] the results of this method of each environment's own generator: `draw("uniform", -1, 1, 2)`
        [N, 2]."""
        return np.array([getattr(env.np_random, how)(*args) for env in self.envs])

    # ---------------------------------------------------------------- for the caller

    def act(self, actions: Array) -> Stepped:
        """Steps these environments."""
        first = self.envs[0]
        if type(first) not in FOREIGN:
            try:
                found: Stepped = first.step_lanes(self, actions)
            except AttributeError as error:
                if error.obj is self:  # a `__getattr__` would slow every read
                    error.add_note(f"{type(first).__name__}: expected one of its moves, {self.moves}")
                raise
            return found
        seen, reward, terminated, truncated, info = self.step(actions)
        if type(first) is TimeLimit:
            self._elapsed_steps: Array = self._elapsed_steps + 1
            truncated = truncated | (self._elapsed_steps >= first._max_episode_steps)
        return seen, reward, terminated, truncated, info

    def act_some(self, at: slice | list[int], actions: Array) -> Stepped:
        """Steps some of these."""
        some = self._select(at)
        found = some.act(actions)
        self._merge(at, some)
        return found

    def put(self, at: list[int]) -> None:
        """Writes the state back into some of the environments; numbers become Python's own if it has their type."""
        for layer in self._list_layers():
            envs = [layer.envs[i] for i in at]
            for name in layer.moves:
                values = getattr(layer, name)[at]
                plain = values.ndim == 1 and values.dtype in PLAIN
                for env, value in zip(envs, values.tolist() if plain else values, strict=True):
                    setattr(env, name, value)

    def take(self, at: list[int]) -> None:
        """Reads the state of some of the environments."""
        for layer in self._list_layers():
            envs = [layer.envs[i] for i in at]
            for name in layer.moves:
                layer._set(name, at, _gather(envs, name))

    def _list_layers(self) -> Iterator[Lanes]:
        layer: Lanes | None = self
        while layer is not None:
            yield layer
            layer = layer.inner

    def _select(self, at: slice | list[int]) -> Lanes:
        some = object.__new__(Lanes)
        some.envs = self.envs[at] if isinstance(at, slice) else [self.envs[i] for i in at]
        some.inner = None if self.inner is None else self.inner._select(at)
        some.moves = self.moves
        for name in self.moves:
            setattr(some, name, getattr(self, name)[at])
        return some

    def _merge(self, at: slice | list[int], some: Lanes) -> None:
        for name in self.moves:
            values = getattr(some, name)
            try:
                self._set(name, at, values)
            except (AttributeError, TypeError, ValueError):
                message = f"{values!r:.60}: expected an array {[len(some.envs), *getattr(self, name).shape[1:]]}"
                raise ValueError(f"{type(self.envs[0]).__name__}: lanes.{name} was set to {message}") from None
        if self.inner is not None and some.inner is not None:
            self.inner._merge(at, some.inner)

    def _set(self, name: str, at: Any, values: Array) -> None:
        mine = getattr(self, name)
        if mine.dtype != values.dtype:  # an integer at first
            mine = mine.astype(np.result_type(mine, values))
            setattr(self, name, mine)
        mine[at] = values


def _gather(envs: Sequence[Any], name: str) -> Array:
    """Returns [N, ...] an attribute of each."""
    values = [getattr(env, name) for env in envs]
    first = values[0]
    try:
        found = np.array(values)
    except ValueError:  # of different shapes
        found = np.array(None)
    if isinstance(first, tuple | list) or found.dtype.kind not in "biuf":
        message = f"moves has {name!r}, which is {first!r:.60}: expected a number, or an array of one shape"
        raise ValueError(f"{type(envs[0]).__name__}: {message}")
    return found


def _mark(value: Any) -> Any:
    """Returns a value that is equal for equal plain values; None for values that are long or cannot be compared."""
    if isinstance(value, tuple | list):
        return tuple(map(_mark, value)) if len(value) <= LONG else None
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes()) if value.dtype.kind in "biuf" else None
    return value if isinstance(value, bool | int | float | str | np.generic) and value == value else None


def _list_layers(env: Any) -> Iterator[gymnasium.Env[Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


# ---------------------------------------------------------------- Python's arithmetic of arrays


def at_least(x: Any, low: Any) -> Any:
    """Returns max(x, low), also for zeros of either sign, for which np.maximum guarantees nothing."""
    return np.where(low > x, low, x)


def at_most(x: Any, high: Any) -> Any:
    """Returns min(x, high)."""
    return np.where(high < x, high, x)


def power(x: Array, n: int) -> Array:
    """Returns x ** n, which numpy rounds differently."""
    return np.array([v**n for v in x.ravel().tolist()]).reshape(x.shape)


def look(*parts: Array) -> Array:
    """Returns [N, len(parts)] observations in single precision, from numbers [N]."""
    seen = np.empty((len(parts[0]), len(parts)), np.float32)
    for i, x in enumerate(parts):
        seen[:, i] = x
    return seen
