"""Precise and Dexterous Robotic Manipulation via Human-in-the-Loop RL (HIL-SERL, 2024), as a sketch: an operator takes
over now and then, and what the operator did is learnt from twice, as experience and as a demonstration.

Left out: the classifier of success, demonstrations before the start. Axes: `B` rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.ports import Ctx


class Operator(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Brakes where the pendulum is fast. `info["operator"]`: what was done in place of the action, or None."""

    def __init__(self, env: Any, fast: float = 1.0) -> None:
        super().__init__(env)
        self.fast = fast

    def step(self, action: Any) -> Any:
        speed = float(self.env.unwrapped.state[1])  # type: ignore[attr-defined]
        other = np.clip(np.array([-speed], np.float32), -2, 2) if abs(speed) > self.fast else None
        seen, reward, ended, cut, info = self.env.step(action if other is None else other)
        return seen, reward, ended, cut, {**info, "operator": other, "speed": abs(speed)}


@dataclass
class Taught:
    """The stream `imitate`: the rows that the operator decided."""

    needs: tuple[Need, ...] = ()
    reads = ("replaced",)
    stamps = ("weight/imitate",)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return batch.put({"weight/imitate": batch["replaced"][:, None] * batch["mask"]})
