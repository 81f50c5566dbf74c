"""The on-policy buffer: yields what was collected since the last draw, once.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from shuhari.batch import Batch
from shuhari.bounds import Size, check
from shuhari.events import Collected, Event
from shuhari.kernel.join import cat
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried


@register("buffer", "fresh")
@dataclass
class Fresh:
    """On-policy buffer: gathers what the policy samples until there are `size` groups (or decisions), then yields all
    of it once, as one batch.

    Groups whose weight on `stream` a filter has set to 0 do not count, so the run collects more in their place; a draw
    omits groups of weight 0 on all streams. Rows of episodes that ended in an error have weight 0.
    """

    size: Size = 64
    """Number of groups (prompts with all of their samples) in a batch, or of decisions if `unit` is "decision"; as
    `n_steps` times `n_envs` in Stable-Baselines3."""
    unit: Literal["group", "decision"] = "group"
    """Unit of `size`: "group" for prompts that are sampled several times, "decision" for steps of environments side by
    side."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"batches": [], "have": 0})

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        """Returns how many units are still missing."""
        return max(0, self.size - int(self.state["have"]))

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected) or not len(event.batch):
            return
        batch = put_on_stream(event.batch, self.stream)
        rows = find_carried(batch, self.stream)
        found = batch["mask"][rows].sum() if self.unit == "decision" else len(batch["group"][rows].unique())
        self.state["batches"].append(batch)
        self.state["have"] += int(found)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        batches, self.state = self.state["batches"], {"batches": [], "have": 0}
        if batches:
            yield _drop_weightless(cat(batches))


def put_on_stream(batch: Batch, stream: str) -> Batch:
    """Returns `batch` on `stream`: weight = mask, stored only if some rows have weight 0."""
    batch = batch.put({})
    batch.stream = stream
    ok = find_usable(batch)
    if not bool(ok.all()):
        batch = batch.put({f"weight/{stream}": batch.weight(stream) * ok[:, None]})
    return batch


def _drop_weightless(batch: Batch) -> Batch:
    """Returns the batch without the groups of weight 0 on all streams, as scoring them would be wasted. With links, all
    rows stay."""
    names = [n for n in batch.names() if n.startswith("weight/")]
    if not names or batch.links:
        return batch
    rows = torch.stack([(batch.weight(n.removeprefix("weight/")) != 0).any(1) for n in names]).any(0)
    if batch.stream is not None and f"weight/{batch.stream}" not in batch:
        return batch
    _, group = torch.unique(batch["group"], return_inverse=True)
    wanted = torch.zeros(len(group), dtype=torch.bool).index_fill_(0, group[rows], True)[group]
    return batch if bool(wanted.all()) else batch.take(wanted)
