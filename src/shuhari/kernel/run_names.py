"""Short names of the runs that an analysis is given. Used by analyses that compare several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shuhari.kernel.findings import START

SEED = re.compile(r"[-_]s(eed)?\d+$")


def shorten(names: Sequence[str]) -> list[str]:
    """Return each name without its folder and the seed at its end, `runs/long-s1000@start` as `long@start`; the names
    as they are if two would become the same."""
    out = []
    for name in names:
        run, at, step = name.rpartition("@")
        last = Path(run if at else name).name
        out.append(SEED.sub("", last) + at + (step if at else ""))
    return out if len(set(out)) == len(set(names)) else list(names)


def find_starts(names: Sequence[str]) -> dict[int, int]:
    """Return the place of each run whose start is given too -> the place of that start."""
    place = {name: i for i, name in enumerate(names)}
    return {i: place[name + START] for i, name in enumerate(names) if name + START in place}
