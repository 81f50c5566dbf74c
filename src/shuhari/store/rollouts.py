"""Which rollouts are kept, and how they are stored: a few groups a step, so that a person can see what the policy
does."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.store import codec, finding, sizes
from shuhari.store.files import StoreError
from shuhari.store.payloads import pack, unpack
from shuhari.store.rows import DERIVED, describe_damage, read_rows, write_rows


def pick(
    scores: Sequence[float],
    n: int = 3,
    seed: int = 0,
    rules: Sequence[str] = ("best", "worst", "random"),
    changes: Sequence[float] = (),
) -> list[tuple[int, str]]:
    """Choose up to `n` groups of a step, (index, why), each once, by `rules` in their order: the "best", the "worst",
    the one that "changed" most by `changes` (one a group, NaN if it was not sampled before), and "random" ones, drawn
    from `seed`, for the rest. "all" keeps every group, whatever `n`.

    scores: one a group; groups without one (NaN) are never best or worst."""
    if "all" in rules:
        return [(i, "all") for i in range(len(scores))]
    order = [i for i in np.argsort(np.asarray(scores, np.float64), kind="stable").tolist() if not np.isnan(scores[i])]
    moved = sorted((i for i, x in enumerate(changes) if not np.isnan(x)), key=lambda i: -changes[i])
    first = {"best": order[::-1], "worst": order, "changed": moved}
    chosen: dict[int, str] = {}
    for why in (r for r in rules if r in first):
        if first[why] and len(chosen) < n:
            chosen.setdefault(first[why][0], why)
    rest = [i for i in range(len(scores)) if i not in chosen] if "random" in rules else []
    drawn = np.random.default_rng(seed).permutation(len(rest))[: max(0, n - len(chosen))]
    return [*chosen.items(), *((rest[i], "random") for i in drawn.tolist())]


def read_groups(db: sqlite3.Connection, rest: str, args: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what was committed of the groups that `rest` of a query chooses, each with its `step`. StoreError for a
    damaged one."""
    out = []
    for step, name, payload, *_ in read_rows(db, "rollouts", rest, args):
        try:
            out.append({**unpack(payload), "step": step})
        except codec.CodecError as error:
            raise describe_damage(db, f"the group {name!r:.40} of step {step} is damaged ({error})") from error
    return out


def read_group(db: sqlite3.Connection, number: int) -> dict[str, Any]:
    """Return the group of an id that `finding.find` gave: what was committed, and `step`. StoreError if there is
    none."""
    for group in read_groups(db, "where id = ?", (number,)) if abs(number) < 2**63 else ():
        return group
    raise StoreError(f"no group {number!r:.40} is kept")


def make_rows(step: int, groups: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], tuple[Any, ...]]]:
    """Return (group, its row in the table of rollouts) of each; a group that is too large to be read is left out, with
    a warning."""
    out = []
    for group in groups:
        try:
            out.append((group, make_row(step, group)))
        except sizes.SizeError as error:
            logging.getLogger("shuhari").warning("a rollout of step %d is too large to be kept: %s", step, error)
    return out


def make_row(step: int, group: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (None if group.get(k) is None else str(group[k]) for k in ("task", "problem", "why"))
    return (step, str(group["group"]), pack(group), *names, finding.to_number(group.get("score")))


def write(
    db: sqlite3.Connection, step: int, groups: Sequence[tuple[Mapping[str, Any], Sequence[Any]]], again: bool
) -> None:
    """Store the groups of a step, each with its `make_row`, and their index, inside the caller's transaction; again: in
    place of the step's present groups."""
    if groups and again:
        for table in ("rollouts", *DERIVED):
            db.execute(f"delete from {table} where step = ?", (step,))
    write_rows(db, "rollouts", [row for _, row in groups])
    ids = db.execute("select id from rollouts where step = ? order by id", (step,)) if groups else ()
    finding.write(db, step, [(number, group) for (number,), (group, _) in zip(ids, groups, strict=True)])
