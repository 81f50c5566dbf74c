"""What a run opens once, and closes at its end: rollouts, graders, the engine, workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shuhari.kernel.abilities import explain_misfit
from shuhari.kernel.state import walk
from shuhari.ports import Engine, Reward, Rollout, Task, VectorRollout, ability


class Opened:
    """`components`: everything closed with the run; `engine`: the one that was opened last."""

    def __init__(self) -> None:
        self.components: list[Any] = []
        self.engine: Engine | None = None

    def hold(self, component: Any) -> bool:
        """Remember a component that has to be closed, and return whether it is new."""
        new = all(component is not one for one in self.components)
        if new:
            self.components.append(component)
        return new

    def open(
        self,
        rollouts: Mapping[str, tuple[Any, Task]],
        rewards: Iterable[Reward],
        key: Callable[[str], int],
    ) -> None:
        """Open rollouts, name -> (rollout, its task), and rollouts in their fields that need opening (lanes of
        environments), and hold the rewards. `key`: returns the seed of the rollout of a name."""
        for reward in rewards:
            self.hold(reward)
        part: Rollout | VectorRollout
        for name, (rollout, task) in rollouts.items():
            inner = ((f"{name}/{at}", x) for at, x in walk(rollout) if not explain_misfit("rollout", x))
            for place, part in ((name, rollout), *inner):
                if self.hold(part):
                    ability(part, "open")(task, key(place))

    def open_engine(self, engine: Engine, seed: int, charge: Callable[[str, float], None]) -> None:
        """Open an engine, and close the previous stage's."""
        if engine is not self.engine:
            if self.engine is not None:
                ability(self.engine, "close")()
            ability(engine, "open")(seed, charge)
            self.engine = engine

    def close(self, *more: Any) -> None:
        """Close everything: components, then `more` (None is skipped), then the engine."""
        for one in (*self.components, *more, self.engine):
            if one is not None:
                ability(one, "close")()
