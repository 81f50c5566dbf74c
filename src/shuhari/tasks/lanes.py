"""Environments of lanes that are stepped together, in numpy.

An environment may have, beside `step`, `step_lanes(lanes, actions)`: the same step of N environments that were made
alike. Its class names in `moves` the attributes that differ between environments, what a reset draws and what a step
changes: numbers or arrays of numbers. `lanes` has them under the same names as arrays [N, ...], to be set anew. All
else is that of `self`, `lanes.draw("random")` gives [N] numbers, each of its environment's own `np_random`, and
`actions` are [N, ...]. It returns what `gymnasium.vector.VectorEnv.step` does: observations [N, ...], rewards [N],
terminated [N], truncated [N], and name -> [N, ...] of what `info` would tell, numbers.

It gives the same bits as `step`, so that which lanes are stepped together changes nothing: environments remain what
they are, and each is reset, saved and restored alone. A wrapper may have it too; `lanes.step(actions)` is then the step
of what it wraps.

Left out: Gymnasium's own vector environments, whose lanes share a generator and cannot be saved, or begin, alone.

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
LONG = 100  # entries of a tuple or list that are compared


def are_alike(envs: Sequence[gymnasium.Env[Any, Any]]) -> bool:
    """Whether these can be stepped together: they are of the same classes, wrappers included, each of which has
    `step_lanes` itself. One that is inherited does not count, as it may not do what `step` has become."""
    kinds = {tuple(map(type, _list_layers(env))) for env in envs}
    return len(kinds) == 1 and all(
        kind in FOREIGN or ("step_lanes" in vars(kind) and ability(kind, "step_lanes") is not None)
        for kind in kinds.pop()
    )


class Lanes:
    """N environments that are alike, or one layer of their wrappers. What moves is in arrays, and in `envs` themselves
    only where it is `put` there. ValueError for `moves` that are no names of numbers, or have a name of this class's
    own, and for another attribute that is not the same in all environments."""

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs = envs
        self.inner = Lanes([env.env for env in envs]) if isinstance(envs[0], gymnasium.Wrapper) else None
        kind = type(envs[0])
        self.moves: tuple[str, ...] = FOREIGN[kind] if kind in FOREIGN else ability(kind, "moves")
        if not isinstance(self.moves, tuple) or not all(isinstance(name, str) for name in self.moves):
            raise ValueError(f"{kind.__name__}: moves is {self.moves!r}: expected a tuple of names of attributes")
        if taken := [name for name in self.moves if name in dir(self)]:
            raise ValueError(f"{kind.__name__}: moves has {taken[0]!r}, which lanes have of their own")
        for name in self.moves:
            setattr(self, name, _gather(envs, name))
        for name in () if kind in FOREIGN else vars(envs[0]).keys() - {*self.moves, "_np_random", "_np_random_seed"}:
            if len({_mark(vars(env)[name]) for env in envs if name in vars(env)}) > 1:
                message = "is not the same in all environments: expected in moves what a reset draws or a step changes"
                raise ValueError(f"{kind.__name__}: {name} {message}")

    def step(self, actions: Array) -> Stepped:
        """One step of what these wrap."""
        assert self.inner is not None
        return self.inner.act(actions)

    def draw(self, how: str, *args: Any) -> Array:
        """[N, ...] what this method of each one's own generator gives: `draw("uniform", -1, 1, 2)` [N, 2]."""
        return np.array([getattr(env.np_random, how)(*args) for env in self.envs])

    # ---------------------------------------------------------------- for who steps them

    def act(self, actions: Array) -> Stepped:
        """One step of these."""
        first = self.envs[0]
        if type(first) not in FOREIGN:
            try:
                found: Stepped = first.step_lanes(self, actions)
            except AttributeError as error:
                if error.obj is self:  # `__getattr__` would slow all that is read
                    error.add_note(f"{type(first).__name__}: expected one of its moves, {self.moves}")
                raise
            return found
        seen, reward, terminated, truncated, info = self.step(actions)
        if type(first) is TimeLimit:
            self._elapsed_steps: Array = self._elapsed_steps + 1
            truncated = truncated | (self._elapsed_steps >= first._max_episode_steps)
        return seen, reward, terminated, truncated, info

    def act_some(self, at: slice | list[int], actions: Array) -> Stepped:
        """One step of some of these."""
        some = self._select(at)
        found = some.act(actions)
        self._merge(at, some)
        return found

    def put(self, at: list[int]) -> None:
        """Bring some of the environments to where they are; numbers become Python's own where it has their type."""
        for layer in self._list_layers():
            envs = [layer.envs[i] for i in at]
            for name in layer.moves:
                values = getattr(layer, name)[at]
                plain = values.ndim == 1 and values.dtype in PLAIN
                for env, value in zip(envs, values.tolist() if plain else values, strict=True):
                    setattr(env, name, value)

    def take(self, at: list[int]) -> None:
        """Read where some of the environments are."""
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
        if mine.dtype != values.dtype:  # a whole number to begin with
            mine = mine.astype(np.result_type(mine, values))
            setattr(self, name, mine)
        mine[at] = values


def _gather(envs: Sequence[Any], name: str) -> Array:
    """[N, ...] an attribute of each."""
    values = [getattr(env, name) for env in envs]
    first = values[0]
    try:
        found = np.array(values)
    except ValueError:  # of several shapes
        found = np.array(None)
    if isinstance(first, tuple | list) or found.dtype.kind not in "biuf":
        message = f"moves has {name!r}, which is {first!r:.60}: expected a number, or an array of one shape"
        raise ValueError(f"{type(envs[0]).__name__}: {message}")
    return found


def _mark(value: Any) -> Any:
    """What is equal where two plain values are; None for what cannot be compared, or is long."""
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
    """max(x, low), also of zeros of either sign, of which np.maximum promises nothing."""
    return np.where(low > x, low, x)


def at_most(x: Any, high: Any) -> Any:
    """min(x, high)."""
    return np.where(high < x, high, x)


def power(x: Array, n: int) -> Array:
    """x ** n, which numpy rounds in another way."""
    return np.array([v**n for v in x.ravel().tolist()]).reshape(x.shape)


def look(*parts: Array) -> Array:
    """[N, len(parts)] observations in single precision, of these numbers [N]."""
    seen = np.empty((len(parts[0]), len(parts)), np.float32)
    for i, x in enumerate(parts):
        seen[:, i] = x
    return seen
