"""Scripted policies, (observation, generator) -> action: `policy = "shuhari.buffers.experts.<name>"` of `played`.

They need no training, and are what imitation is measured against. Environments with an `expert` of their own need none.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def balance_pole(observation: Any, rng: np.random.Generator) -> int:
    """For CartPole: push to the side that the pole falls to, and slowly back to the middle; all 500 steps."""
    place, speed, angle, spin = observation
    return int(0.05 * place + 0.1 * speed + angle + 0.5 * spin > 0)
