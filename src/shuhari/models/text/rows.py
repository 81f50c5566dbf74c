"""Rows of text being generated, and the arrays that hold the tokens of running rows and sample the next ones.

Left out: scheduling (`decoding.py`), keys and values (`slots.py`).

Axes: `b` rows that run, `V` vocabulary, `K` decisions of a row, `S` ids per decision, `W` last tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array, Ramp, Sampling
from shuhari.kernel.noise import uniforms
from shuhari.models.text.choice import Choice, Stops, choose
from shuhari.needs import Trace

WIDER = "set `context` in [models.<role>]"
AHEAD = 16  # steps whose noise is drawn at once
SETTINGS = 1024  # number of cached sampling settings, in addition to those of running rows


class NoRoom(ValueError):
    """A context of `size` tokens that leaves a model of `limit` no room for `more`, or an empty one."""

    def __init__(self, size: int, limit: int, more: int = 1) -> None:
        room = f"1 to {limit - more}" if more < limit else f"fewer than {more} tokens behind it"
        super().__init__(f"a context of {size} tokens: expected {room} (the model reads {limit}; {WIDER})")


class Network(Protocol):
    """The sampler's view of a model. `limit`: the longest row that it reads; `suppressed` [m]: ids that are never
    sampled."""

    limit: int
    vocabulary: int
    suppressed: Tensor

    @property
    def device(self) -> torch.device: ...


def refuse(sampling: Sampling, vocabulary: int, suppressed: Tensor) -> None:
    """Raises ValueError for settings that a language model does not support. `suppressed` [m]: ids that are never
    sampled."""
    if sampling.epsilon != 0:
        raise ValueError(f"sampling.epsilon is {sampling.epsilon}: a language model samples without; expected 0")
    for i in sampling.ban:
        if not 0 <= i < vocabulary:
            raise ValueError(f"sampling.ban names token {i}: expected 0 to {vocabulary - 1}")
    if len(sampling.ban) + len(suppressed) >= vocabulary and len({*sampling.ban, *suppressed.tolist()}) == vocabulary:
        raise ValueError(f"sampling.ban names {len(sampling.ban)} tokens: expected one at least that may be said")


@dataclass(eq=False)
class Row:
    """One text to be generated. `key` (uint64) names its noise: decision i uses number i. `order`: sorts rows when all
    are read again; unique among rows in flight.

    A row may begin with earlier `tokens`, with their `logp` and the `version` of the weights of each (and `extra`: a
    list of arrays [S] per decision for `support`, `top`, `top_logp`); it continues from there, as if never interrupted.
    If it has `ended`, its last token is an end token or completes a stop string. `least`: the number of tokens before
    an end token is allowed; `logp` is then over the other ids, which scoring does not know: only to measure speed at
    given lengths.
    """

    context: Array
    sampling: Sampling
    key: int
    order: tuple[Any, ...] = ()
    tokens: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    logp: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    version: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    extra: dict[str, list[Array]] = field(default_factory=dict)
    least: int = 0
    ended: bool = False

    def trace(self) -> Trace:
        """Returns its trace: action, logp, version [K]. info: `ended` (False: cut by a limit, or not done), and, if
        requested, `support`, `ban`, `top`, `top_logp` [K, ...] (what `TokenDist` needs to score it as it was sampled);
        missing ids are -1."""
        info: dict[str, Any] = {"ended": self.ended}
        for name, values in self.extra.items():
            ids = self.extra["support" if name == "support" else "top"]
            real = [v[: (i >= 0).sum()] for v, i in zip(values, ids, strict=True)]  # others may have kept more ids
            info[name] = _pad_even(real, -np.inf if name == "top_logp" else -1)
        ban = self.sampling.ban
        if ban and not self.sampling.truncates:
            info["ban"] = np.full((len(self.tokens), len(ban)), -1, np.int32)
            info["ban"][:1] = ban
        return Trace(self.tokens, self.logp, self.version, info)


def note(rows: Sequence[Row | None], choice: Choice) -> None:
    """Records the extra values requested with a decision of each row; None: not requested for this one."""
    asked: list[tuple[str, Tensor]] = []
    if choice.support is not None:
        asked.append(("support", choice.support.int()))
    if choice.top is not None:
        asked += [("top", choice.top[0].int()), ("top_logp", choice.top[1])]
    for name, values in asked:
        for row, value in zip(rows, values.cpu().numpy(), strict=True):
            if row is not None:
                row.extra.setdefault(name, []).append(value)


def _pad_even(rows: Sequence[Array], fill: float) -> Array:
    """Returns [K, S] from K arrays of up to S entries."""
    out = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class Sampler:
    """Slots 0 to n - 1, each for one running row, whose next token is drawn here. `ends`: the end tokens; `suppressed`:
    ids that are never sampled; `stops` makes the test for stop strings."""

    def __init__(
        self, n: int, ends: Sequence[int], suppressed: Tensor, stops: Callable[[tuple[str, ...]], Stops | None]
    ) -> None:
        self.ends, self.suppressed, self._stops = np.asarray(ends, np.int64), suppressed, stops
        self._key = np.zeros(n, np.uint64)
        self._drawn, self._limit, self._least, self._setting, self._entered = np.zeros((5, n), np.int64)
        self._tokens, self._logp = np.zeros((n, 64), np.int32), np.zeros((n, 64), np.float32)
        self._noise, self._clock, self._serial = np.zeros((n, AHEAD)), 0, 0
        self._kinds = 0
        self.clear()

    def clear(self) -> None:
        """Frees all slots."""
        n = len(self._key)
        self.free = list(range(n))[::-1]
        self.rows: list[Any] = [None] * n  # the row of each slot
        self._settings: dict[Sampling, int] = {}
        self._samplings: dict[int, tuple[Sampling, Stops | None]] = {}

    @property
    def taken(self) -> list[int]:
        """The slots in which a row runs."""
        return [slot for slot, row in enumerate(self.rows) if row is not None]

    def admit(self, row: Row, most: int) -> int:
        """Assigns a row to a free slot, until it has `most` tokens; returns the slot."""
        slot, k = self.free.pop(), len(row.tokens)
        self.rows[slot], self._key[slot], self._setting[slot] = row, row.key, self.kind(row.sampling)
        self._drawn[slot], self._limit[slot], self._least[slot] = k, most, row.least
        self._entered[slot] = self._serial = self._serial + 1
        self._room(k)
        self._tokens[slot, :k], self._logp[slot, :k] = row.tokens, row.logp
        return slot

    def collect(self, slot: int, version: int) -> Row:
        """Returns the row of a slot with all its tokens; the new ones are stamped with this version of the weights."""
        row: Row = self.rows[slot]
        k = int(self._drawn[slot])
        row.tokens, row.logp = self._tokens[slot, :k].copy(), self._logp[slot, :k].copy()
        row.version = np.concatenate([row.version, np.full(k - len(row.version), version, np.int64)])
        return row

    def leave(self, slot: int) -> None:
        """Frees a slot."""
        self.rows[slot] = None
        self.free.append(slot)

    def newest(self, slots: Array) -> list[tuple[Any, int, float]]:
        """Returns (row, token, log-probability) of the newest tokens of these slots."""
        at = self._drawn[slots] - 1
        rows, tokens, logp = [self.rows[s] for s in slots], self._tokens[slots, at], self._logp[slots, at]
        return list(zip(rows, tokens.tolist(), logp.tolist(), strict=True))

    def latest(self, slots: Array) -> int:
        """Returns the one of these slots that was taken last."""
        return int(slots[self._entered[slots].argmax()])

    def kind(self, sampling: Sampling) -> int:
        """Returns the number of these settings, ignoring those that do not change a draw. Raises ValueError for an
        empty stop."""
        kind = self._settings.get(sampling)
        if kind is None:
            if len(self._settings) > SETTINGS:  # each call of a server may bring new ones
                used = {int(self._setting[slot]) for slot in self.taken}
                self._settings = {s: k for s, k in self._settings.items() if k in used}
                self._samplings = {k: x for k, x in self._samplings.items() if k in used}
            plain = replace(sampling, max_new=1, ban=())
            kind = self._settings.get(plain)
            if kind is None:
                stops, self._kinds = self._stops(sampling.stop), self._kinds + 1
                kind = self._kinds
                self._samplings[kind] = plain, stops
            self._settings[sampling] = self._settings[plain] = kind
        return kind

    def last(self, slots: Array) -> Tensor:
        """Returns [b] the last token of each row."""
        return torch.from_numpy(self._tokens[slots, self._drawn[slots] - 1].astype(np.int64))

    def decide(self, slots: Array, fresh: Array, logits: Tensor) -> Array:
        """Draws the next token of slots [b], the last of them `fresh`, from logits [b, V], which are overwritten;
        returns [n] bool the slots that are done."""
        drawn = self._drawn[slots]
        self._room(int(drawn.max()))
        if len(self.suppressed):
            logits.index_fill_(1, self.suppressed, -torch.inf)
        for i, slot in enumerate(fresh.tolist(), len(slots) - len(fresh)):
            ban = self.rows[slot].sampling.ban
            if ban and not self._drawn[slot]:
                logits[i, list(ban)] = -torch.inf
        early = self._least[slots] > drawn
        if early.any():
            logits[torch.from_numpy(early.nonzero()[0])[:, None], torch.from_numpy(self.ends)] = -torch.inf
        u = torch.from_numpy(self._uniforms(slots, fresh))
        done, kinds = np.zeros(len(self.rows), bool), self._setting[slots]
        for kind in set(kinds.tolist()):
            sampling, stops = self._samplings[kind]
            some, mine, at, x = slots, u, drawn, logits
            if not (same := kinds == kind).all():
                where = torch.from_numpy(same.nonzero()[0])
                some, mine, at, x = slots[same], u[where], drawn[same], logits[where.to(logits.device)]
            choice = choose(x, sampling, _temperature(sampling, at, x.device), mine)
            ended = self._note(choice, some, at)
            if stops is not None:
                ended |= stops(self._last(some, stops.window))
            for slot in some[ended].tolist():
                self.rows[slot].ended = True
            done[some] = ended | (at + 1 >= self._limit[some])
        return done

    def _room(self, k: int) -> None:
        have = self._tokens.shape[1]
        if k >= have:
            more = ((0, 0), (0, max(have, k + 1 - have)))
            self._tokens, self._logp = np.pad(self._tokens, more), np.pad(self._logp, more)

    def _note(self, choice: Choice, slots: Array, drawn: Array) -> Array:
        """Records the sampled tokens; returns [b] whether each was an end token."""
        ids = choice.ids.cpu().numpy()
        self._tokens[slots, drawn], self._logp[slots, drawn] = ids, choice.logp.cpu().numpy()
        self._drawn[slots] += 1
        note([self.rows[slot] for slot in slots.tolist()], choice)
        out: Array = ids == self.ends[0] if len(self.ends) == 1 else np.isin(ids, self.ends)
        return out

    def _uniforms(self, slots: Array, fresh: Array) -> Array:
        """Returns [b] the noise of each row for its current decision."""
        at = self._clock % AHEAD
        self._clock += 1
        new = fresh if at else slots
        if len(new):
            index = self._drawn[new, None] + np.arange(AHEAD - at)
            self._noise[new, at:] = uniforms(self._key[new, None], index)[..., 0]
        out: Array = self._noise[slots, at]
        return out

    def _last(self, slots: Array, n: int) -> Array:
        """Returns [b, n] the last n tokens of each row; -1 before the first."""
        at = self._drawn[slots, None] - n + np.arange(n)
        out: Array = np.where(at < 0, -1, self._tokens[slots[:, None], at.clip(min=0)])
        return out


def _temperature(sampling: Sampling, drawn: Array, device: torch.device) -> float | Tensor:
    """Returns the temperature of rows with so many generated tokens [b]: one number, or [b, 1]."""
    if isinstance(sampling.temperature, Ramp):
        return torch.from_numpy(np.asarray(sampling.temperature(drawn), np.float32))[:, None].to(device)
    return float(sampling.temperature)
