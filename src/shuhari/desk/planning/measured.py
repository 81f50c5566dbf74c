"""Reads a profiled run's answers and this machine's speeds: `shuhari train --profile`, then this.

Speeds are non-negative least squares over the profile (`Phase.products`), without the first step, which warms up.
Answers are those in the store: all of them with `store.groups = ["all"]`, otherwise the ones stored at random, if there
are enough.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import is_tokens
from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.setting import Setting
from shuhari.desk.planning.workload import Answer, Group, Turn, Workload

SLOTS = 512  # of a decoder that chooses itself
FEW = 8  # fewest groups of a workload
SPREAD = 0.15  # coefficient of variation; below it, sizes do not show the fixed cost of an update


class PlanError(ValueError):
    """A run that cannot be planned from; the message says what it lacks."""


@dataclass(frozen=True)
class Measured:
    """A run as the planner sees it. `seconds`: mean of a step; `notes`: assumptions."""

    workload: Workload
    hardware: Hardware
    setting: Setting
    seconds: float
    notes: tuple[str, ...] = ()


def measure(path: Path) -> Measured:
    """Measure a run. Raises PlanError if it has no profile or no answers, or samples no text."""
    from shuhari.config.recipe import load
    from shuhari.desk.profile_report import read
    from shuhari.store import Run

    run, profile = Run(path), read(path)
    if profile is None:
        raise PlanError(f"{path} has no profile: make it with `shuhari train RECIPE --profile`, four steps or more")
    if not _sum(profile, "generate", inside=True):
        raise PlanError(f"{path} has no timings of a decoder: expected a run that samples text by engine 'local'")
    stage = load(path / "recipe.toml").stages[-1]
    columns = run.metrics()
    own = [i for i, name in enumerate(columns["stage"]) if name == columns["stage"][-1]]
    steps = [columns["step"][i] for i in own]
    walls = np.diff([columns["wall"][i] for i in own])
    if len(own) < 4:
        raise PlanError(f"{path} has {len(own)} steps of its last stage: expected at least 4")
    notes: list[str] = []
    groups = _groups(run, steps, notes)
    workload = Workload(groups, n=int(stage.get("rollout", {}).get("n", 0)), waits=tuple(profile.get("waits", ())))
    found = columns.get("rollout/length", ())
    lengths = [found[i] for i in own if len(found) and found[i] is not None]
    if lengths and abs(workload.written / np.mean(lengths) - 1) > 0.1:
        notes.append(f"the kept answers have {workload.written:.3g} tokens, all answers {np.mean(lengths):.3g}: "
                     'keep all of them with store.groups = ["all"]')  # fmt: skip
    engine = stage.get("engine", {})
    size = int(stage.get("buffer", {}).get("size", len(groups)))
    staleness = float(engine.get("staleness", 0))
    answers = [columns["rollout/episodes"][i] for i in own]
    hardware = _speeds(profile, float(np.mean(answers)), workload.tokens, notes)
    weights, kept, store = _bytes(path), *_stored(run, stage, steps, groups)
    hardware = Hardware(**{**vars(hardware), "slots": int(engine.get("slots", 0)) or SLOTS, "weights": weights,
                           "kept": kept, "store": store})  # fmt: skip
    often = max(8, 4 * (1 + int(staleness)), 1 + -(-len(groups) // size))  # each group once, after a first step
    setting = Setting("partial" if staleness else "sync", groups=size, staleness=staleness, shared=True,
                      steps=min(often, 40))  # fmt: skip
    return Measured(workload, hardware, setting, float(np.mean(walls[:-1])), tuple(notes))


def fit(products: Sequence[Sequence[float]], free: Sequence[int] = (), needed: Sequence[int] = ()) -> list[float]:
    """Fit the last size by the others with non-negative least squares, from the sums of their products; those in `free`
    get 0. Every subset of the others with one of `needed` is tried, and the best without a negative coefficient is
    returned."""
    gram = np.asarray(products, float)
    n = len(gram) - 1
    best, found = float("inf"), [0.0] * n
    names = [i for i in range(n) if i not in free and gram[i, i] > 0]
    scale = np.sqrt(np.diag(gram).clip(1e-300))
    gram = gram / np.outer(scale, scale)
    for k in range(1, len(names) + 1):
        for some in combinations(names, k):
            a, b = gram[np.ix_(some, some)], gram[list(some), n]
            if needed and not set(needed) & set(some):
                continue
            if np.linalg.matrix_rank(a, tol=1e-9) < k:
                continue
            x = np.linalg.solve(a, b)
            left = gram[n, n] - 2 * x @ b + x @ a @ x
            if (x >= 0).all() and left < best - 1e-12:
                best, found = left, [0.0] * n
                for i, value in zip(some, x, strict=True):
                    found[i] = float(value * scale[n] / scale[i])
    return found


def _sum(profile: Mapping[str, Any], phase: str, *, inside: bool) -> list[list[float]]:
    """Return the summed products of a phase; inside: also if nested in others, such as sampling for an evaluation."""
    found = [np.asarray(p["products"]) for path, p in profile["phases"].items()
             if p.get("products") and (path == phase or (inside and path.endswith("/" + phase)))]  # fmt: skip
    return np.sum(found, axis=0).tolist() if found else []


def _speeds(profile: Mapping[str, Any], answers: float, tokens: float, notes: list[str]) -> Hardware:
    phases, steps = profile["phases"], profile["last_step"] - profile["first_step"] - 1

    def a_step(*names: str) -> float:
        """Return the seconds a step of top-level phases, without the first and the last step."""
        seconds = sum(p["seconds"] - p.get("edges", 0.0) for path, p in phases.items() if path.split("/")[0] in names)
        return max(0.0, float(seconds)) / max(1, steps)

    # On a busy machine the attended tokens may explain everything, but no decoding step is free.
    step, row, read, cached = fit(_sum(profile, "generate", inside=True), needed=(0, 1))
    update, train = 0.0, 0.0
    if products := _sum(profile, "update", inside=False):
        count, total, square = products[0][0], products[0][1], products[1][1]
        spread = (max(0.0, square / count - (total / count) ** 2)) ** 0.5 / (total / count)
        update, train = fit(products, free=(0,) if spread < SPREAD else ())
        if spread < SPREAD:
            notes.append(f"updates were all of one size (within {spread:.0%}): their time is taken to grow with it")
    aside = a_step("pack", "grade", "other")
    return Hardware(step=step, row=row, read=read, cached=cached, update=update, train=train,
                    score=a_step("score") / (answers * tokens), driver=aside / answers / 2,
                    fixed=a_step("store", "sync", "evaluate"))  # fmt: skip


def _groups(run: Any, steps: Sequence[int], notes: list[str]) -> tuple[Group, ...]:
    kept = [
        g
        for step in steps
        for g in run.rollouts(step)
    ]
    random = [g for g in kept if g.get("why") in ("all", "random")]
    if len(random) < FEW and kept:
        notes.append(f"{len(random)} groups were kept at random, so that of the best and the worst count too")
        random = kept
    found = tuple(
        group
        for g in random
        if (group := tuple(a for t in g["trajectories"] if (a := _answer(t))))
    )
    if not found:
        raise PlanError(f"{run.path} keeps no rollouts: expected some (store.rollouts, store.groups)")
    return found


def _answer(trajectory: Any) -> Answer:
    """Return the turns of a trajectory that a text model sampled; text of forced steps counts as read, not written."""
    return tuple(Turn(len(s.context), len(s.action)) for s in trajectory.steps
                 if s.mask.any() and is_tokens(s.context) and is_tokens(s.action))  # fmt: skip


def _bytes(path: Path) -> float:
    """Return the bytes of the policy's weights, from the header of a checkpoint; 0 if there is none."""
    for file in sorted(path.glob("checkpoints/*/tensors.safetensors"), reverse=True):
        with file.open("rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        sizes = [x["data_offsets"] for name, x in header.items() if name.startswith("models/policy/")]
        return float(sum(b - a for a, b in sizes))
    return 0.0


def _stored(run: Any, stage: Mapping[str, Any], steps: Sequence[int], groups: Sequence[Group]) -> tuple[float, float]:
    """Return (stored bytes an answer, seconds a byte on this machine) if every group is stored; otherwise zeros,
    because storage does not grow."""
    from shuhari.store.payloads import pack

    if "all" not in stage.get("store", {}).get("groups", ()):
        return 0.0, 0.0
    some = run.rollouts(steps[-1])[:16]
    began = time.perf_counter()
    size = sum(len(pack(g)) for g in some)
    answers = sum(len(g["trajectories"]) for g in some)
    return size / answers, (time.perf_counter() - began) / size
