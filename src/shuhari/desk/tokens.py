"""Data on each token of a stored episode: its text, and the numbers computed for it, as plain values.

Axes: `K` positions of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.data import Array, Step, Trajectory, is_tokens

LOST = "\ufffd"


def read_numbers(step: Step, computed: Mapping[str, Array]) -> dict[str, Array]:
    """Return name -> [K] numbers of a step, NaN where there is no decision or the number is unknown: `advantage`;
    `logp`, the log-probability at sampling; `ratio`, pi (before the update) / pi (at sampling); `kl/<role>`, log pi -
    log pi_role, whose mean over sampled tokens estimates the divergence from that role's model; `version` of the
    weights; and other columns computed by models."""
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
    """Return the text of each position; None if unknown. pieces: the texts of tokens that a run stores with a group;
    without them, a text with as many characters as tokens is split into characters."""
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
    """Return name -> {low, high, signed, origin, middle} of the numbers of steps. signed: positive and negative numbers
    differ in kind; origin: the neutral value (0, a ratio of 1, the largest log-probability, otherwise the smallest
    number); middle: the median distance from it of the other numbers, 0 if there are none."""
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
    """Return for each step the number of leaves of the tree after it."""
    out = [0] * len(trajectory.steps)
    for path in trajectory.paths():
        for i in path:
            out[i] += 1
    return out


def follow(columns: Mapping[str, Sequence[Any]], most: int, entries: int = 8) -> dict[str, Any]:
    """Return an episode of a controller as curves: {at, length, moves, curves: {name: [values]}} over at most `most` of
    its moments `at`; the last one has no `action`. Of arrays the first `entries` numbers; pictures are left out."""
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
    """Return how a decision was denoised, as curves over the steps of denoising: `point 0`, ... [K + 1], the first
    numbers of the points before each of the K steps, with the decision last; and [K] of each number that varies. Empty
    without a stored chain."""
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
