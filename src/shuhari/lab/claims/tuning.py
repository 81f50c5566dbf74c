"""Tunes the arms of a claim before it is measured: a small grid for the baseline and one of equal size for the method
(`grids`).

By halving: every setting on one seed, the best third on two more. These seeds are kept for it: no claim uses them. The
best settings are written into the claim by whoever states it, and a claim whose arms are others has that as a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError, look_up, split_path
from shuhari.lab.claims.checks import Check
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.grids import SIDES, Tune
from shuhari.lab.claims.pool import Progress
from shuhari.lab.claims.quantities import Metric, read_values
from shuhari.lab.claims.result import round_to, write_json
from shuhari.lab.claims.runs import make
from shuhari.lab.claims.verdict import Rule

FOLDER = "tuned"
FIRST = 3000  # the first seed of tuning; claims and cards have others
MORE = 2  # seeds of the second round
SHARE = 3  # of this many settings one goes on to the second round


def tune(
    claim: Claim, how: Tune, root: Path, *, workers: int = 0, tell: Callable[[Progress], None] = lambda _: None
) -> dict[str, Any]:
    """Run both grids of a claim under `root` and return what was found: by side the settings with their values, best
    first, and the best one. Raises RecipeError for a key that an arm does not have, ClaimError if a run fails."""
    metric = Metric(how.by)
    found: dict[str, Any] = {}
    for side in SIDES:
        settings = how.list_settings(side)
        for key in getattr(how, side):
            if look_up(claim.arms[side].stages[-1], split_path(key)) is None:
                raise RecipeError(f"claim.tune.{side}.{key}", f"arm {side!r} sets no such key")
        arms = {f"{side} {i}": claim.arms[side].with_settings(one) for i, one in enumerate(settings)}
        values: dict[str, list[float]] = {name: [] for name in arms}
        chosen = list(arms)
        for seeds in ((FIRST,), tuple(range(FIRST + 1, FIRST + 1 + MORE))):
            warm = {name: claim.warm[side] for name in chosen} if side in claim.warm else {}
            check = Check({"metric": how.by}, Rule("equal", arm=chosen[0], against=0.0, role="headline"))
            part = replace(claim, arms={name: arms[name] for name in chosen}, warm=warm, checks=(check,), seeds=seeds)
            made = make(part, [metric], root, workers=workers, tell=tell)
            for name in chosen:
                values[name] += read_values(metric, made.evidence[name], name, 0)
            chosen = _order(values, how.direction)[: max(1, math.ceil(len(arms) / SHARE))]
        best = _order({name: values[name] for name in chosen}, how.direction)[0]
        found[side] = {
            "grid": [
                {"settings": one, "values": [round_to(v) for v in values[name]]}
                for name, one in zip(arms, settings, strict=True)
            ],
            "best": settings[list(arms).index(best)],
            "digest": compute_digest(arms[best]),
        }
    about = {"method": claim.name, "by": how.by, "direction": how.direction, "seeds": [FIRST, FIRST + MORE]}
    return {**about, "sides": found}


def _order(values: Mapping[str, Sequence[float]], direction: str) -> list[str]:
    """Return the names, best mean first; those without a value last."""

    def rank(name: str) -> float:
        mean = sum(values[name]) / len(values[name]) if values[name] else math.nan
        return math.inf if math.isnan(mean) else -mean if direction == "up" else mean

    return sorted(values, key=rank)


def write(found: Mapping[str, Any], at: Path) -> Path:
    """Write `at`/tuned/<family>/<method>.json and return the path."""
    return write_json(found, at / FOLDER / f"{found['method']}.json")


def read(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """Read the stored outcome of a claim's tuning; None if it was not tuned. Raises RecipeError if it is unreadable."""
    from shuhari.lab.claims.kept_results import find_results, read_json

    def refuse(found: Any) -> str:
        gone = [side for side in SIDES if "digest" not in found["sides"][side]]
        return f"without {', '.join(gone)}" if gone else ""

    return read_json((at or find_results(FOLDER)) / f"{name}.json", "the outcome of tuning", refuse)
