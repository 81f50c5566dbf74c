"""Extra outputs of a Gymnasium environment beside its reward: further rewards, facts, and the executed action.

They are in the `info` of a step, or in a vector reward. A wrapper puts them under one key, as arrays of fixed shapes,
so that lanes can write them directly into columns, also from worker processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from shuhari.data import Array, nearest
from shuhari.tasks.lanes import Stepped

Env = gymnasium.Env[Any, Any]
EXTRAS = "shuhari/extras"  # the key of `info`
EXECUTED = "executed"  # the column of the executed action
HOW = ("reward", "final", "column", "action")
PATIENCE = 1000  # random steps in which every name must occur


class Teller(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `info[EXTRAS]`: name -> array, in the layout of `find_layout`; the reward is the sum of its entries."""

    def __init__(self, env: Env, tells: Mapping[str, str], rewards: tuple[str, ...], like: Mapping[str, Array]) -> None:
        super().__init__(env)
        self.tells = [(name, how, column_of(name, how)) for name, how in tells.items()]
        self.rewards, self.like = rewards, like

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = np.array(action) if EXECUTED in self.like else None  # some environments change what they get
        observation, given, terminated, truncated, info = self.env.step(action)
        reward: Any = given
        extras = {f"reward/{name}": np.asarray(r) for name, r in zip(self.rewards, np.ravel(reward), strict=False)}
        for name, how, column in self.tells:
            value = info.get(name)
            if how == "action":
                value = sent if value is None else value
            elif value is None or (how == "final" and not (terminated or truncated)):
                value = self.like[column]
            extras[column] = np.asarray(value, self.like[column].dtype)
        return observation, float(np.sum(reward)), terminated, truncated, {**info, EXTRAS: extras}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        sent = actions.copy() if EXECUTED in self.like else None
        seen, reward, terminated, truncated, info = lanes.step(actions)
        extras = {f"reward/{name}": reward[:, k] for k, name in enumerate(self.rewards)}
        total = np.array([np.sum(r) for r in reward], float) if self.rewards else reward
        for name, how, column in self.tells:
            value, like = info.get(name), self.like[column]
            if how == "action":
                value = sent if value is None else value
            elif value is None:
                value = np.broadcast_to(like, (len(reward), *like.shape))
            elif how == "final":
                value = np.where(terminated | truncated, value, like)
            extras[column] = np.asarray(value, like.dtype)
        return seen, total, terminated, truncated, {**info, EXTRAS: extras}


def column_of(name: str, how: str) -> str:
    """Returns the column of the extra output with this name."""
    return EXECUTED if how == "action" else f"reward/{name}" if how in ("reward", "final") else name


def find_layout(env: Env, tells: Mapping[str, str], rewards: tuple[str, ...], whose: str) -> dict[str, Array]:
    """Finds the extra outputs in an episode of random actions: column -> its fill value for missing reports, 0 for a
    reward, NaN (-1 for integers) for other numbers. Raises ValueError for a name that never occurs, and for a reward
    without the entries that `rewards` names."""
    for name, how in tells.items():
        if how not in HOW:
            raise ValueError(f"{whose}: tells.{name} is {how!r}; {nearest(how, HOW)}")
        if name in rewards or (name == "task" and how in ("reward", "final")):
            raise ValueError(f"{whose}: tells.{name}: a reward of that name is there already")
    if sum(how == "action" for how in tells.values()) > 1:
        raise ValueError(f"{whose}: tells names several actions: expected one, which is executed")
    env.reset(seed=0)
    env.action_space.seed(0)
    found: dict[str, Array] = {}
    known: set[str] = set()
    for _ in range(PATIENCE):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        if (got := np.asarray(reward).size) != max(1, len(rewards)):
            raise ValueError(f"{whose}: its reward has {got} entries, and `rewards` names {len(rewards)}")
        known |= info.keys()
        found |= {n: np.asarray(info[n]) for n in tells if info.get(n) is not None}
        if found.keys() >= {n for n, how in tells.items() if how != "action"} or terminated or truncated:
            break
    if lost := [n for n, how in tells.items() if n not in found and how != "action"]:
        raise ValueError(f"{whose}: tells.{lost[0]}: the environment reported none in an episode of random actions; "
                         f"{nearest(lost[0], known)}; if it is reported only at times, put None into `info` at the "
                         "other steps")  # fmt: skip
    out = {f"reward/{name}": np.zeros((), np.float32) for name in rewards}
    for name, how in tells.items():
        if how == "action":
            space: Any = env.action_space
            out[EXECUTED] = np.zeros(space.shape or (), space.dtype)
            continue
        x = found[name]
        if x.dtype.kind not in "biuf" or (x.ndim and how != "column"):
            raise ValueError(f"{whose}: tells.{name} = {how!r}: it reports {str(x)[:40]} ({x.dtype}, shape {x.shape}): "
                             f"expected {'numbers' if how == 'column' else 'one number'}")  # fmt: skip
        whole = how == "column" and x.dtype.kind in "iu"
        fill = 0 if how != "column" else -1 if whole else np.nan
        out[column_of(name, how)] = np.full(x.shape, fill, np.int64 if whole else np.float32)
    return out
