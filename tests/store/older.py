"""A run as it was before its tables were counted: format 5, and checkpoints whose checksum leaves out their head."""

from __future__ import annotations

import re
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

from shuhari.store import sets
from shuhari.store.rows import write_rows


def make_older(run: Path) -> Path:
    """Change a run of today into one that the version before has written."""
    with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
        db.execute("delete from meta where key in (?, 'id')", (sets.FACT,))
        write_rows(db, "meta", [("format", "5")])
    for file in run.glob("**/checkpoints/*/tree.json"):
        data = file.read_bytes()
        head = re.match(rb'{"format":2(.*?),"crc32":\d+,"tree":', data, re.DOTALL)
        assert head is not None
        text = data[head.end() : -2]
        file.write_bytes(b'{"format":1%b,"crc32":%d,"tree":%b}\n' % (head[1], zlib.crc32(text), text))
    return run
