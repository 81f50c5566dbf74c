"""The context as collection, groups in flight and jobs see it: more than components may use (`Ctx`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from shuhari.data import Request, Trajectory
from shuhari.loop.reward_names import Names
from shuhari.ports import AsyncEngine, Ctx


class LoopCtx(Ctx, Protocol):
    """`Ctx`, and what is internal to the loop. `loop.context.Context` has both."""

    rollout: Any  # a Rollout or a VectorRollout
    rewards: Mapping[str, Any]  # name -> Reward
    reward_names: Names  # all that was ever paid or graded, and by whom
    apart: bool  # whether the task is one that the run is not trained on
    groups: list[list[Trajectory]]  # what this step collected
    latest: list[list[Trajectory]]  # of these, the last round's
    probed: list[list[Trajectory]] | None  # graded groups of probes, if somebody wants to look at them
    problems: list[str]  # what went wrong in this step, first messages
    next_row: int
    muted: bool  # while what was spent already is asked for again
    crew: Any  # workers elsewhere, None where there are none

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def staleness(self) -> int: ...
    @property
    def async_engine(self) -> AsyncEngine | None: ...  # the engine, where groups stay in flight over steps
    def stamp_request(self, request: Request, tag: str) -> Request: ...  # with its key, n and sampling
