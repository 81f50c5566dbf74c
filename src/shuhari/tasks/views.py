"""Observations of a Gymnasium environment as models get them: spaces, action masks, selected entries and frame
stacking, user wrappers.

A nested Dict becomes a flat one, its keys joined by "/". If an environment gives allowed actions in
`info["action_mask"]`, they become part of the observation: {"observation": ..., "action_mask": ...}, the convention of
PettingZoo. Left out: tuples, text, sequences and graphs, which are refused with the wrapper that helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Array
from shuhari.kernel.registry import locate
from shuhari.models.spaces import MASK, alternatives

Env = gymnasium.Env[Any, Any]
READ = "Box, Discrete, MultiDiscrete or MultiBinary, or a Dict of these"
DONE = "Box of floats, Discrete, MultiDiscrete or MultiBinary (of one axis)"


class View(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A flat Dict of observations, with the action mask from `info` or from the observation itself [alternatives].

    Raises ValueError for a mask that is missing, has another size, or allows nothing while the episode goes on. At an
    episode's end there is no decision: a mask that allows nothing there allows all.
    """

    def __init__(self, env: Env, in_info: bool) -> None:
        super().__init__(env)
        parts = dict(_flatten(env.observation_space, lambda s: isinstance(s, spaces.Dict)))
        self.mask_in_info = in_info and MASK not in parts  # whether the mask comes in `info`
        self.called = f"gym/{env.spec.id}" if env.spec is not None else str(env)
        self.nested = "" not in parts
        if not self.nested:
            parts = {"observation": parts[""]}
        self.masked = in_info or MASK in parts
        if self.masked and isinstance(env.action_space, spaces.Box):
            mend = "set task.masks = false" if self.mask_in_info else _own("FilterObservation")
            raise ValueError(f"{env}: it has an action_mask, but its actions are {env.action_space}, not choices; "
                             f"{mend}")  # fmt: skip
        if self.masked:
            self.size = sum(alternatives(env.action_space))
            parts[MASK] = spaces.MultiBinary(self.size)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._seen(observation, info, False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(observation, info, terminated or truncated), reward, terminated, truncated, info

    def _seen(self, observation: Any, info: Mapping[str, Any], ended: bool) -> dict[str, Any]:
        seen = flatten(observation) if self.nested else {"observation": observation}
        if self.masked:
            mask = info.get(MASK) if self.mask_in_info else seen[MASK]
            if mask is None and not ended:
                raise ValueError(f"{self.called}: its info has no 'action_mask' at this step, and had one at the first")
            seen[MASK] = self._mask(np.ones(self.size, np.int8) if mask is None else mask, ended)
        return seen

    def _mask(self, mask: Any, ended: bool) -> Array:
        pieces = [np.ravel(m) for m in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
        bits = np.concatenate(pieces).astype(bool).astype(np.int8)
        sizes = alternatives(self.env.action_space)
        if len(bits) != self.size:
            raise ValueError(f"{self.called}: an action_mask of {len(bits)} entries: expected {self.size}")
        for choice in np.split(bits, np.cumsum(sizes)[:-1]):
            if not choice.any():
                if not ended:
                    raise ValueError(f"{self.called}: its action_mask allows no action: expected at least one")
                choice[:] = 1  # a view: it fills `bits`
        return bits


def flatten(observation: Any) -> dict[str, Any]:
    """Flattens nested mappings; keys are joined by "/"."""
    return dict(_flatten(observation, lambda x: isinstance(x, Mapping)))


def _flatten(tree: Any, nested: Any, at: str = "") -> Iterable[tuple[str, Any]]:
    if not nested(tree):
        yield at, tree
        return
    for key, value in tree.items():
        yield from _flatten(value, nested, f"{at}/{key}" if at else str(key))


def storage_dtype(space: spaces.Space[Any]) -> Any:
    """Returns the number type in which observations are stored: float32; bytes as they are; int64 for other integers,
    since one-dimensional int32 arrays are token ids."""
    dtype = np.dtype(space.dtype or np.float32)
    if dtype.itemsize == 1:
        return np.int8 if dtype.kind == "b" else dtype
    return np.float32 if dtype.kind == "f" else np.int64


def to_context(observation: Any, space: spaces.Space[Any]) -> Any:
    """Converts an observation to a context: an int, an array, or a mapping of these."""
    if isinstance(space, spaces.Dict):
        return {k: to_context(observation[k], s) for k, s in space.items()}
    if isinstance(space, spaces.Discrete):
        return int(observation)
    return np.array(observation, storage_dtype(space))  # a copy: some environments return their own state


def to_action(action: Any, space: spaces.Space[Any]) -> int | Array:
    """Converts a decision to the environment's format; clips a Box to its bounds. Raises ValueError for another shape,
    or for a choice that does not exist."""
    if isinstance(space, spaces.Discrete):
        index, start = int(np.asarray(action).item()), int(space.start)
        if not start <= index < start + space.n:
            raise ValueError(f"the action is {index}: expected {start}..{start + space.n - 1}")
        return index
    taken = np.asarray(action)
    if taken.shape != space.shape:
        raise ValueError(f"the action has shape {taken.shape}: expected {space.shape}")
    taken = clip_box(taken, space)
    if not isinstance(space, spaces.Box) and not space.contains(taken):
        raise ValueError(f"the action is {taken.tolist()}: expected one of {space}")
    return taken


def clip_box(action: Array, space: spaces.Space[Any]) -> Array:
    """Returns [..., A] a copy of actions, in the space's number type, clipped to the bounds of a Box."""
    taken = action.astype(space.dtype)
    return taken.clip(space.low, space.high) if isinstance(space, spaces.Box) else taken


# ---------------------------------------------------------------- settings of a recipe


def wrap(env: Env, wrappers: Sequence[str | Mapping[str, Any]], keep: Sequence[int], stack: int) -> Env:
    """Returns `env` in the named wrappers, then with some entries kept, then with stacked frames. Raises LookupError
    for an unknown wrapper, ValueError for settings that it does not have and for what does not fit the observations."""
    for wrapper in wrappers:
        given = {"use": wrapper} if isinstance(wrapper, str) else dict(wrapper)
        name = given.pop("use", None)
        if not isinstance(name, str):
            raise ValueError(f"the wrapper {wrapper}: expected a path, or a table with use = <path>")
        made = locate("wrapper", name, [f"gymnasium.wrappers.{w}" for w in gymnasium.wrappers.__all__])
        try:
            env = made(env, **given)
        except TypeError as error:
            raise ValueError(f"the wrapper {name} with {given}: {error}") from None
    if keep:
        space: Any = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"keep = {list(keep)}: it picks entries of a Box of one axis, and the space is {space}")
        size = space.shape[0]
        if min(keep) < 0 or max(keep) >= size or len(set(keep)) < len(keep):
            raise ValueError(f"keep = {list(keep)}: expected different entries of 0..{size - 1}")
        index = np.array(keep)
        part = spaces.Box(space.low[index], space.high[index], dtype=space.dtype)
        env = gymnasium.wrappers.TransformObservation(env, lambda x: np.asarray(x)[index], part)
    if stack > 1:
        if not isinstance(env.observation_space, spaces.Box):
            raise ValueError(f"stack = {stack}: it stacks observations of a Box, and these are {env.observation_space}")
        # its queue keeps the objects that it gets, which some environments later change
        env = gymnasium.wrappers.TransformObservation(env, np.array, env.observation_space)
        env = gymnasium.wrappers.FrameStackObservation(env, stack)
    return env


# ---------------------------------------------------------------- refused spaces, and the remedy


def check_spaces(path: str, env: Env) -> None:
    """Raises ValueError for a space that no model here supports, naming the wrapper that helps."""
    seen, does = env.observation_space, env.action_space
    for key, part in _flatten(seen, lambda s: isinstance(s, spaces.Dict) and len(s)):
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            of = f"{_named(part)} at {key!r}" if key else _named(part)
            raise ValueError(f"gym/{path}: its observation space is a {of}: expected {READ}; {_reader(path, seen)}")
    if not _fits(does):
        raise ValueError(
            f"gym/{path}: its action space is a {_named(does)}: expected {DONE}; {_own('TransformAction')}"
        )


def _fits(space: Any) -> bool:
    if isinstance(space, spaces.Box):
        return space.dtype is not None and space.dtype.kind == "f"
    return isinstance(space, spaces.Discrete) or (
        isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and len(space.shape) == 1
    )


def _reader(path: str, space: Any) -> str:
    if "minigrid" in path.lower():
        return 'set task.wrappers = ["minigrid.wrappers.ImgObsWrapper"], which leaves the image'
    if space.is_np_flattenable and not isinstance(space, spaces.Dict):
        return 'set task.wrappers = ["gymnasium.wrappers.FlattenObservation"]'
    return _own("FilterObservation" if isinstance(space, spaces.Dict) else "TransformObservation")


def _own(wrapper: str) -> str:
    return f'derive a wrapper from gymnasium.wrappers.{wrapper} and set task.wrappers = ["file.py:Class"]'


def _named(space: Any) -> str:
    name = type(space).__name__
    if isinstance(space, spaces.Box):
        return f"{name} of {space.dtype}"
    return f"{name} of shape {space.shape}" if space.shape and len(space.shape) > 1 else name
