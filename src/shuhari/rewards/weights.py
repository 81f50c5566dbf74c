"""What rewards weigh if a recipe does not say: `[reward.weights]` by default."""

from __future__ import annotations

from collections.abc import Mapping

from shuhari.ports import Reward, Task
from shuhari.ports.hooks import ability


def grades_nothing(task: Task, rewards: Mapping[str, Reward]) -> bool:
    """Whether nothing grades: neither a reward, nor a task that says so of itself."""
    return ability(task, "ungraded") and not rewards


def default_weights(task: Task, rewards: Mapping[str, Reward]) -> dict[str, float]:
    """Reward name -> weight where none are given: 1 for each reward that counts by itself (`Reward.counts`), else for
    the task's own measure, if it has one."""
    if grades_nothing(task, rewards):
        return {}
    named = [ability(reward, "name") or key for key, reward in rewards.items() if ability(reward, "counts")]
    return dict.fromkeys(named or ["score" if task.spaces() is None else "task"], 1.0)
