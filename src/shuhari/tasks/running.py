"""Users' wrappers that keep running statistics: which ones an environment has, and the raw rewards below one.

A wrapper's statistics belong to one environment: each lane has its own, evaluation has others, and they change with
every observation. The statistics of models and of `scale_rewards` are shared by a whole run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium

Env = gymnasium.Env[Any, Any]
RAW = "raw_reward"  # the key of `info`, and the name of the reward
_OBSERVATIONS = re.compile(r"Normali[sz]e(Obs|State)", re.IGNORECASE), ("obs_rms", "state_rms")
_REWARDS = re.compile(r"Normali[sz]eReward", re.IGNORECASE), ("return_rms", "ret_rms", "reward_rms")
_TOLD: set[str] = set()  # warnings that were given already


class Raw(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that puts the reward as it is here into `info["raw_reward"]`."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, RAW: float(reward)}


def keep_raw(env: Env) -> bool:
    """Put a `Raw` below the innermost wrapper that scales rewards by running statistics; whether there is one."""
    found = [wrapper for wrapper in _wrappers(env) if _keeps(wrapper, _REWARDS)]
    if found:
        found[-1].env = Raw(found[-1].env)
    return bool(found)


def warn_of_running(env: Env, called: str) -> None:
    """Warn once of an environment's wrappers that keep running statistics, and name the settings to use instead."""
    for wrapper in _wrappers(env):
        name = f"{called}: the wrapper {type(wrapper).__name__}"
        if _keeps(wrapper, _OBSERVATIONS):
            _tell(f"{name} normalises observations by statistics of its own in each lane, and others in evaluation: "
                  "leave it out, and set normalise = true of [models.policy] and [models.critic]")  # fmt: skip
        if _keeps(wrapper, _REWARDS):
            _tell(f"{name} scales rewards by statistics of its own in each lane, and others in evaluation, whose "
                  f"returns are scaled ones (the raw ones are reported as {RAW!r}, if they can be had): leave it out, "
                  "and use [collect.scale_rewards], with returns = true of [models.critic]")  # fmt: skip


def _tell(message: str) -> None:
    if message not in _TOLD:
        _TOLD.add(message)
        warnings.warn(message, stacklevel=2)


def _wrappers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment, the outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _keeps(wrapper: Any, kind: tuple[re.Pattern[str], tuple[str, ...]]) -> bool:
    """Whether a wrapper is of a kind, by its class's name or by the statistics that it has."""
    named, statistics = kind
    return named.match(type(wrapper).__name__) is not None or not vars(wrapper).keys().isdisjoint(statistics)
