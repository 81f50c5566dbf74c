"""Scripted policies, (observation, generator) -> action: `policy = "shuhari.buffers.experts.<name>"` of `played`.

They need no training, and are references for imitation. Environments with an `expert` of their own need none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shuhari.data import Array


def _check(observation: Any, count: int, whose: str) -> None:
    """Raises ValueError if an observation does not have `count` numbers: it is from another environment."""
    if np.shape(observation) != (count,):
        shape = list(np.shape(observation))
        raise ValueError(f"{whose}, whose observations have shape [{count}]: this task's have {shape}")


def balance_pole(observation: Any, rng: np.random.Generator) -> int:
    """Plays CartPole: pushes to the side that the pole falls to, and slowly back to the middle; lasts all 500 steps."""
    _check(observation, 4, "balance_pole plays CartPole")
    place, speed, angle, spin = observation
    return int(0.05 * place + 0.1 * speed + angle + 0.5 * spin > 0)


def swing_up(observation: Any, rng: np.random.Generator) -> Array:
    """Plays Pendulum: pushes along its motion until it has the energy of standing upright, and holds it once it stands;
    a return of about -150. Units: torque up to 2, energy of a rod of mass and length 1 (5 at the top, at rest)."""
    _check(observation, 3, "swing_up plays Pendulum")
    cosine, sine, spin = (float(x) for x in observation)
    angle = math.atan2(sine, cosine)  # 0 at the top
    if abs(angle) < 0.4:
        torque = -10 * angle - 2 * spin
    else:
        lacks = 5 - (spin * spin / 6 + 5 * cosine)
        torque = 2 * lacks * (1 if spin >= 0 else -1)
    return np.array([min(max(torque, -2.0), 2.0)], np.float32)


def climb(observation: Any, rng: np.random.Generator) -> Array:
    """Plays MountainCarContinuous: pushes along its motion, which swings it to the top in about 110 steps; a return of
    about 90."""
    _check(observation, 2, "climb plays MountainCarContinuous")
    return np.array([1.0 if float(observation[1]) >= 0 else -1.0], np.float32)
