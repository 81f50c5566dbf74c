"""What is known of each token of a kept episode: its text, and what was computed of it, in plain values.

Axes: `K` positions of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.data import Array, Step, Trajectory, is_tokens

LOST = "\ufffd"


def read_numbers(step: Step, computed: Mapping[str, Array]) -> dict[str, Array]:
    """name -> [K], NaN where it is no decision or unknown: `advantage`; `logp`, log-probabilities at sampling; `ratio`,
    pi (before the update) / pi (at sampling); `kl/<role>`, log pi - log pi_role, of which the mean over tokens that pi
    has drawn is the divergence from that role's model; `version` of the weights; and what else models were asked."""
    own, mask = f"{step.role}/log_prob", step.mask
    out = {name: np.asarray(x, np.float64) for name, x in computed.items() if np.shape(x) == mask.shape}
    logp = None if step.logp is None or np.shape(step.logp) != mask.shape else np.where(mask, step.logp, np.nan)
    if logp is not None:
        out["logp"] = logp
        if own in out:
            out["ratio"] = np.exp(out[own] - logp)
    mine = out.get(own, logp)
    for name in [n for n in out if n.endswith("/log_prob") and n != own]:
        if mine is not None:
            out[f"kl/{name.removesuffix('/log_prob')}"] = mine - out[name]
    if step.version.shape == mask.shape and (step.version >= 0).any():
        out["version"] = np.where(mask, step.version, np.nan)
    return {name: x for name, x in out.items() if np.isfinite(x).any()}


def spell(step: Step, pieces: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """The text of each position; None where it is not known. pieces: what a run keeps of its tokenizers beside a group;
    without them a text of as many characters as tokens is one of characters."""
    if not is_tokens(step.action):
        return None
    ids: Any = step.action
    if known := pieces.get(step.role):
        texts = dict(zip(np.asarray(known["ids"]).tolist(), known["texts"], strict=True))
        return [texts.get(i, LOST) for i in ids.tolist()]
    text = step.info.get("text")
    if not isinstance(text, str) or not len(ids) - 1 <= len(text) <= len(ids):
        return None
    return [*text, *["<end>"] * (len(ids) - len(text))]


def find_ranges(numbers: Sequence[Mapping[str, Array]]) -> dict[str, dict[str, Any]]:
    """name -> {low, high, signed, origin, middle} of the numbers of steps; signed: those on both sides of 0 differ
    in kind; origin: what stands out least (0, a ratio of 1, the largest log-probability, else the smallest number);
    middle: the median distance from it of the numbers that lie elsewhere, 0 where none does."""
    out = {}
    for name in sorted({
        name
        for columns in numbers
        for name in columns
    }):
        values = np.concatenate([columns[name] for columns in numbers if name in columns])
        values = values[np.isfinite(values)]
        low, high = float(values.min()), float(values.max())
        signed = name == "advantage" or name.startswith("kl/") or low < 0 < high
        origin = 0.0 if signed else 1.0 if name == "ratio" else high if name.endswith(("logp", "log_prob")) else low
        away = np.abs(values - origin)
        middle = float(np.median(away[away > 0])) if away.any() else 0.0
        out[name] = {"low": low, "high": high, "signed": signed, "origin": origin, "middle": middle}
    return out


def count_leaves(trajectory: Trajectory) -> list[int]:
    """Of each step, how many leaves of the tree lie behind it."""
    out = [0] * len(trajectory.steps)
    for path in trajectory.paths():
        for i in path:
            out[i] += 1
    return out


def follow(columns: Mapping[str, Sequence[Any]], most: int, entries: int = 8) -> dict[str, Any]:
    """What an episode of a controller was, as curves: {at, length, moves, curves: {name: [values]}} over at most `most`
    of its moments `at`, of which the last has no `action`; of arrays the first `entries` numbers. Pictures are left
    out."""
    n = max((len(values) for values in columns.values()), default=0)
    at = sorted(set(np.linspace(0, n - 1, min(n, most)).round().astype(int).tolist())) if n else []
    curves: dict[str, list[float | None]] = {}
    for name, values in columns.items():
        rows = [_flatten(value) for value in values]
        width = max((len(row) for row in rows), default=0)
        if not 0 < width <= 64:  # more is a picture
            continue
        for j in range(min(width, entries)):
            own = f"{name} {j}" if width > 1 else name
            curves[own] = [rows[t][j] if t < len(rows) and j < len(rows[t]) else None for t in at]
    return {"at": at, "length": n, "moves": len(columns.get("action", ())), "curves": curves}


def unroll(step: Step, numbers: Mapping[str, Array], entries: int = 8) -> dict[str, list[float | None]]:
    """How a decision came out of noise, as curves over the steps of denoising: `point 0`, ... [K + 1], the first
    numbers of the points before each of the K steps, the decision last; and [K] of each number that is not the same at
    all of them. Empty where no chain is known."""
    chain = step.info.get("chain")
    if not isinstance(chain, np.ndarray) or chain.ndim != 2 or chain.dtype.kind not in "fiu" or not chain.size:
        return {}
    made = np.asarray(step.action)
    points = [*chain, made.reshape(-1)] if made.size == chain.shape[1] and made.dtype.kind in "fiu" else [*chain]
    columns = list(zip(*(_flatten(point[:entries]) for point in points), strict=True))
    out = {f"point {j}": list(column) for j, column in enumerate(columns)}
    here = {name: x for name, x in numbers.items() if len(x) == len(chain)}
    return out | {name: _flatten(x) for name, x in here.items() if len({*x[np.isfinite(x)].tolist()}) > 1}


def _flatten(value: Any) -> list[float | None]:
    if isinstance(value, Mapping):
        return [
            x
            for part in value.values()
            for x in _flatten(part)
        ]
    if isinstance(value, str | bytes) or value is None:
        return []
    row = np.asarray(value, np.float64).reshape(-1)
    return [x if x - x == 0 else None for x in row[:65].tolist()]
