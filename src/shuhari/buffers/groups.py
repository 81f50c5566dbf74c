"""Rollout replay: whole groups of earlier steps, with the log-probabilities and advantages that they had then.

Used together with a buffer of new groups in a `mixture`. Source: DOTS + rollout replay (arXiv 2506.05316), section 4.2.
Left out: priorities; re-scoring (an advantage compares with a group's own samples, a ratio with its own policy).

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.events import Collected, Event
from shuhari.kernel.join import cat
from shuhari.kernel.reduce import group_mean
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried


@register("buffer", "groups")
@dataclass
class Groups:
    """Replays whole groups (all samples of a prompt) of earlier steps, with the log-probabilities and advantages that
    they had.

    Each step draws up to `size` groups at random and requests no collection. Only the newest group of each problem is
    kept, and only if its mean outcome lies strictly between `low` and `high`. A problem sampled in this step is not
    drawn, so that no batch mixes its old and new samples. Model outputs for the rows (needs) are not kept but
    recomputed at every draw. Rows keep their weight on `stream`.
    """

    size: Count = 32
    """Largest number of groups drawn at random in each step; 0 draws none."""
    capacity: Size = 512
    """Number of groups kept, the newest."""
    low: float = 0.0
    """Mean outcome above which a group is kept; 0 leaves out groups in which every sample failed."""
    high: float = 1.0
    """Mean outcome below which a group is kept; 1 leaves out groups in which every sample was right."""
    reward: str = "reward"
    """Reward column that is the outcome of a sample; `reward` is the weighted sum that is trained."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    name: str = "groups"
    """Name that seeds the random draws; give each buffer of a run its own."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"kept": None, "new": [], "sampled": []})

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected) and len(event.batch):
            batch = put_on_stream(event.batch, self.stream)
            mean, _ = group_mean(batch, batch.outcome(self.reward))
            good = find_carried(batch, self.stream) & (mean > self.low) & (mean < self.high)
            self.state["sampled"] += batch["problem"].unique().tolist()
            if bool(good.any()):
                self.state["new"].append(copy_rows(batch.take(torch.isin(batch["group"], batch["group"][good]))))

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        kept, new, sampled = self.state["kept"], self.state["new"], self.state["sampled"]
        if kept is not None and sampled:
            kept = _take_any(kept, ~torch.isin(kept["problem"], torch.tensor(sampled)))
        both = [b for b in (kept, *new) if b is not None]
        self.state = {"kept": self._keep_newest(cat(both)) if both else None, "new": [], "sampled": []}
        if kept is None or not self.size:
            return
        groups = kept["group"].unique()
        drawn = groups[torch.randperm(len(groups), generator=ctx.rng(self.name))[: self.size]]
        yield kept.take(torch.isin(kept["group"], drawn))

    def _keep_newest(self, batch: Batch) -> Batch:
        """Returns the last group of each problem, at most `capacity` of them; rows are in order of arrival."""
        problem, group = batch["problem"].tolist(), batch["group"].tolist()
        last = set(dict(zip(problem, group, strict=True)).values())
        alive = [g for g in dict.fromkeys(group) if g in last][-self.capacity :]
        return (
            batch
            if len(alive) == len(set(group))
            else copy_rows(batch.take(torch.isin(batch["group"], torch.tensor(alive))))
        )


def _take_any(batch: Batch, rows: Tensor) -> Batch | None:
    return batch.take(rows) if bool(rows.any()) else None


def copy_rows(batch: Batch, **columns: Tensor) -> Batch:
    """Returns copies of the rows, without model outputs, and with `columns` replacing theirs."""
    flat = batch.flat()
    columns = {n: x for n, x in flat.whole.items() if n not in flat.scored} | columns
    return Batch(columns, None, None, flat.arena, None, flat.stream)
