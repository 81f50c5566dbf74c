"""Scripted policies by name: a task's expert, random actions, and a user's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from shuhari.kernel.registry import locate
from shuhari.ports import Task, ability

Expert = Callable[[Any, np.random.Generator], Any]
"""(observation, generator of random numbers) -> the action as the environment takes it"""


def find_expert(task: Task, policy: str) -> Expert:
    """Returns the policy with this name; see `Played`. Raises LookupError for an unknown one."""
    if policy == "random":
        space: Any = task.spaces()[1]  # type: ignore[index]
        return lambda observation, rng: draw_uniform(space, rng)
    if policy == "expert":
        own = ability(task, "expert")
        if own is None:
            called = task.problems("train")[0].task
            raise LookupError(f"the task {called} offers no expert: name a policy of your own, "
                              "'file.py:function' of (observation, generator) -> action, or 'random'")  # fmt: skip
        return _refuse_none(own, policy)
    found: Any = locate("policy", policy, ("expert", "random"))
    return _refuse_none(cast(Expert, found() if inspect.isclass(found) else found), policy)


def _refuse_none(expert: Expert, policy: str) -> Expert:
    """Returns the policy, wrapped to raise TypeError if it gives no action."""

    def act(observation: Any, rng: Any) -> Any:
        if (action := expert(observation, rng)) is None:
            raise TypeError(f"the policy {policy!r} returned None: expected an action, as the environment takes it")
        return action

    return act


def draw_uniform(space: Any, rng: np.random.Generator) -> Any:
    """Returns a uniform action, drawn by this generator only."""
    space.seed(int(rng.integers(2**31)))
    return space.sample()
