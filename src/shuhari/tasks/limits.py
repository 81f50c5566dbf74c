"""What an episode's time limit means to a learner: by default the end of what is seen, here the end of all."""

from __future__ import annotations

from typing import Any

import gymnasium


class EndAtLimit(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Calls the time limit of an episode its end: nothing is worth anything after it. A learner otherwise expects after
    a time limit what it expects of the last state. CleanRL's PPO counts so. In a recipe:
    `task.wrappers = ["shuhari.tasks.limits.EndAtLimit"]`."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, bool(terminated or truncated), False, info
