"""Environments of lanes that are stepped together, in numpy.

An environment's class may have, beside `step`, a static method `step_lanes(envs, actions)`: the same step of N
environments that were made alike, each with its own action, out of their attributes and back into them. It takes actions
[N, ...] (integers [N] of a Discrete) and returns what `gymnasium.vector.VectorEnv.step` does: observations [N, ...],
rewards [N], terminated [N], truncated [N], and name -> [N, ...] of what `info` would tell. Whatever it is made of, it
leaves each environment, and gives of each, the same bits as its `step`, random draws included: so an environment remains
one by itself, which is reset, saved and restored alone, and which of them are stepped together changes nothing. Settings
are the same in all of them; the episodes of none of them have ended. A wrapper of one's own may have it too.

Left out: Gymnasium's own vector environments, whose lanes share one generator and cannot be saved, or begin, alone.

Axes: `N` environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from shuhari.abilities import ability
from shuhari.data import Array

Env = gymnasium.Env[Any, Any]
Stepped = tuple[Array, Array, Array, Array, dict[str, Any]]
NAME = "step_lanes"


def are_alike(envs: Sequence[Env]) -> bool:
    """Whether these can be stepped together: they are of the same classes, wrappers included, each of which has the form
    itself. One that is inherited does not count, as it may not do what `step` has become."""
    kinds = {tuple(map(type, _list_layers(env))) for env in envs}
    return len(kinds) == 1 and all(
        kind in (OrderEnforcing, TimeLimit) or (NAME in vars(kind) and ability(kind, NAME) is not None)
        for kind in kinds.pop()
    )


def step_lanes(envs: Sequence[Any], actions: Array) -> Stepped:
    """One step of N environments that are alike, and have been reset."""
    kind = type(envs[0])
    if kind is OrderEnforcing:
        return step_lanes([env.env for env in envs], actions)
    if kind is TimeLimit:
        seen, reward, terminated, truncated, info = step_lanes([env.env for env in envs], actions)
        for env in envs:
            env._elapsed_steps += 1
        late = np.array([env._elapsed_steps >= env._max_episode_steps for env in envs])
        return seen, reward, terminated, truncated | late, info
    found: Stepped = ability(kind, NAME)(envs, actions)
    return found


def _list_layers(env: Any) -> Iterator[Env]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


# ---------------------------------------------------------------- what such a step is made of


def gather(envs: Sequence[Any], *names: str) -> Array:
    """[len(names), N] the numbers that environments have under these names; [N] of one name."""
    return np.array(list(map(attrgetter(*names), envs))).T


def scatter(envs: Sequence[Any], **values: Array) -> None:
    """Set numbers [N], by name; they become Python's own."""
    for name, x in values.items():
        for env, value in zip(envs, x.tolist(), strict=True):
            setattr(env, name, value)


def at_least(x: Any, low: Any) -> Any:
    """Python's max(x, low), also of zeros of either sign, of which np.maximum promises nothing."""
    return np.where(low > x, low, x)


def at_most(x: Any, high: Any) -> Any:
    """Python's min(x, high)."""
    return np.where(high < x, high, x)


def power(x: Array, n: int) -> Array:
    """Python's x ** n, which numpy rounds in another way."""
    return np.array([v**n for v in x.ravel().tolist()]).reshape(x.shape)
