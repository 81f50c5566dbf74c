"""The index of kept groups, searched by their numbers and their words without reading the groups themselves. No torch.

A row of `groups` has the numbers of a group; an index for each order covers every query, so a page deep inside a
million groups reads only its own groups. A row of `words` lists the groups of a step that contain a word; the number of
words of a group is in its row, so that `find_fault` detects a missing one. Both tables are derived from the table of
rollouts: `write` makes the rows of a step, `rebuild` those of a run, also for a reader of an older format.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypedDict, Unpack

import numpy as np

from shuhari.data import Problem, Request, Status, Step, Trajectory, nearest
from shuhari.store.rows import COLUMNS, describe_damage, limit_time, list_columns, read_rows, write_rows

_SILENT = ("group", "why", "decisions", "pieces")  # of a group, what nobody looks for by its words
_COVERED = ("step", "score", "status", "worst", "best", "length", "replies")  # what questions filter by
FORMAT = 5  # of a run, from which on it has these tables
ORDERS = ("score", "worst", "best", "length", "step")
TABLES = """
create table if not exists groups (
  rollout integer primary key, step integer not null, score real, worst real, best real, length integer,
  status text not null, samples integer, replies integer, words integer, checksum integer
);
create table if not exists words (
  word text not null, step integer not null, rollouts blob not null, checksum integer, primary key (word, step)
) without rowid;
"""
INDICES = "".join(
    f"create index if not exists groups_{key} on groups ({', '.join(dict.fromkeys((key, 'rollout', *_COVERED)))});\n"
    for key in ORDERS
)
WORDS, LETTERS = 2000, 64  # of a group the first words that differ, of a word the first letters: answers may be hostile
FEW = 2000  # groups that are looked up one by one; of more, an order is followed until there are enough
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces: each is a word
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")


# ---------------------------------------------------------------- what is stored of a group


def measure(
    group: Mapping[str, Any],
) -> tuple[float | None, float | None, float | None, int | None, str, int, int]:
    """Return (score, worst, best, length, status, samples, replies) of a group: its mean reward, the rewards of its
    worst and best sample (the mean, if the group lacks them), the number of decisions of the longest sample, the
    distinct ways in which samples ended, the number of samples (leaves of a tree), and the most answers that an
    environment or a tool gave to one sample. None: unknown."""
    score = to_number(group.get("score"))
    worst, best = (to_number(group.get(name, score)) for name in ("worst", "best"))
    trajectories = [t for t in group.get("trajectories", ()) if isinstance(t, Trajectory)]
    lengths = [
        sum(int(np.count_nonzero(t.steps[i].mask)) for i in path)
        for t in trajectories
        for path in t.paths()
    ]
    statuses = " ".join(sorted({str(t.status) for t in trajectories}))
    replies = [
        sum(bool(t.steps[i].info.get("observation")) for i in path)
        for t in trajectories
        for path in t.paths()
    ]
    return score, worst, best, max(lengths, default=None), statuses, len(lengths), max(replies, default=0)


def to_number(value: Any) -> float | None:
    """Return a number as a column holds it: None for NaN, or if there is none."""
    return None if value is None or value != value else float(value)


def split_words(texts: Iterable[str]) -> list[str]:
    """Return the distinct words of texts, ignoring case."""
    found: dict[str, None] = {}
    for text in dict.fromkeys(texts):
        found |= dict.fromkeys(word[:LETTERS] for word in _WORD.findall(text.casefold()))
        if len(found) >= WORDS:
            break
    return list(found)[:WORDS]


def list_texts(value: Any) -> Iterator[str]:
    """Yield all text of a group: problems, what was written and answered, reasons. Token ids and other arrays have
    none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from list_texts(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from list_texts(one)
    elif isinstance(value, Trajectory):
        yield from list_texts((value.request, value.steps, value.info))
    elif isinstance(value, Request):
        yield from list_texts(value.problem)
    elif isinstance(value, Problem):
        yield from list_texts((value.task, value.id, value.prompt, value.answer))
    elif isinstance(value, Step):
        yield from list_texts((value.context, value.action, value.info))


def write(db: sqlite3.Connection, step: int, groups: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Index the groups of a step, (id of the rollout's row, group), inside the caller's transaction."""
    _enter(db, step, ((rollout, *_describe(group)) for rollout, group in groups))


def _describe(group: Mapping[str, Any]) -> tuple[tuple[Any, ...], list[str]]:
    """Return (numbers, words) of a group."""
    return measure(group), split_words(list_texts({k: v for k, v in group.items() if k not in _SILENT}))


def _enter(db: sqlite3.Connection, step: int, groups: Iterable[tuple[int, tuple[Any, ...], list[str]]]) -> None:
    rows, said = list[tuple[Any, ...]](), dict[str, list[int]]()
    for rollout, numbers, words in groups:
        rows.append((rollout, step, *numbers, len(words)))
        for word in words:
            said.setdefault(word, []).append(rollout)
    write_rows(db, "groups", rows)
    write_rows(db, "words", [(step, word, np.asarray(ids, "<i8").tobytes()) for word, ids in sorted(said.items())])


def rebuild(db: sqlite3.Connection) -> None:
    """Index every group anew, from the table of rollouts, inside a transaction. StoreError for a damaged row; an
    unreadable group in a row without a checksum gets no numbers and no words."""
    db.execute("delete from groups")
    db.execute("delete from words")
    order = "order by step, id"
    ids = db.execute(f"select id from rollouts {order}")
    rows = zip(ids, read_rows(db, "rollouts", order), strict=True)
    for step, some in groupby(rows, lambda row: int(row[1][0])):
        _enter(db, step, ((rollout, *_read(payload)) for (rollout,), (_, _, payload, *_) in some))


def _read(payload: bytes) -> tuple[tuple[Any, ...], list[str]]:
    """Return (numbers, words) of a stored group, whatever it holds."""
    from shuhari.store.codec import CodecError
    from shuhari.store.decode import refuse_errors
    from shuhari.store.payloads import unpack

    try:
        with refuse_errors():
            return _describe(unpack(payload))
    except CodecError:
        return _describe({})


def find_fault(db: sqlite3.Connection) -> str:
    """Return how the index of groups contradicts the table of rollouts; "" if it does not, or does not exist yet. Rows
    are counted, their checksums are not checked."""
    if not list_columns(db, "groups"):
        return ""
    ours, theirs = "select rollout, step from groups", "select id, step from rollouts"
    for there, here, what in ((theirs, ours, "is missing from what finds groups"), (ours, theirs, "is not kept")):
        if row := db.execute(f"{there} except {here} order by 1 limit 1").fetchone():
            return f"the group {row[0]} of step {row[1]} {what}"
    table = db.execute("select rollout, cast(words as integer) from groups order by rollout").fetchall()
    groups, expected = (
        np.array([row[0] for row in table], np.int64),
        np.array([row[1] or 0 for row in table]),
    )
    counts = np.zeros(len(groups), np.int64)
    blobs = db.execute("select rollouts from words where typeof(rollouts) = 'blob' and length(rollouts) % 8 = 0")
    while some := blobs.fetchmany(1000):
        ids, times = np.unique(np.frombuffer(b"".join(blob for (blob,) in some), "<i8"), return_counts=True)
        at = np.searchsorted(groups, ids)
        known = at < len(groups)
        known[known] = groups[at[known]] == ids[known]
        if not known.all():
            return f"the group {ids[~known][0]}, said to say a word, is not kept"
        counts[at] += times
    odd = np.flatnonzero(counts != expected)
    return f"words of the group {groups[odd[0]]} are missing from what finds groups" if len(odd) else ""


# ---------------------------------------------------------------- questions


def name_condition(problem: str) -> tuple[str, list[Any]]:
    """Return the SQL condition on rollouts of a problem, and its values; each way to read "task/id" is found by an
    index."""
    cuts = [i for i, c in enumerate(problem) if c == "/"]
    named = " or ".join(["problem = ?", *["problem = ? and task = ?"] * len(cuts)])
    return f"({named})", [
        problem,
        *(
            text
            for i in cuts
            for text in (problem[i + 1 :], problem[:i])
        ),
    ]


class Filters(TypedDict, total=False):
    """The filters of a search for groups; None is no filter."""

    step: int | None
    low: float | None
    high: float | None
    shortest: int | None
    longest: int | None
    replies: int | None
    status: str | None
    text: str | None
    problem: str
    contrast: bool


def find(
    db: sqlite3.Connection,
    *,
    order: str = "score",
    descending: bool = False,
    limit: int = 50,
    offset: int = 0,
    **filters: Unpack[Filters],
) -> list[dict[str, Any]]:
    """Return the groups of `Run.find_groups`, inside a transaction."""
    where, args, few = _make_condition(db, order, filters)
    for name, value in (("limit", limit), ("offset", offset)):
        if not 0 <= value < 2**63:
            raise ValueError(f"{name} {value!r:.40}: expected 0 or more, in 64 bits")
    way, by = "desc" if descending else "asc", f"+{order}" if few else order
    query = f"select rollout from groups where {where} order by {by} {way}, {'+' * few}rollout {way} limit ? offset ?"
    ids = [int(row[0]) for row in db.execute(query, (*args, limit, offset))]
    those = f"in ({', '.join(map(str, sorted(ids)))})"
    names = ("id", *COLUMNS["groups"][1:-1], "group", "task", "problem", "why")
    found: dict[int, dict[str, Any]] = {}
    there = {row[0] for row in db.execute(f"select id from rollouts join groups on rollout = id where id {those}")}
    if gone := [i for i in ids if i not in there]:
        raise describe_damage(db, f"the group {gone[0]} is found, and is not kept")
    numbers = read_rows(db, "groups", f"where rollout {those} order by rollout")
    rows = read_rows(db, "rollouts", f"where id {those} order by id")
    for (*own, _), (_, name, _, task, problem, why, _) in zip(numbers, rows, strict=True):
        found[own[0]] = dict(zip(names, (*own, name, task, problem, why), strict=True))
    return [found[i] for i in ids]


def count(db: sqlite3.Connection, *, order: str = "score", **filters: Unpack[Filters]) -> int:
    """Return how many groups `find` would list without a limit."""
    where, args, _ = _make_condition(db, order, filters)
    return int(db.execute(f"select count(*) from groups where {where}", args).fetchone()[0])


_BOUNDS = {"step": "step = ?", "low": "score >= ?", "high": "score <= ?", "shortest": "length >= ?",
           "longest": "length <= ?", "replies": "replies >= ?"}  # fmt: skip


def _make_condition(db: sqlite3.Connection, order: str, by: Filters) -> tuple[str, list[Any], bool]:
    """Return the condition on groups, its values, and whether few groups remain, which are then sorted."""
    names = Filters.__annotations__
    if unknown := next((name for name in by if name not in names), ""):
        raise TypeError(f"no filter {unknown!r}: expected {', '.join(names)}; {nearest(unknown, names)}")
    status, text, problem = by.get("status"), by.get("text"), by.get("problem", "")
    if order not in ORDERS:
        raise ValueError(f"no order {order!r}: expected one of {', '.join(ORDERS)}; {nearest(order, ORDERS)}")
    if status is not None and status not in list(Status):
        raise ValueError(f"no status {status!r}: expected one of {', '.join(Status)}; {nearest(status, list(Status))}")
    given = {name: value for name in _BOUNDS if (value := by.get(name)) is not None}
    for name, value in given.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} {value!r:.40}: expected a number of 64 bits")
    if not list_columns(db, "groups"):  # of an older format: the same tables, for this connection alone
        limit_time(db, math.inf)  # all groups are read, of however long a run
        for table in TABLES.split(";"):  # a script would end the transaction
            db.execute(table.replace("if not exists", "").replace("create table", "create temp table"))
        rebuild(db)
        limit_time(db)
    parts, args = [f"{order} is not null", *(_BOUNDS[name] for name in given)], list[Any](given.values())
    few = "step" in given or bool(problem)
    if by.get("contrast"):
        parts.append("worst < best")
    if status is not None:
        parts.append("instr(' ' || status || ' ', ?)")
        args.append(f" {status} ")
    if problem:
        named, values = name_condition(problem)
        parts.append(f"rollout in (select id from rollouts where {named})")
        args += values
    if text is not None:
        said = _search(db, text)
        if len(said) <= FEW:
            few = True
            parts.append("rollout in (select value from json_each(?))")
            args.append(json.dumps(said))
        else:
            known = frozenset(said)
            db.create_function("is_said", 1, known.__contains__)
            parts.append("is_said(rollout)")
    return " and ".join(parts), args, few


def _search(db: sqlite3.Connection, text: str) -> Sequence[int]:
    """Return the ids of the groups that contain every word of a text. `add*`: any word that begins so."""
    found: Any = None
    text = text.casefold()
    words = [(match[0][:LETTERS], text[match.end() :][:1] == "*") for match in _WORD.finditer(text)]
    if not words:
        raise ValueError(f"no word in {text!r:.40}: expected letters or digits")
    for word, begins in dict.fromkeys(words):
        where, args = ("word = ?", [word]) if not begins else ("word >= ? and word < ?", [word, f"{word}\U0010ffff"])
        blobs = [blob for _, _, blob in read_rows(db, "words", f"where {where}", args)]
        if not all(isinstance(blob, bytes) and len(blob) % 8 == 0 for blob in blobs):
            raise describe_damage(db, f"the groups that say {word!r} are no list of numbers")
        ids = np.frombuffer(b"".join(blobs), "<i8")
        ids = np.unique(ids) if begins else ids  # a group has each of its words once
        found = ids if found is None else np.intersect1d(found, ids, assume_unique=True)
        if not len(found):
            break
    said: list[int] = found.tolist()
    return said
