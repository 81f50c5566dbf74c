"""Requests of environment lanes to a curriculum: where the next episodes begin, how long they may take, and which
numbers are noted for them.

Left out: groups of several samples, forced prefixes, per-episode sampling settings (a lane shares its policy's batch).

Axes: `N` lanes, `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array, ContractError, Payload, Request, nearest
from shuhari.ports import Ctx
from shuhari.rollouts.vector.lanes import TRUNCATED


class Asking:
    """One episode per request. It begins at `problem.start`, a snapshot of the task's environment (None: the task's own
    start), is truncated after `settings["limit"]` steps (0: never), and the numbers of its `info` are columns [B] of
    its rows (NaN in rows of other episodes). Raises ContractError for a request that lanes cannot play."""

    def __init__(self, lanes: int) -> None:
        self.limits = [0] * lanes
        self.info: dict[int, Mapping[str, float]] = {}  # episode -> the numbers of its request

    def ask(self, lanes: Sequence[int], episodes: Array, ctx: Ctx) -> dict[int, Payload]:
        """Requests a new episode for each lane, numbered by `episodes` [N]; returns lane -> its start."""
        requests = ctx.wait(ctx.curriculum.select(len(lanes), ctx))
        if len(requests) != len(lanes):
            raise ContractError(f"the curriculum gave {len(requests)} requests: expected {len(lanes)}, one a lane")
        for i, r in zip(lanes, requests, strict=True):
            _check(r)
            self.limits[i] = int(r.settings.get("limit", 0))
            self.info[int(episodes[i])] = {n: float(x) for n, x in r.info.items() if isinstance(x, int | float)}
        return {i: r.problem.start for i, r in zip(lanes, requests, strict=True)}

    def find_over(self, lanes: Iterable[int], row: int, began: Sequence[int]) -> list[tuple[int, int]]:
        """Returns (lane, TRUNCATED) for lanes whose episodes have reached their limit; `began` [N] are the episodes'
        first rows."""
        return [(i, TRUNCATED) for i in sorted(lanes) if 0 < self.limits[i] <= row - began[i]]

    def make_columns(self, episode: Tensor, current: Array) -> dict[str, Tensor]:
        """Returns the columns for rows of the episodes `episode` [B], then forgets the finished ones."""
        found, where = np.unique(episode.numpy(), return_inverse=True)
        told = [self.info.get(e, {}) for e in found.tolist()]
        self.info = {e: self.info[e] for e in current.tolist() if e in self.info}
        names, rows = (
            {
                n: None
                for x in told
                for n in x
            },
            torch.from_numpy(where),
        )
        return {
            n: torch.tensor([x.get(n, float("nan")) for x in told])[rows]
            for n in names
        }

    @property
    def state(self) -> dict[str, Any]:
        return {"limits": list(self.limits), "info": {str(e): dict(x) for e, x in self.info.items()}}

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        self.limits, self.info = list(saved["limits"]), {int(e): dict(x) for e, x in saved["info"].items()}


def _check(request: Request) -> None:
    if request.n > 1 or request.prefix or request.sampling is not None:
        what = f"n = {request.n}" if request.n > 1 else "a prefix" if request.prefix else "a sampling of its own"
        raise ContractError(f"problem {request.problem.id!r} was asked of a lane with {what}: expected one episode, "
                            "sampled as the rollout says")  # fmt: skip
    if unknown := set(request.settings) - {"limit"}:
        raise ContractError(f"lanes take no setting {min(unknown)!r}; {nearest(min(unknown), ['limit'])}")
