"""A car that must merge from a ramp onto a road before the ramp ends, between cars that keep their distance.

Left out: heading and steering geometry (the car is a point that moves along and across), several lanes, cars that
change lane or give way before it is in theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped, at_least, at_most, look, power
from shuhari.tasks.scene import Scene

DT = 0.4  # s per step
LONG, WIDE = 5.0, 2.0  # m: two cars touch if they are nearer than this, along and across
LANE = 4.0  # m from the centre of the ramp to that of the road
ACCELERATION, ACROSS = 3.0, 2.0  # m/s^2 and m/s, for an action of 1
FASTEST, HARDEST = 20.0, 6.0  # m/s; m/s^2 of braking at most
HEADWAY, STANDSTILL, CALM, COMFORT = 1.0, 2.0, 1.5, 2.0  # s, m, m/s^2, m/s^2: T, s0, a, b of the IDM


@register("world", "merge")
@dataclass(eq=False)
class Merge(gymnasium.Env[Array, Array]):
    """A car that must merge from a ramp onto a road before the ramp ends, between cars that keep their distance.

    Observation [7]: the position along the ramp (0 to 1), the position across (-1 on the ramp, 0 on the road), the
    speed in 15 m/s; then for the next car ahead on the road and the next behind: the distance to its centre (in 20 m,
    negative behind) and its speed relative to one's own (in 5 m/s). Action [2] in [-1, 1]: acceleration, in 3 m/s², and
    speed across, in 2 m/s. A step is 0.4 s. Being on the road (within 1 m of its centre) at the end of the ramp pays 1;
    touching a car, or the end of the ramp, pays 0; either ends the episode: the return is success.

    The cars follow the intelligent driver model (Treiber et al. 2000, "Congested traffic states in empirical
    observations and microscopic simulations", equations 3 and 4), evenly spaced except for a shift uniform within a
    fifth of the spacing, and follow the merging car once it overlaps with their lane. Raises ValueError for cars that
    do not fit.
    """

    ramp: Positive = 120.0
    """Length of the ramp in m."""
    cars: Annotated[int, Bounds(2, most=10**8)] = 7
    """Number of cars on the road; more leave smaller gaps."""
    ring: Positive = 120.0
    """Length of the circular road in m, at least 10 m for each car."""
    pace: Positive = 13.0
    """Target speed of the cars on the road, in m/s."""
    limit: Length = 60
    """Number of steps, 0.4 s each, after which an episode is truncated."""
    moves: ClassVar = "x", "y", "v", "at", "places", "speeds"

    def __post_init__(self) -> None:
        check(self)
        if self.ring < self.cars * 2 * LONG:
            raise ValueError(f"ring is {self.ring} m: expected {2 * LONG:g} m or more for each of {self.cars} cars")
        self.observation_space = spaces.Box(-np.inf, np.inf, (7,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.x, self.y, self.v, self.at = 0.0, -LANE, 0.0, 0
        self.places = np.zeros(self.cars)  # m along the ring, of each car, in order; the next drives ahead
        self.speeds = np.zeros(self.cars)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        u, space = self.np_random.uniform(size=self.cars + 3), self.ring / self.cars
        self.x, self.y, self.v, self.at = 0.0, -LANE, 6.0 + 6.0 * float(u[0]), 0
        self.places = (np.arange(self.cars) + u[1] + 0.2 * u[3:]) * space
        self.speeds = np.full(self.cars, 8.0 + 2.0 * u[2])
        return self._look(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        a, across = (float(u) for u in np.clip(action, -1.0, 1.0))
        self.speeds = np.clip(self.speeds + DT * np.array(self._follow()), 0.0, FASTEST)
        self.places = self.places + DT * self.speeds
        self.v = min(max(self.v + ACCELERATION * a * DT, 0.0), FASTEST)
        self.x += self.v * DT
        self.y = min(max(self.y + ACROSS * across * DT, -LANE - 1.0), 1.0)
        self.at += 1
        ahead, behind = self._neighbours()
        touches = abs(self.y) < WIDE and min(ahead[0], -behind[0]) < LONG
        ends = self.x >= self.ramp
        won = ends and not touches and abs(self.y) <= 1.0
        done = touches or ends
        return self._look(), float(won), done, self.at >= self.limit and not done, {}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        x, y, v, places, speeds = lanes.x, lanes.y, lanes.v, lanes.places, lanes.speeds  # the last two [N, cars]
        a, across = np.clip(actions, -1.0, 1.0).astype(float).T
        next_ = np.arange(1, self.cars + 1) % self.cars
        gap, before = (places[:, next_] - places) % self.ring, speeds[:, next_]
        own = (x[:, None] - places) % self.ring
        follows = (np.abs(y) < WIDE)[:, None] & (own > 0.0) & (own < gap)
        gap, before = np.where(follows, own, gap), np.where(follows, v[:, None], before)
        closes = speeds * HEADWAY + speeds * (speeds - before) / (2 * (CALM * COMFORT) ** 0.5)
        wanted = STANDSTILL + np.where(closes > 0.0, closes, 0.0)
        push = CALM * (1 - power(speeds / self.pace, 4) - power(wanted / at_least(gap - LONG, 0.1), 2))
        lanes.speeds = speeds = np.clip(speeds + DT * at_least(push, -HARDEST), 0.0, FASTEST)
        lanes.places = places = places + DT * speeds
        lanes.v = v = at_most(at_least(v + ACCELERATION * a * DT, 0.0), FASTEST)
        lanes.x = x = x + v * DT
        lanes.y = y = at_most(at_least(y + ACROSS * across * DT, -LANE - 1.0), 1.0)
        lanes.at = lanes.at + 1
        ways = (places - x[:, None]) % self.ring
        ahead, far = ways.min(1), ways.max(1)
        behind = far - self.ring
        faster = np.where(ways == ahead[:, None], speeds, np.inf).min(1)
        nearer = np.where(ways == far[:, None], speeds, -np.inf).max(1)
        touches = (np.abs(y) < WIDE) & (at_most(ahead, -behind) < LONG)
        ends = x >= self.ramp
        won, done = ends & ~touches & (np.abs(y) <= 1.0), touches | ends
        others = ahead / 20, (faster - v) / 5, behind / 20, (nearer - v) / 5
        seen = look(x / self.ramp, y / LANE, v / 15, *others)
        return seen, won.astype(float), done, (lanes.at >= self.limit) & ~done, {}

    @property
    def scene(self) -> Scene:
        """The ramp's end is a wall, the end of the road beside it the goal; the other cars move, and are not shown."""
        low, road = -1.0 - 1.0 / LANE, 1.0 / LANE
        return Scene((0.0, low, 1.02, road - low), ((1.0, low, 0.02, -road - low),), ((1.0, -road, 0.02, 2 * road),))

    def expert(self, observation: Any, rng: Any) -> Array:
        """Drives to the middle of the gap beside it at the speed of the cars around, and changes over if there is room;
        uses only the observation."""
        _, y, _, ahead, faster, behind, nearer = (float(u) for u in observation)
        ahead, behind = 20.0 * ahead, 20.0 * behind
        wanted = 0.15 * (ahead + behind) + 0.5 * 5.0 * (faster + nearer)
        fits = min(ahead, -behind) > LONG + 1.0 or abs(y) * LANE < WIDE
        across = -LANE * y / (ACROSS * DT) if fits else -1.0
        return np.clip(np.array([wanted / ACCELERATION, across], np.float32), -1.0, 1.0)

    def _follow(self) -> list[float]:
        """Returns the acceleration of each car by the IDM, with bounded braking."""
        pushes, merged = [], abs(self.y) < WIDE
        places, speeds = self.places.tolist(), self.speeds.tolist()  # plain numbers: faster for so few cars
        for i, (x, v) in enumerate(zip(places, speeds, strict=True)):
            j = (i + 1) % self.cars
            gap, before = (places[j] - x) % self.ring, speeds[j]
            if merged and 0.0 < (own := (self.x - x) % self.ring) < gap:
                gap, before = own, self.v
            wanted = STANDSTILL + max(0.0, v * HEADWAY + v * (v - before) / (2 * (CALM * COMFORT) ** 0.5))
            push = CALM * (1 - (v / self.pace) ** 4 - (wanted / max(gap - LONG, 0.1)) ** 2)
            pushes.append(max(push, -HARDEST))
        return pushes

    def _neighbours(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Returns (distance in m, speed in m/s) of the next car ahead on the road, and of the next behind, with
        negative distance."""
        ways = [((x - self.x) % self.ring, v) for x, v in zip(self.places.tolist(), self.speeds.tolist(), strict=True)]
        far, v = max(ways)
        return min(ways), (far - self.ring, v)

    def _look(self) -> Array:
        (ahead, faster), (behind, nearer) = self._neighbours()
        others = ahead / 20, (faster - self.v) / 5, behind / 20, (nearer - self.v) / 5
        return np.array([self.x / self.ramp, self.y / LANE, self.v / 15, *others], np.float32)
