"""Verdicts on cases: each question goes to the judge once, and its verdict is read and kept. Left out: the judges
themselves (`judge_sources.py`), and the questions (`judge.py`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shuhari.data import ContractError
from shuhari.ports import Ctx
from shuhari.rewards.judge_sources import Case, Said, Source, digest
from shuhari.rewards.verdicts import VerdictError, read_choice, read_grade, scale

KEPT = 1 << 15  # number of verdicts that a run keeps: the latest
FILE = "verdicts.sqlite"
Verdict = float | VerdictError  # the share of the first answer, or the grade, in [0, 1]


class Kept(Protocol):
    """Where verdicts are kept."""

    def find(self, key: str) -> Verdict | None: ...
    def add(self, key: str, verdict: Verdict) -> None: ...


@dataclass(frozen=True)
class Reading:
    """Settings for reading verdicts: range of grades, the two words of pairs, and the length at which texts are cut."""

    low: float
    high: float
    words: tuple[str, str]
    pairs: bool
    max_new: int

    def read(self, said: Said | Exception) -> Verdict | Exception:
        """Return the share of the first answer, or the grade, in [0, 1]; or what is wrong."""
        if isinstance(said, Exception):
            return said
        try:
            if said.what is None or (self.pairs and said.what == -1):  # as TRL's judges give it
                raise VerdictError("the judge gave no verdict")
            if isinstance(said.what, str):
                if not said.whole and "[[" not in said.what:
                    raise VerdictError(f"the answer was cut after {self.max_new} tokens (max_new): {said.what[-60:]!r}")
                if self.pairs:
                    return read_choice(said.what, self.words)
                return read_grade(said.what, self.low, self.high)
            if said.share:
                return said.what
            if self.pairs:  # the place of the better one
                return 1 - scale(said.what, 0, 1)
            return scale(said.what, self.low, self.high)
        except VerdictError as error:
            return error

    def name(self, source: str, case: Case) -> str:
        """Return the digest of a case, of who judges it and of how its verdict is read."""
        reading = [self.low, self.high, *self.words, self.pairs]
        return digest([source, reading, case.text, list(case.answers), case.reference, case.rubric, case.vote])


@dataclass
class Asking:
    """Gets verdicts on cases, and counts them in the ledger. `_waiting`: key -> the verdict that a group waits for."""

    source: Source
    reading: Reading
    _waiting: dict[str, asyncio.Future[Verdict | Exception]] = field(init=False, default_factory=dict)

    async def decide(self, cases: Sequence[Case], kept: Kept | None, ctx: Ctx) -> list[Verdict | Exception]:
        """Return the verdict of each case: a kept one, one that another group waits for, or a new one."""
        if kept is None:
            found = [self.reading.read(said) for said in await self.source.ask(cases, ctx)] if cases else []
            _charge(found, len(cases), 0, ctx)
            return found
        keys = [self.reading.name(self.source.name, case) for case in cases]
        known: dict[str, Verdict | Exception] = {
            key: verdict
            for key in dict.fromkeys(keys)
            if (verdict := kept.find(key)) is not None
        }
        waits = {key: self._waiting[key] for key in dict.fromkeys(keys) if key not in known and key in self._waiting}
        new = {key: case for key, case in zip(keys, cases, strict=True) if key not in known and key not in waits}
        known |= await self._ask(new, kept, ctx)
        for key, wait in waits.items():
            known[key] = await asyncio.shield(wait)
        _charge([known[key] for key in new], len(new), len(keys) - len(new), ctx)
        return [known[key] for key in keys]

    async def _ask(self, new: Mapping[str, Case], kept: Kept, ctx: Ctx) -> dict[str, Verdict | Exception]:
        """Get the verdicts of new cases and return them by key; they are kept, except failures of the judge."""
        if not new:
            return {}
        loop = asyncio.get_running_loop()
        waiting = {key: loop.create_future() for key in new}
        self._waiting |= waiting
        found: dict[str, Verdict | Exception] = {}
        try:
            said = await self.source.ask(list(new.values()), ctx)
            found = {key: self.reading.read(x) for key, x in zip(new, said, strict=True)}
            for i, counted in enumerate(("judge_prompt_tokens", "judge_tokens")):
                if total := sum(x.tokens[i] for x in said if isinstance(x, Said)):
                    ctx.charge(counted, total)
            for key, verdict in found.items():
                if isinstance(verdict, float | VerdictError):
                    kept.add(key, verdict)
        finally:
            for key, future in waiting.items():
                del self._waiting[key]
                if not future.done():
                    future.set_result(found.get(key, RuntimeError("the call that asked the judge has failed")))
        return found


def _charge(found: Sequence[Verdict | Exception], asked: int, cached: int, ctx: Ctx) -> None:
    unread = sum(isinstance(x, VerdictError) for x in found)
    failed = sum(isinstance(x, Exception) for x in found) - unread
    for what, n in {"asked": asked, "cached": cached, "unread": unread, "failed": failed}.items():
        if n:
            ctx.charge(f"judge_{what}", n)


# ---------------------------------------------------------------- where verdicts are kept


@dataclass
class InRun:
    """Verdicts by content in the memory of a component, which the run saves: the latest ones."""

    known: dict[str, Any]

    def find(self, key: str) -> Verdict | None:
        return read_kept(self.known.get(key))

    def add(self, key: str, verdict: Verdict) -> None:
        self.known[key] = list(write_kept(verdict))
        if len(self.known) > KEPT:
            del self.known[next(iter(self.known))]


@dataclass
class Folder:
    """Verdicts by content in a folder, which runs and their workers may share. Raises ContractError for a file that
    cannot be read or written."""

    path: str
    _base: sqlite3.Connection | None = field(init=False, default=None)

    def find(self, key: str) -> Verdict | None:
        found = self._call("SELECT share, text FROM verdicts WHERE key = ?", key)
        return read_kept(found[0] if found else None)

    def add(self, key: str, verdict: Verdict) -> None:
        self._call("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", key, *write_kept(verdict))

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def _call(self, command: str, *values: Any) -> list[Any]:
        try:
            if self._base is None:
                Path(self.path).mkdir(parents=True, exist_ok=True)
                base = sqlite3.connect(Path(self.path) / FILE, 30.0, isolation_level=None, check_same_thread=False)
                base.execute("PRAGMA journal_mode = WAL")
                base.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, share REAL, text TEXT)")
                self._base = base
            return self._base.execute(command, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            message = f"judge: cache {self.path!r}: {error}: expected a folder with no other {FILE}"
            raise ContractError(message) from None


def write_kept(verdict: Verdict) -> tuple[float | None, str]:
    """Return a verdict as (share, "") or (None, what is wrong with it)."""
    return (None, str(verdict)) if isinstance(verdict, VerdictError) else (verdict, "")


def read_kept(kept: Any) -> Verdict | None:
    """Return what `write_kept` was given; None if that cannot be known."""
    if not isinstance(kept, list | tuple) or len(kept) != 2:
        return None
    share, text = kept
    if isinstance(share, float) and 0 <= share <= 1:
        return share
    return VerdictError(text) if share is None and isinstance(text, str) else None
