"""Batch: rows of decisions, the common data type of everything that learns.

Axes: `B` rows (one context that a policy saw), `K` positions of what it did there (`mask` marks its decisions), `N`
rows of the whole, `P` links. A batch is a *view*: whole columns plus an optional row index, gathered on first read, so
taking rows, minibatches and replay draws copy nothing, and `successors` finds successors from any of them. Columns are
tensors with leading axis B in one flat dict. Text stays ragged: `step` [B] points into `arena`, where the models find
the token ids. `parent`, `child` and `last` [B] (in recorded episodes: their end) are indices of the whole (-1 none,
child -2 several).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shuhari.data import Status, Step, nearest
from shuhari.kernel.columns import BRANCH, DERIVED

STATUS = {s: i for i, s in enumerate(Status)}
POINTERS = ("parent", "child", "last")  # columns that name rows of the whole


class Batch:
    """Rows of decisions as named columns; immutable but for its caches. See the module's docstring for the axes.

    Columns that are always present, stored or derived: `mask logp version segment` [B, K] (logp NaN if the behaviour
    policy is unknown, 0 on padding), `id parent child leaf episode group role task lane cont status length duration`
    [B]. Further columns: `reward/<name>`, `reward`, `weight/<stream>`, `advantage`, needs, and whatever a component
    stamps.
    """

    __slots__ = (
        "_derived", "_full", "_gathered", "_inverse", "_path",
        "arena", "links", "own", "rows", "scored", "size", "stamps", "stream", "whole",
    )  # fmt: skip

    def __init__(
        self,
        whole: Mapping[str, Tensor],
        rows: Tensor | None = None,
        own: Mapping[str, Tensor] | None = None,
        arena: Sequence[Step] = (),
        links: Mapping[str, tuple[Tensor, dict[str, Tensor]]] | None = None,
        stream: str | None = None,
        scored: frozenset[str] = frozenset(),
        full: bool | None = None,
    ) -> None:
        """full: whether every position is a decision, if that is known."""
        self.whole, self.rows, self.own, self.arena = whole, rows, own or {}, arena
        self.links = dict(links or {})
        self.stream = stream  # every row carries this stream with weight = mask, as long as no weight column exists
        self.scored = scored  # the columns that a model's answer to a need put there: stale once the model has moved
        self.size = int((whole["mask"] if rows is None else rows).shape[0])
        self.stamps: dict[str, Tensor] = {}
        self._gathered: dict[str, Tensor] = {}  # of the whole at `rows`: views of the same rows share it
        self._derived: dict[str, Tensor] = {}
        self._inverse: Tensor | None = None
        self._path: list[Tensor] = []
        self._full = full

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows x {self.width} decisions: {', '.join(sorted(self.names()))})"

    @property
    def width(self) -> int:
        """K, the padded number of positions a row."""
        return int((self.own.get("mask", self.whole["mask"])).shape[1])

    def names(self) -> set[str]:
        """Return the names of the stored columns."""
        return {*self.whole, *self.own, *self.stamps}

    def __contains__(self, key: Any) -> bool:
        name = key if isinstance(key, str) else key.key
        return name in self.own or name in self.whole or name in self.stamps

    def __getitem__(self, key: Any) -> Tensor:
        """Return the column named by a string or by a `Need`. Raises KeyError, with the nearest name, for an unknown
        one."""
        name = key if type(key) is str else key.key
        for columns in (self.own, self.stamps, self._gathered):
            value = columns.get(name)
            if value is not None:
                return value
        value = self.whole.get(name)
        if value is None:
            value = self._derived.get(name)
            if value is None:
                if name not in DERIVED:
                    space, _, stream = name.partition("/")
                    how = f"a stream is read by batch.weight({stream!r}); " if space == "weight" and stream else ""
                    if type(key) is not str or space == "live":
                        how = "what a model says is there where the component names it in its `needs`; "
                    raise KeyError(f"no column {name!r}; {how}{nearest(name, self.names() | set(DERIVED))}")
                value = self._derived[name] = DERIVED[name](self)
        elif self.rows is not None:
            value = self._gathered[name] = value.index_select(0, self.rows)
        return value

    def get(self, key: Any, default: Tensor | None = None) -> Tensor | None:
        """Return the stored column, or `default`."""
        return self[key] if key in self else default  # noqa: SIM401

    @property
    def base(self) -> Batch:
        """The batch of all rows, with the columns put on all of them; for a whole batch, itself."""
        return self if self.rows is None else Batch(self.whole)

    @property
    def steps(self) -> list[Step]:
        """[B] the steps behind the rows of text."""
        return [self.arena[i] for i in self["step"].tolist()]

    @property
    def decides(self) -> Tensor:
        """[B] bool: rows with at least one decision (closing rows have none)."""
        return self["mask"].any(1)

    @property
    def full(self) -> bool:
        """Whether every position is a decision, as in a batch of transitions; computed once."""
        if self._full is None:
            self._full = bool(self["mask"].all())
        return self._full

    def tokens(self, packed: bool = False) -> int:
        """Return the number of tokens of a forward: rows x the longest `length`; packed: the sum of the lengths."""
        if "length" not in self or not self.size:
            return self.size
        return int(self["length"].sum()) if packed else self.size * int(self["length"].max())

    # ------------------------------------------------------------------ making new batches

    def put(self, columns: Mapping[Any, Tensor], *, scored: bool = False) -> Batch:
        """Return a batch with more columns (keys: names or needs); each has leading axis B. `successors` see a column
        only if it was put on a whole batch, before rows were taken. scored: whether models computed these columns
        (`scored`)."""
        named = {}
        for key, value in columns.items():
            name = key if type(key) is str else key.key
            if value.shape[0] != self.size:
                raise ValueError(f"column {name!r} has {len(value)} rows: expected {self.size}")
            named[name] = value
        of = self.scored
        if scored or of:
            of = of.union(named) if scored else of.difference(named)
        new = Batch(self.whole, self.rows, {**self.own, **named}, self.arena, self.links, self.stream, of)
        new.stamps, new._gathered = self.stamps, self._gathered
        new._derived = {k: v for k, v in self._derived.items() if k not in named}
        new._full = None if "mask" in named else self._full
        return new

    def stamp(self, name: str, value: Tensor) -> None:
        """Publish a column [B, ...] found while computing a loss (a fresh log-probability, a priority): later parts of
        the learner read it, and `Updated` carries it. This is the only change of a batch in place."""
        self.stamps[name] = value.detach()

    def take(self, rows: Tensor) -> Batch:
        """Return the view of some rows: positions [B'] in any order, or a mask [B]."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(1)
        if self.rows is None:
            whole = {**self.whole, **self.own, **self.stamps} if self.own or self.stamps else self.whole
            new = Batch(whole, rows, None, self.arena, None, self.stream, self.scored)
        else:
            own = {k: v.index_select(0, rows) for k, v in {**self.own, **self.stamps}.items()}
            new = Batch(self.whole, self.rows.index_select(0, rows), own, self.arena, None, self.stream, self.scored)
        new._full = self._full or None  # some rows of all that decide
        for name, (index, columns) in self.links.items():
            at = torch.full((len(self),), -1)
            at[rows] = torch.arange(len(rows))
            kept = (at[index] >= 0).all(1)
            new.links[name] = at[index[kept]], {k: v[kept] for k, v in columns.items()}
        return new

    def for_role(self, role: str) -> Batch:
        """Return the batch with the contexts that `role` sees, if steps have a separate view for it (`Step.views`)."""
        if f"view/{role}" in self:
            return self.put({"context": self[f"view/{role}"]})
        if "viewed" not in self or "length" not in self:
            return self
        steps = [replace(s, context=s.views.get(role, s.context)) for s in self.steps]
        longer = [len(s.context) - len(t.context) for s, t in zip(steps, self.steps, strict=True)]  # type: ignore[arg-type]
        new = self.put({"step": torch.arange(len(self)), "length": self["length"] + torch.tensor(longer)})
        new.arena = steps
        return new

    def link(self, name: str, index: Tensor, columns: Mapping[str, Tensor] | None = None) -> Batch:
        """Return the batch with P named links: index [P, m] of this batch's rows, columns [P] (margin, label). Taking
        rows keeps the links whose members are all taken."""
        new = self.put({})
        new.links[name] = index, dict(columns or {})
        return new

    def path(self, n: int) -> list[Tensor]:
        """Return n tensors [B]: the index in the whole of the row's decision, and of the n - 1 after it; -1 after the
        last one of its chain. Raises ValueError if a mixture has left some of them out."""
        if len(self._path) >= n:  # a target of n steps asks twice: for the value ahead, and for the rewards on the way
            return self._path[:n]
        out = [torch.arange(self.size) if self.rows is None else self.rows]
        base = self.base
        child, cut = base["child"], base.get("cut")
        for _ in range(n - 1):
            at = out[-1].clamp(min=0)
            after = torch.where(out[-1] < 0, -1, child[at])
            out.append(torch.where(base["mask"][after.clamp(min=0)].any(1), after, -1))
        if cut is not None and any(bool((cut[at] & (at >= 0)).any()) for at in out[1:]):
            raise ValueError(f"a loss reads {n} decisions in a row, and the buffer 'mixture', or hindsight of a "
                             f"replay, added fewer successors to its rows: set its ahead = {n}")  # fmt: skip
        self._path = out
        return out

    def successors(self, n: int = 1) -> Batch:
        """Return the rows n decisions later, or after the last decision of a chain that ends before; for chains only. A
        row without a successor is its own: test `child >= 0`. The noise is that of the row before."""
        if n > 1:
            steps = torch.stack(self.path(n))
            return self._at(steps.gather(0, ((steps >= 0).sum(0, keepdim=True) - 1))[0]).successors()
        child = self["child"]
        if self.size and int(child.min()) == BRANCH:
            raise ValueError("successors() is for chains: here rows have several successors; use by_depth()")
        here = torch.arange(self.size) if self.rows is None else self.rows
        return self._at(torch.where(child < 0, here, child))

    def _at(self, rows: Tensor) -> Batch:
        """Return these rows of the whole, with the noise of the rows here."""
        whole = {**self.whole, **self.own} if self.rows is None and self.own else self.whole
        place = {"_row": self["_row"]} if "_row" in self else None  # in the optimiser batch, which noise depends on
        return Batch(whole, rows, place, self.arena, None, self.stream, self.scored)

    def local(self, pointer: Tensor) -> Tensor:
        """Convert indices of the whole to positions in this view; -1 for rows that are not in it."""
        if self.rows is None:
            return pointer
        if self._inverse is None:
            self._inverse = torch.full((len(self.whole["mask"]) + 1,), -1)
            self._inverse[self.rows] = torch.arange(self.size)
        return torch.where(pointer < 0, pointer, self._inverse[pointer])

    def by_depth(self) -> Iterator[Tensor]:
        """Yield positions of rows by depth, deepest first: a backward recursion over trees is one loop over these."""
        parent = self.local(self["parent"])
        depth, up = torch.zeros(len(self), dtype=torch.long), parent
        while bool((up >= 0).any()):
            depth += up >= 0
            up = torch.where(up >= 0, parent[up.clamp(min=0)], -1)
        order = depth.argsort(descending=True, stable=True)
        yield from order.split(torch.bincount(depth).flip(0).tolist())

    def outcome(self, name: str = "reward") -> Tensor:
        """Return [B], the sum of the reward column `name` along the row's path, root to leaf; above a branching, the
        mean over the graded leaves below. NaN if ungraded. Paths are those of the whole batch, also from a view: a
        column put on the view counts for its rows, and other rows keep the whole's values, else NaN."""
        whole = self.base
        if self.rows is not None and (name in self.own or name in self.stamps):
            mine = self[name].float()
            old = self.whole.get(name)
            column = mine.new_full((len(whole), *mine.shape[1:]), torch.nan) if old is None else old.clone()
            column[self.rows] = mine
            whole = whole.put({name: column})
        own = whole[name] if "segment" not in whole else whole[name].masked_fill(whole["segment"] < 0, 0.0)  # padding
        total = _outcome(whole, own.sum(1))
        return total if self.rows is None else total[self.rows]

    def split(self, tokens: int | None, packed: bool = False) -> list[Batch]:
        """Split into micro-batches of at most `tokens`; a row over the budget stands alone. Padded (rows x longest
        `length`), the longest rows come first. Packed (the sum of lengths), rows of a group stay together, as they
        begin with the same text."""
        if tokens is None or self.tokens(packed) <= tokens:
            return [self]
        length, pieces, first = self["length"], [], 0
        order = self["group"].argsort(stable=True) if packed else length.argsort(descending=True, stable=True)
        total = length[order].cumsum(0)
        while first < len(order):
            if packed:
                budget = tokens + (int(total[first - 1]) if first else 0)
                n = max(1, int(torch.searchsorted(total, budget, right=True)) - first)
            else:
                n = max(1, tokens // max(1, int(length[order[first]])))
            pieces.append(self.take(order[first : first + n]))
            first += n
        return pieces

    def flat(self) -> Batch:
        """Return a materialised copy, to ship or save: this view's rows, pointers within them, only the steps used."""
        names = (self.names() | {"parent", "child"}) - {"step"}
        columns = {n: self[n] for n in names}
        for n in columns.keys() & POINTERS:
            columns[n] = self.local(columns[n])
        arena: list[Step] = []
        if "step" in self:
            arena, columns["step"] = self.steps, torch.arange(self.size)
        return Batch(columns, None, None, arena, self.links, self.stream, self.scored)

    def weight(self, stream: str) -> Tensor:
        """Return [B, K], the weight of a stream: its column, or the mask if the whole batch carries just that stream.
        """
        column = self.get(f"weight/{stream}")
        if column is not None:
            return column if column.dim() == 2 else column[:, None] * self["mask"]
        if self.stream == stream:
            return self["mask"].to(torch.float32)
        have = [n.removeprefix("weight/") for n in self.names() if n.startswith("weight/")]
        have += [self.stream] if self.stream is not None else []
        raise KeyError(f"no row is in the stream {stream!r} (the rows that a loss reads); {nearest(stream, have)}")


def _outcome(batch: Batch, own: Tensor) -> Tensor:
    """Sum rewards down the tree, then average over the graded leaves back up. One chain an episode needs no recursion.
    """
    parent = batch["parent"]
    found, inverse = torch.unique(batch["episode"], return_inverse=True)
    if not bool((batch["child"] == BRANCH).any()) and int((parent < 0).sum()) == len(found):
        return own.new_zeros(len(found)).index_add_(0, inverse, own)[inverse]
    total, levels = own.clone(), list(batch.by_depth())
    for rows in reversed(levels):
        rows = rows[parent[rows] >= 0]
        total[rows] += total[parent[rows]]
    graded = batch["leaf"] & ~total.isnan()
    mean, count = torch.where(graded, total, 0.0), graded.to(own.dtype)
    for rows in levels:
        rows = rows[parent[rows] >= 0]
        mean.index_add_(0, parent[rows], mean[rows])
        count.index_add_(0, parent[rows], count[rows])
    return torch.where(count > 0, mean / count.clamp(min=1), torch.nan)
