"""Default weights of rewards, if a recipe has no `[reward.weights]`."""

from __future__ import annotations

from collections.abc import Mapping

from shuhari.ports import Reward, Task
from shuhari.ports.hooks import ability


def grades_nothing(task: Task, rewards: Mapping[str, Reward]) -> bool:
    """Whether nothing grades: there is no reward, and the task declares that it does not grade."""
    return ability(task, "ungraded") and not rewards


def default_weights(task: Task, rewards: Mapping[str, Reward]) -> dict[str, float]:
    """Returns reward name -> default weight: 1 for each reward that counts by itself (`Reward.counts`), or if there is
    none, for the task's own measure."""
    if grades_nothing(task, rewards):
        return {}
    named = [ability(reward, "name") or key for key, reward in rewards.items() if ability(reward, "counts")]
    return dict.fromkeys(named or ["score" if task.spaces() is None else "task"], 1.0)
