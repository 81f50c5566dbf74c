"""Replay: a ring of columns, from which rows are drawn again and again.

A draw is a view: nothing is copied before it is read, and `successors` finds each row's successor. Rows are in order of
arrival, parents before children, so the oldest is always overwritten before its successor, and no pointer dangles. The
row that a lane's fragment left open (`resumes`) is overwritten in place when the lane goes on. Later results about
stored rows (`Amended`, and for the buffer's own priority `Updated`) are written in place. Left out: text (its rows
differ in length).

Axes: `B` rows of a collected batch, `C` capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import STATUS, Batch
from shuhari.bounds import AtLeast0, Bounds, Coefficient, Count, Size, check
from shuhari.buffers.drawing import proportional
from shuhari.buffers.hindsight import Hindsight
from shuhari.buffers.recording import order_episodes
from shuhari.data import Array, Status
from shuhari.events import Amended, Collected, Event, Updated
from shuhari.kernel.columns import missing_value
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.store.ring import Ring
from shuhari.transforms.streams import find_carried

_TRIES = 64  # attempts to draw only eligible rows
_LEFT_OUT = frozenset({"parent", "step", "resumes", "leaf", "length"})  # derived, or only of the collected batch


@register("buffer", "replay")
@dataclass
class Replay:
    """Off-policy replay buffer: keeps the newest rows and draws batches of `size` rows with replacement, uniformly or
    by priority.

    Rows without a decision, rows of weight 0 on `stream` and rows of episodes that ended in an error are never drawn.
    Model outputs for the rows (needs) are not kept but recomputed at every draw.

    With `by`, row i of n is drawn with probability p_i and has weight w_i, divided by the largest w of the draw (Schaul
    et al. 2016, "Prioritized Experience Replay", sections 3.3 and 3.4):

        p_i ~ (|x_i| + least)^power,   w_i = (n p_i)^-beta,   x the column

    The column is stamped by a loss (`td_error` of temporal differences), amended later, or collected. A row whose value
    is not known yet gets the largest known one.

    Raises TypeError for text, ValueError for more rows at once than the ring holds.
    """

    capacity: Annotated[int, Bounds(2, most=10**8)] = 100_000
    """Number of rows kept, the newest; the closing row of an episode takes one too."""
    size: Size = 256
    """Number of rows (transitions) in a batch."""
    collect: Size = 1
    """Number of environment decisions collected in each step, before the draws; as `train_freq` in
    Stable-Baselines3."""
    draws: Count = 1
    """Number of batches drawn in each step if `ratio` is 0."""
    ratio: AtLeast0 = 0.0
    """Number of batches drawn for each new decision (the replay ratio); 0 uses `draws`, a number below 1 draws in some
    steps only."""
    warmup: Count = 0
    """Number of decisions collected at once by the first steps, before the first draw; as `learning_starts` in
    Stable-Baselines3."""
    by: str = ""
    """Column that gives the priority of a row, such as `td_error`; "" draws all rows alike."""
    power: AtLeast0 = 1.0
    """Exponent of the priority (alpha in prioritized replay); 0 draws all rows alike."""
    least: AtLeast0 = 1e-6
    """Constant added to the size of each priority, without which a row of error 0 is never drawn again."""
    beta: Coefficient = 1.0
    """Exponent of the importance weights that correct for drawing by priority; 0 is no correction, and a schedule may
    raise it to 1."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; rows that weigh nothing on it are never drawn."""
    hindsight: Hindsight | None = None
    """Goals in hindsight for an environment with goals (HER), such as `{goals = 4}`; None learns from the goals that
    were."""
    name: str = "replay"
    """Name that seeds the random draws; give each replay buffer of a run its own."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"ring": None, "tail": [], "seen": 0, "new": 0, "owed": 0.0}
    )

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @property
    def hears(self) -> tuple[str, ...]:
        return (self.by,) if self.by else ()

    def __post_init__(self) -> None:
        check(self)
        self._of: Ring | None = None
        self._places: dict[int, int] | None = None  # id -> slot, once it is needed

    def wanted(self) -> int:
        """Returns the number of decisions still missing: first the rest of the warm-up, then `collect` per step."""
        missing: int = max(self.collect - self.state["new"], self.warmup - self.state["seen"])
        return max(0, missing)

    # ---------------------------------------------------------------- writing

    def observe(self, event: Event) -> None:
        if isinstance(event, Amended):
            self._amend(event.ids, event.columns)
        elif isinstance(event, Updated) and event.ids is not None and self.by in event.columns:
            self._amend(event.ids, {self.by: event.columns[self.by]})
        elif isinstance(event, Collected) and len(event.batch):
            self._store(event.batch)

    def _store(self, batch: Batch) -> None:
        batch = batch if batch.rows is None else batch.flat()
        columns = {n: batch[n].numpy() for n in batch.names() - _LEFT_OUT - batch.scored}
        eligible = find_carried(batch, self.stream)
        if (weight := self._weight(batch, eligible)) is not None:
            columns[f"weight/{self.stream}"] = weight
        if not any(n.partition("/")[0] == "context" for n in columns):
            raise TypeError("replay: a batch without a column 'context': rows of text differ in length; use 'fresh'")
        child = columns.setdefault("child", batch["child"].numpy())
        wrong = (child < -1) | ((child >= 0) & (child <= np.arange(len(child))))
        if bool(wrong.any()):
            row = int(wrong.argmax())
            found = "several successors" if child[row] < -1 else f"row {child[row]} for its successor"
            raise ValueError(f"replay: row {row} has {found}: expected chains, each row before its successor")
        ring = self._grow_ring(columns, len(batch))
        slots, added = self._find_slots(batch, ring)
        if self._places is not None:
            for old, slot in zip(ring.arrays["id"][slots].tolist(), slots.tolist(), strict=True):
                if self._places.get(old) == slot:
                    del self._places[old]
            self._places.update(zip(columns["id"].tolist(), slots.tolist(), strict=True))
        columns["child"] = np.where(child < 0, -1, slots[child])
        columns["mask"] = batch["mask"].numpy()
        for name, to in ring.arrays.items():
            to[slots] = columns[name] if name in columns else missing_value(name, ring.columns[name].dtype)
        ring.written += added
        ring.touch(slots)
        self._eligible[slots] = eligible.numpy()
        self._count(int(batch.decides.sum()))

    def _amend(self, ids: Tensor, news: Mapping[str, Tensor]) -> None:
        """Writes columns [B, ...] of the rows `ids` [B] in place; ids that are not stored, and unknown values (NaN),
        are skipped. A new column is unknown in other rows."""
        ring: Ring | None = self.state["ring"]
        if ring is None or not len(ids):
            return
        if "id" not in ring.columns:
            raise ValueError("replay: the rows have no column 'id': nothing can be found out about them later")
        if self._places is None:
            self._places = dict(zip(ring.arrays["id"][: ring.size].tolist(), range(ring.size), strict=True))
        found = torch.tensor([self._places.get(i, -1) for i in ids.tolist()])
        here = found >= 0
        if not bool(here.any()):
            return
        ring = self._grow_ring({n: x[:1].numpy() for n, x in news.items()}, 1)
        slots = found[here].numpy()
        for name, x in news.items():
            value = x[here].to(ring.columns[name].dtype).numpy()
            known = ~np.isnan(value) if value.dtype.kind == "f" else np.ones(value.shape, bool)
            ring.arrays[name][slots] = np.where(known, value, ring.arrays[name][slots])
        ring.touch(slots)
        if not news.keys().isdisjoint(("mask", "status", f"weight/{self.stream}")):
            self._of = None  # they determine which rows may be drawn

    def _weight(self, batch: Batch, eligible: Tensor) -> Array | None:
        """Returns the stream's weight [B, K]; None if it equals the mask on all rows stored so far."""
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

    def _find_slots(self, batch: Batch, ring: Ring) -> tuple[Array, int]:
        """Returns ([B] the slots of the rows, the number of new slots). A row that its lane resumes goes to the lane's
        last row, unless that has been overwritten."""
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
            tail[lane] = serial  # the last row of each lane wins
            state["tail"] = tail.tolist()
        return serial % ring.capacity, int(serial.max()) + 1 - ring.written

    def _grow_ring(self, columns: dict[str, Array], rows: int) -> Ring:
        """Returns the ring with all these columns. A new one is NaN or -1 in earlier rows; a new stream weight is the
        mask there, as those rows had full weight."""
        like = {n: torch.from_numpy(np.ascontiguousarray(x[:1])) for n, x in columns.items()}
        ring: Ring | None = self.state["ring"]
        if ring is None:
            ring = Ring.zeros(self.capacity, like)
        elif columns.keys() - ring.columns.keys():
            more = {n: torch.full((self.capacity, *x.shape[1:]), missing_value(n, x.dtype), dtype=x.dtype)
                    for n, x in like.items() if n not in ring.columns}  # fmt: skip
            if f"weight/{self.stream}" in more:
                more[f"weight/{self.stream}"] = ring.columns["mask"].float()
            ring = Ring({**ring.columns, **more}, ring.written)
        if rows > ring.capacity:
            raise ValueError(f"replay: {rows} rows at once: capacity is {ring.capacity}")
        self.state["ring"] = ring
        return self._find_eligible(ring)

    def _find_eligible(self, ring: Ring) -> Ring:
        """Recomputes which rows may be drawn if the ring differs from the last call's."""
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

    def recorded(self) -> dict[str, Tensor]:
        """Returns its contents as a data set in episode order, as `offline` reads it, without columns derived in
        training (stream weights, the trained reward). Raises ValueError if it is empty."""
        ring: Ring | None = self.state["ring"]
        if ring is None or not ring.size:
            raise ValueError(f"{self.name}: it holds no rows yet: nothing to export")
        left = {"id", "lane", "reward", self.by}
        keep = {n: x[: ring.size] for n, x in ring.columns.items() if n not in left and not n.startswith("weight/")}
        return order_episodes(keep)

    # ---------------------------------------------------------------- drawing

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        state = self.state
        ring: Ring | None = state["ring"]
        if self.hindsight is not None:
            self.hindsight.check_task(ctx.task)
        ready = ring is not None and state["seen"] >= self.warmup
        state["new"] = 0
        n = self.draws
        if self.ratio:
            n = int(state["owed"])
            state["owed"] -= n
        if ring is None or not ready:
            return
        self._find_eligible(ring)
        if not self._eligible.any():
            return
        one = ring.columns["mask"].shape[1] == 1 or None  # every drawn row has decided
        for i in range(n):
            rng = ctx.rng(self.name, i)
            if self.by:
                batch = self._draw_by_priority(rng, ctx.at(self.beta), one)
            else:
                batch = Batch(ring.columns, self._rows(ring, rng), stream=self.stream, full=one)
            if self.hindsight is not None:
                batch = self.hindsight.relabel(batch, self.state["ring"], ctx.rng(self.name, "goals", i), ctx)
            yield batch

    def _draw_by_priority(self, rng: torch.Generator, beta: float, one: bool | None) -> Batch:
        """Draws [size] eligible rows by priority, with importance weights. Priorities from the update on the previous
        draw already count."""
        ring = self._find_eligible(self.state["ring"])
        p = np.where(self._eligible[: ring.size], self._priority(ring) ** self.power, 0.0)
        if not p.any():  # no priority is above 0: draw uniformly
            p = self._eligible[: ring.size].astype(np.float64)
        rows = proportional(p, self.size, rng)
        batch = Batch(ring.columns, rows, stream=self.stream, full=one)
        if not beta:
            return batch
        share = torch.from_numpy(p[rows.numpy()] / p.sum())
        weight = (share * int(self._eligible[: ring.size].sum())) ** -beta
        weight = (weight / weight.max()).float()
        return batch.put({f"weight/{self.stream}": batch.weight(self.stream) * weight[:, None]})

    def _priority(self, ring: Ring) -> Array:
        """Returns [size] the absolute value of the column in each row plus `least` (summed over several numbers); the
        largest if unknown."""
        if self.by not in ring.columns:
            return np.ones(ring.size)
        x = np.abs(ring.arrays[self.by][: ring.size].astype(np.float64).reshape(ring.size, -1))
        x = np.where(np.isnan(x).all(1), np.nan, np.nansum(x, 1) + self.least)
        known = x[self._eligible[: ring.size] & ~np.isnan(x)]
        return np.where(np.isnan(x), known.max() if len(known) else 1.0, x)

    def _rows(self, ring: Ring, rng: torch.Generator) -> Tensor:
        """Draws [size] eligible rows uniformly: draws of another row are repeated."""
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
