"""Hosts of the environments of a vector rollout: the `Actor` port, `Inline` for this process (the other one is
`workers.Workers`), and the layout of observations.

A rollout passes the actions of some lanes to an actor (`post`) and later waits for the results (`poll`), so that other
lanes can be stepped elsewhere in the meantime. Left out: sampling, and what becomes of the results.

Axes: `N` lanes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Array, Payload
from shuhari.engines.time_limit import EscapeError, Overdue, guard
from shuhari.ports.hooks import ability
from shuhari.tasks.lanes import Lanes, are_alike
from shuhari.tasks.snapshots import begin, restore, snapshot
from shuhari.tasks.tells import EXTRAS
from shuhari.tasks.views import storage_dtype

PATIENCE, LEAVE = 600.0, 30.0  # seconds for a step or reset of lanes; for closing
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
Extras = Mapping[str, Array]  # name -> [N, ...]
Seen = Any  # an array of observations [N, ...], or a dict of arrays by key


class Actor(Protocol):
    """Steps environments ("lanes"). `astray`: it has ended, or is in the middle of a step (posted but not polled)."""

    @property
    def astray(self) -> bool: ...
    def start(self, seeds: Sequence[int], seen: Seen) -> None: ...  # reset every lane for the first time, into `seen`
    def post(self, lanes: slice, taken: Any, fresh: Mapping[int, Payload]) -> None:
        """Submits the next move: lanes in `fresh` begin an episode, at the given start or the task's own (None); the
        others take their action of `taken` [lanes], or do not move if it is None."""

    def poll(self, lanes: slice, seen: Seen, reward: Array, extras: Extras) -> list[tuple[int, int]]:
        """Waits for the moves posted to `lanes`: observations go into `seen` [N, ...], rewards (0 for a reset) into
        `reward` [N], other reported values into `extras` (not for a reset). Returns (lane, how it ended) of finished
        episodes. Polls come in the order of posts."""

    def snapshots(self) -> list[Any]: ...  # one of each lane
    def restore(self, saved: Sequence[Any]) -> None: ...
    def close(self) -> None: ...


class Inline:
    """An actor in this process: posts are executed when polled. `lanes`: the numbers of its environments, which are
    stepped together if they support it and there are at least `few`. seconds: time limit of all of them for one post
    (0: none)."""

    few = 10  # fewer are faster one by one

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], lanes: Iterable[int], seconds: float = PATIENCE
    ) -> None:
        self.seconds = seconds
        self.envs = {i: make() for i in lanes}
        self._index = {i: k for k, i in enumerate(self.envs)}
        self._alike = len(self.envs) >= self.few and are_alike([*self.envs.values()])
        self._together: Lanes | None = None  # holds the state of the environments; None: they hold it themselves
        self._posted: dict[int, tuple[Any, Mapping[int, Payload]]] = {}

    @property
    def astray(self) -> bool:
        return bool(self._posted)

    def start(self, seeds: Sequence[int], seen: Seen) -> None:
        self._part()
        for i, env in self.envs.items():
            with guard(partial(self._name, "reset", i), self.seconds):
                write(seen, i, env.reset(seed=seeds[i])[0])

    def post(self, lanes: slice, taken: Any, fresh: Mapping[int, Payload]) -> None:
        self._posted[lanes.start] = taken, fresh

    def poll(self, lanes: slice, seen: Seen, reward: Array, extras: Extras) -> list[tuple[int, int]]:
        taken, fresh = self._posted[lanes.start]
        envs, first, over, i = self.envs, lanes.start, list[tuple[int, int]](), lanes.start
        alone: Sequence[int] = range(first, lanes.stop)
        if self._alike and taken is not None and len(alone) - len(fresh) >= self.few:
            over, alone = self._step_together(lanes, taken, fresh, seen, reward, extras), sorted(fresh)
        at = [self._index[i] for i in alone] if self._together is not None else []
        if self._together is not None and at:
            self._together.put(at)
        try:
            with guard(lambda: self._name("reset" if i in fresh else "step", i), self.seconds):
                for i in alone:
                    if i in fresh:
                        write(seen, i, begin(envs[i], fresh[i]))
                        reward[i] = 0.0
                    elif taken is not None:
                        o, reward[i], terminated, truncated, info = envs[i].step(taken[i - first])
                        write(seen, i, o)
                        for name, to in extras.items():
                            to[i] = info[EXTRAS][name]
                        if terminated or truncated:
                            over.append((i, TERMINATED if terminated else TRUNCATED))
        except Exception as error:
            self._part(without=at)
            error.add_note(f"in lane {i}, counted from 0")
            raise
        if self._together is not None and at:
            self._together.take(at)
        del self._posted[lanes.start]
        return over

    def _step_together(
        self, lanes: slice, taken: Any, fresh: Mapping[int, Payload], seen: Seen, reward: Array, extras: Extras
    ) -> list[tuple[int, int]]:
        """Steps the lanes that are not `fresh`; returns (lane, how it ended) of finished episodes."""
        if self._together is None:
            self._together = Lanes([*self.envs.values()])
        moved: Sequence[int] = range(lanes.start, lanes.stop)
        into: Any = lanes
        at: Any = slice(begins := self._index[lanes.start], begins + len(moved))
        actions = np.asarray(taken)
        if fresh:
            into = moved = [i for i in moved if i not in fresh]
            at, actions = (
                [self._index[i] for i in moved],
                actions[[i - lanes.start for i in moved]],
            )
        try:
            with guard(lambda: self._name("step_lanes", lanes.start), self.seconds):
                o, reward[into], terminated, truncated, info = self._together.act_some(at, actions)
        except Exception as error:
            error.add_note(f"in lanes {lanes.start} to {lanes.stop - 1}, counted from 0")
            raise
        write(seen, into, o)
        for name, to in extras.items():
            to[into] = info[EXTRAS][name]
        ends = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, RUNNING))
        return [(moved[k], int(ends[k])) for k in np.flatnonzero(ends).tolist()]

    def _part(self, without: Sequence[int] = ()) -> None:
        """Writes the joint state back into the environments, except those in `without`."""
        if self._together is not None:
            self._together.put([k for k in self._index.values() if k not in without])
        self._together = None

    def snapshots(self) -> list[Any]:
        self._part()
        return [snapshot(env) for env in self.envs.values()]

    def restore(self, saved: Sequence[Any]) -> None:
        self._part()
        for env, s in zip(self.envs.values(), saved, strict=True):
            restore(env, s)

    def close(self) -> None:
        for i, env in self.envs.items():
            try:
                with guard(partial(self._name, "close", i), min(self.seconds or LEAVE, LEAVE)):
                    env.close()
            except (Overdue, EscapeError) as error:  # its results are no longer needed
                logging.getLogger("shuhari").warning("%s", error)

    def _name(self, call: str, lane: int) -> str:
        whose = type(self.envs[lane].unwrapped).__name__
        return f"the {call} of {whose} in lane {lane}, counted from 0 ([rollout] timeout),"


# ---------------------------------------------------------------- observations


def allocate(space: spaces.Space[Any], *shape: int) -> Seen:
    """Allocates arrays [*shape, ...] for observations."""
    return map_parts(lambda s: np.empty((*shape, *(s.shape or ())), storage_dtype(s)), split_space(space))


def find_extras(task: Any) -> dict[str, Array]:
    """Returns name -> fill value of everything that the task's environments report beside observations and rewards."""
    found: dict[str, Array] = dict(ability(task, "extras"))
    return found


def split_space(space: spaces.Space[Any]) -> Any:
    """Returns the spaces of a Dict by key, any other space as it is."""
    return dict(space) if isinstance(space, spaces.Dict) else space


def map_parts(f: Callable[[Any], Any], x: Any) -> Any:
    """Applies f to an array, or to each array of a mapping."""
    return {k: f(v) for k, v in x.items()} if isinstance(x, dict) else f(x)


def view_rows(seen: Seen, t: int | slice) -> Seen:
    """Returns row t, or a slice of rows, as a view."""
    return {k: x[t] for k, x in seen.items()} if isinstance(seen, dict) else seen[t]


def write(into: Seen, i: Any, observation: Any) -> None:
    if isinstance(into, dict):
        for k, x in into.items():
            x[i] = observation[k]
    else:
        into[i] = observation
