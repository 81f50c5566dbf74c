"""Comparison of two runs: everything that a run writes, and the places at which two runs differ."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from shuhari.store import Ring, Run, codec
from shuhari.store.payloads import unpack


def contents(path: Path) -> dict[str, Any]:
    """Return everything that a run writes, except times: its last checkpoint, the metrics and rollouts of every step,
    and its summary. Two runs are the same if `differences` finds nothing between these."""
    run = Run(path)
    with closing(sqlite3.connect(path / "run.sqlite")) as db:
        steps = db.execute("select step, stage, metrics from steps order by step").fetchall()
        groups = db.execute("select step, name, payload from rollouts order by id").fetchall()
    tree = run.load()
    progress = tree.get("progress", tree)  # a study has it at the top
    del progress["seconds"]
    progress.get("started", {}).pop("seconds", None)
    summary = run.summary or {}
    summary.pop("wall_s", None)
    return {
        "checkpoint": to_plain(tree),
        "steps": [[step, stage, json.loads(text)] for step, stage, text in steps],
        "rollouts": [[step, name, to_plain(unpack(payload))] for step, name, payload in groups],
        "summary": summary,
    }


def to_plain(tree: Any) -> Any:
    """Convert a tree to JSON and bytes, so that only equal bits compare equal. Of a ring, only filled rows count."""

    def ring(_: str, x: Ring) -> Any:
        columns = {name: to_plain(column[: x.size]) for name, column in x.columns.items()}
        return {"written": x.written, "capacity": x.capacity, "columns": columns}

    value, tensors = codec.encode(tree, ring=ring)
    bits = {n: [str(x.dtype), list(x.shape), to_bytes(x)] for n, x in tensors.items()}
    return {"json": value, "tensors": bits}


def to_bytes(x: Any) -> bytes:
    """Return the bytes of a tensor."""
    return bytes(x.contiguous().numpy().tobytes())


def differences(a: Any, b: Any, at: str = "") -> list[str]:
    """Return the places, dotted, at which two trees differ; NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        missing = [f"{at}.{k}: only on one side" for k in a.keys() ^ b.keys()]
        return missing + [
            d
            for k in a.keys() & b.keys()
            for d in differences(a[k], b[k], f"{at}.{k}")
        ]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            d
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for d in differences(x, y, f"{at}.{i}")
        ]
    if type(a) is type(b) and (a == b or (a != a and b != b)):
        return []
    return [f"{at}: {_excerpt(a)} and {_excerpt(b)}"]


def _excerpt(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 80 else f"{text[:80]}…"
