"""Everything measured on one bed, method by method: results of claims and of `claim --bed`, their values and curves.

An arm's numbers come from its result; a metric that the result does not store is read from the runs, if these still
exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import list_names, load
from shuhari.data import EMPTY, Array, nearest
from shuhari.lab.claims.cards import restore
from shuhari.lab.claims.checks import BASELINE, METHOD, is_share
from shuhari.lab.claims.explore import read_every
from shuhari.lab.claims.looks import LEVEL
from shuhari.lab.claims.quantities import Evidence, Metric, read_value
from shuhari.lab.claims.result import read_kept
from shuhari.lab.claims.runs import find_spent
from shuhari.lab.claims.verdict import NEAR
from shuhari.store.directory import Run
from shuhari.store.schema import FILE

EARLY = 0.5  # share of the budget; a baseline that saturates before leaves little to measure


def find_name(bed: str) -> str:
    """Return the name of a bed given as its file."""
    if not bed.endswith(".toml"):
        return bed
    try:
        return load(bed).name
    except RecipeError:  # the file may have been moved since
        return Path(bed).stem


def list_results(bed: str, out: Path, *, known: bool = False) -> dict[str, dict[str, Any]]:
    """Return method -> its result on a bed, from `out` and the packaged results; a claim takes precedence over an
    exploration. Raises ValueError, naming the nearest bed, if the bed is not `known` and nothing was measured on it."""
    names, explored = list_names(), read_every(out)
    results = {found["method"]: found for found in explored if found["bed"] == bed}
    claimed = {
        name: found
        for name in names
        if (found := read_kept(name, out / "claims") or read_kept(name)) is not None
    }
    results |= {name: found for name, found in claimed.items() if found.get("bed") == bed}
    if not results and not known and bed not in names:
        there = {str(found["bed"]) for found in (*claimed.values(), *explored) if found.get("bed")}
        near = nearest(bed, there | {n for n in names if n.startswith("beds/")})
        measured = near if near.startswith("did you mean") else f"methods were measured on {', '.join(sorted(there))}"
        raise ValueError(f"no bed {bed!r}; {measured}")
    return results


def read_by_seed(result: Mapping[str, Any], arm: str, metric: str, runs: Path | None = None) -> dict[int, float]:
    """Return seed -> a reading of an arm's curve; empty if neither the result nor its runs below `runs` have the curve.
    """
    quantity = Metric(metric)
    found = _read_evidence(result, arm, quantity.names, runs)
    return {run.seed: read_value(quantity, run, arm, 0) for run in found}


def read_curves(result: Mapping[str, Any], arm: str, name: str, runs: Path | None = None) -> list[tuple[Array, Array]]:
    """Return (x, y) of a metric over the budget spent, one for each run of an arm."""
    found = [run.read_within(name) for run in _read_evidence(result, arm, (name,), runs) if run.spent]
    return [(x, y) for x, y in found if len(x)]


def _read_evidence(result: Mapping[str, Any], arm: str, names: Sequence[str], runs: Path | None) -> list[Evidence]:
    told = result["arms"].get(arm, EMPTY)
    curves = told.get("curves", EMPTY)
    ((unit, amount),) = (result["budget"] or {"steps": 0}).items()
    if all(name in curves for name in names):
        found = [
            restore(
                seed,
                {m: curves[m][i] for m in names},
                amount,
            )
            for i, seed in enumerate(result["seeds"])
        ]
        gone = told.get("diverged", ())
        return [replace(run, diverged=run.seed in gone or not run.spent) for run in found]
    out = []
    for seed, name in zip(result["seeds"], told.get("runs", ()), strict=False):
        path = runs / name if runs else None
        if path is None or not (path / FILE).is_file():
            return []
        run = Run(path)
        columns = run.metrics()
        if any(n not in columns for n in names):
            return []
        start = dict((run.summary or {}).get("before") or {})
        out.append(Evidence(seed, columns, find_spent(columns, unit), start, float(amount), path))
    return out


def list_metrics(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the curves that the results store of methods and baselines."""
    found = dict[str, None]()
    for result in results.values():
        for arm in (METHOD, BASELINE):
            found |= dict.fromkeys(result["arms"].get(arm, EMPTY).get("curves", EMPTY))
    return list(found)


def find_alpha(result: Mapping[str, Any]) -> float:
    """Return the false-positive rate of the interval at the look that decided a result."""
    return 1.0 - float(result["headline"].get("level") or LEVEL)


def find_saturation(result: Mapping[str, Any], metric: str = "") -> str:
    """Return a sentence if the bed saturates: the baseline stays near an end of the range of a share from early in its
    budget on; otherwise "". `metric`: default the headline's."""
    told = metric or str(result["headline"].get("metric", ""))
    name = told.partition(":")[0]
    if not name or not is_share(f"{name}:final") or not result.get("budget"):
        return ""
    curves = read_curves(result, BASELINE, name)
    ((unit, amount),) = result["budget"].items()
    x = np.unique(np.concatenate([x for x, _ in curves])) if curves else np.zeros(0)
    mean = np.mean([np.interp(x, *curve) for curve in curves], axis=0) if curves else x
    for end in (0.0, 1.0):
        since = _find_since(x, mean, end)
        if since is not None and since <= EARLY * amount:
            what = "a harder bed, or a shorter budget" if end else "an easier bed, or a longer budget"
            return (f"the bed saturates: its baseline holds {name} within {NEAR:g} of {end:g} from {since:,.0f} of "
                    f"{amount:,.0f} {unit} on, after which nothing can show there; {what}, says more")  # fmt: skip
    return ""


def _find_since(x: Array, y: Array, end: float) -> float | None:
    """Return the x from which a curve stays near `end`; None if it does not end there."""
    off = np.flatnonzero(np.abs(y - end) > NEAR)
    first = int(off[-1]) + 1 if len(off) else 0
    return float(x[first]) if first < len(x) else None
