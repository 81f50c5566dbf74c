"""Replay: a ring of whole columns, from which rows are drawn again and again.

A draw is a view: nothing is copied before it is read, and `ahead` finds the successor of each row. Rows stand in order
of arrival, parents before children, so the oldest is always overwritten before its successor, and no pointer is ever
left hanging. The row that a lane's fragment left open (`resumes`) is overwritten where it stands when the lane goes on.
Left out: priorities, n-step returns, text (its rows differ in length).

Axes: `B` rows of a collected batch, `C` capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import STATUS, Batch
from shuhari.columns import unknown
from shuhari.data import Array, Status
from shuhari.events import Collected, Event
from shuhari.ports import Ctx
from shuhari.registry import register
from shuhari.store.ring import Ring
from shuhari.transforms.streams import carried

_TRIES = 64  # at drawing only eligible rows
_LEFT_OUT = frozenset({"parent", "step", "resumes", "leaf", "length"})  # derived, or of the collected batch alone


@register("buffer", "replay")
@dataclass
class Replay:
    """Each step collects `collect` decisions and draws batches of `size` rows uniformly, with replacement: `draws` of
    them, or `ratio` (where it is above 0) for every new decision. Nothing is drawn before `warmup` decisions, which the
    first steps collect at once. Rows that decide nothing are never drawn, nor those that weigh nothing on `stream` or
    whose episode ended in an error. What models were asked about the rows (needs) is not kept: it is asked again at
    every draw.

    capacity: rows kept; a closing row takes one too. name: draws hang on it, so two replays of a run have two. Raises
    TypeError for text, ValueError for more rows at once than the ring holds.
    """

    capacity: int = 100_000
    size: int = 256
    collect: int = 1
    draws: int = 1
    ratio: float = 0.0
    warmup: int = 0
    stream: str = "rl"
    name: str = "replay"
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"ring": None, "tail": [], "seen": 0, "new": 0, "owed": 0.0}
    )

    def __post_init__(self) -> None:
        for name, least in (("capacity", 2), ("size", 1), ("collect", 1), ("draws", 0), ("ratio", 0), ("warmup", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"replay: {name} is {getattr(self, name)}: expected at least {least}")
        self._of: Ring | None = None

    def short(self) -> int:
        """Decisions still wanted: the rest of the warm-up at first, then `collect` a step."""
        missing: int = max(self.collect - self.state["new"], self.warmup - self.state["seen"])
        return max(0, missing)

    # ---------------------------------------------------------------- writing

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected) or not len(event.batch):
            return
        batch = event.batch if event.batch.rows is None else event.batch.flat()
        columns = {n: batch[n].numpy() for n in batch.names() - _LEFT_OUT - batch.scored}
        eligible = carried(batch, self.stream)
        if (weight := self._weight(batch, eligible)) is not None:
            columns[f"weight/{self.stream}"] = weight
        if not any(n.partition("/")[0] == "context" for n in columns):
            raise TypeError("replay: a batch without a column 'context': rows of text differ in length; use 'fresh'")
        child = columns.setdefault("child", batch["child"].numpy())
        if bool((child < -1).any() | ((child >= 0) & (child <= np.arange(len(child)))).any()):
            raise ValueError("replay: rows must be chains, each before its successor")
        ring = self._ring(columns, len(batch))
        slots, added = self._slots(batch, ring)
        columns["child"] = np.where(child < 0, -1, slots[child])
        columns["mask"] = batch["mask"].numpy()
        for name, to in ring.arrays.items():
            to[slots] = columns[name] if name in columns else unknown(name, ring.columns[name].dtype)
        ring.written += added
        ring.touch(slots)
        self._eligible[slots] = eligible.numpy()
        self._count(int(batch.decides.sum()))

    def _weight(self, batch: Batch, eligible: Tensor) -> Array | None:
        """[B, K] the weight of the stream, where it is not that of the mask on all rows that were ever stored."""
        name, ring = f"weight/{self.stream}", self.state["ring"]
        if name in batch:
            return batch.weight(self.stream).float().numpy()
        if batch.stream in (None, self.stream) and (ring is None or name not in ring.columns):
            return None
        return (eligible[:, None] & batch["mask"]).float().numpy()

    def _count(self, new: int) -> None:
        state, before = self.state, self.state["seen"]
        state["seen"] += new
        state["new"] += new
        state["owed"] += self.ratio * (state["seen"] - max(before, min(self.warmup, state["seen"])))

    def _slots(self, batch: Batch, ring: Ring) -> tuple[Array, int]:
        """([B] where the rows go, how many slots are new). A row that its lane resumes goes where that lane's last row
        stands, if nothing has come over it."""
        B, state = len(batch), self.state
        serial = ring.written + np.arange(B)
        if "resumes" in batch:
            lane = batch["lane"].numpy()
            tail = np.full(max(len(state["tail"]), int(lane.max()) + 1), -1)
            tail[: len(state["tail"])] = state["tail"]
            old = tail[lane]
            again = batch["resumes"].numpy() & (old >= max(0, ring.written + B - ring.capacity))
            if again.any():
                serial = np.where(again, old, ring.written - 1 + np.cumsum(~again))
            tail[lane] = serial  # the last row of each lane remains
            state["tail"] = tail.tolist()
        return serial % ring.capacity, int(serial.max()) + 1 - ring.written

    def _ring(self, columns: dict[str, Array], rows: int) -> Ring:
        """The ring, with a column for each of these (NaN or -1 in the rows before, where it is new; of the stream's
        weight the mask: they carried it in full)."""
        like = {n: torch.from_numpy(np.ascontiguousarray(x[:1])) for n, x in columns.items()}
        ring: Ring | None = self.state["ring"]
        if ring is None:
            ring = Ring.zeros(self.capacity, like)
        elif columns.keys() - ring.columns.keys():
            more = {n: torch.full((self.capacity, *x.shape[1:]), unknown(n, x.dtype), dtype=x.dtype)
                    for n, x in like.items() if n not in ring.columns}  # fmt: skip
            if f"weight/{self.stream}" in more:
                more[f"weight/{self.stream}"] = ring.columns["mask"].float()
            ring = Ring({**ring.columns, **more}, ring.written)
        if rows > ring.capacity:
            raise ValueError(f"replay: {rows} rows at once: capacity is {ring.capacity}")
        self.state["ring"] = ring
        return self._bound(ring)

    def _bound(self, ring: Ring) -> Ring:
        """Work out which rows may be drawn, where the ring is not the one of the last call."""
        if self._of is not ring:
            c = ring.columns
            c["child"][ring.size :] = -1
            self._eligible: Array = c["mask"].any(1).numpy()
            if "status" in c:
                self._eligible &= ring.arrays["status"] != STATUS[Status.ERROR]
            if f"weight/{self.stream}" in c:
                self._eligible &= (c[f"weight/{self.stream}"] != 0).any(1).numpy()
            self._of = ring
        return ring

    # ---------------------------------------------------------------- drawing

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        state = self.state
        ring: Ring | None = state["ring"]
        ready = ring is not None and state["seen"] >= self.warmup
        state["new"] = 0
        n = self.draws
        if self.ratio:
            n = int(state["owed"])
            state["owed"] -= n
        if ring is None or not ready:
            return
        self._bound(ring)
        if not self._eligible.any():
            return
        one = ring.columns["mask"].shape[1] == 1 or None  # what is drawn has decided
        for i in range(n):
            yield Batch(ring.columns, self._rows(ring, ctx.rng(self.name, i)), stream=self.stream, full=one)

    def _rows(self, ring: Ring, rng: torch.Generator) -> Tensor:
        """[size] eligible rows, uniformly: draws that hit another row are drawn again."""
        eligible, n, shape = self._eligible, ring.size, (self.size,)
        rows = torch.randint(n, shape, generator=rng)
        at = rows.numpy()  # the same memory
        for _ in range(_TRIES):
            bad = (~eligible[at]).nonzero()[0]
            if not len(bad):
                return rows
            at[bad] = torch.randint(n, shape, generator=rng).numpy()[bad]
        some = torch.from_numpy(eligible.nonzero()[0])  # few are eligible: listing them is cheaper than trying on
        ok = eligible[rows.numpy()]
        return torch.where(torch.from_numpy(ok), rows, some[torch.randint(len(some), (self.size,), generator=rng)])
