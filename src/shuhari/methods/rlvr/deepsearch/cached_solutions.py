"""A cache of solutions, so that a problem that was seldom solved is not searched again.

Left out: the order of the problems (`inner` chooses), and the use of a solution (by a rollout with the setting
`known`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import PositiveShare, check
from shuhari.data import Request, code
from shuhari.events import Collected, Event
from shuhari.kernel.reduce import ends, group_mean, units
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

TYPES = {"action": np.int32, "mask": np.bool_, "logp": np.float32, "version": np.int64}


@register("curriculum", "cached_solutions")
@dataclass
class Cache:
    """Remembers a right answer to each prompt that is seldom solved, so that the tree search need not find it again
    (DeepSearch).

    The problems of `inner`. If a share in (0, `rate`] of a group's answers was right, later requests of its problem
    have the most confident one as the setting `known` (DeepSearch, arXiv 2509.25454, section 3.5). Answers below a
    shared step count each. A solution is kept as it was sampled: {"action", "mask", "logp", "version"} [K], along its
    whole path. Raises ValueError for a group sampled with top-p, top-k or min-p, whose kept ids are not stored here.
    """

    inner: Curriculum
    """Curriculum that the problems come from."""
    rate: PositiveShare = 0.25
    """Largest share of right answers in a group whose most confident one is kept."""
    reward: str = "score"
    """Name of the reward that decides whether an answer is right."""
    solved: float = 1.0
    """Smallest score of a right answer."""
    state: dict[str, Any] = field(init=False, default_factory=dict)  # code of a problem -> its solution

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.reward}",)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        return [self._show_solution(request) for request in await self.inner.select(n, ctx)]

    def _show_solution(self, request: Request) -> Request:
        found = self.state.get(str(code(request.problem.task, request.problem.id)))
        if found is None:
            return request
        known = {name: found[name].numpy().astype(dtype) for name, dtype in TYPES.items()}
        return replace(request, settings={**request.settings, "known": known})

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected) or f"reward/{self.reward}" not in event.batch:
            return
        batch = event.batch
        value = batch.outcome(f"reward/{self.reward}")
        right = torch.where(value.isnan(), torch.nan, (value >= self.solved).float())
        share, _ = group_mean(batch, right)
        rows = ends(batch) & (right == 1) & (share <= self.rate)
        for group in units(batch, "group")[rows].unique():
            leaves = (rows & (units(batch, "group") == group)).nonzero()[:, 0]
            key = str(int(batch["problem"][leaves[0]]))
            if key not in self.state:
                if "support" in batch:
                    raise ValueError("cache: sampling is truncated (top_p, top_k, min_p): expected the whole support")
                self.state[key] = max((solution(batch, leaf) for leaf in leaves), key=_confidence)


def solution(batch: Batch, leaf: Tensor) -> dict[str, Tensor]:
    """Returns the path to a leaf (a position in the batch) as one action: name -> [K]."""
    path, at = [], int(leaf)
    parent = batch.local(batch["parent"])
    while at >= 0:
        path.append(batch.arena[int(batch["step"][at])])
        at = int(parent[at])
    whole = {
        name: np.concatenate([getattr(s, name) for s in path[::-1]])
        for name in TYPES
    }
    return {name: torch.from_numpy(x) for name, x in whole.items()}


def _confidence(found: dict[str, Tensor]) -> float:
    return float(found["logp"][found["mask"]].mean())
