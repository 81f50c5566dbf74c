"""The stored result of a claim: a JSON file and a plot for each method, with all data that determine the verdict.

A result is stale if the arms' recipes, or the method's own modules, have changed since it was measured. If the core or
a shared module has changed, it is older, but still counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError, format_path, walk_leaves
from shuhari.lab.claims import kept_results
from shuhari.lab.claims.checks import METHOD, Check
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.quantities import Evidence, Quantity, Simulated
from shuhari.lab.claims.runs import Made
from shuhari.lab.claims.sources import digest_core, digest_modules, find_changed, list_common
from shuhari.lab.claims.tries import file_of
from shuhari.ports.hooks import ability
from shuhari.store.files import replace_file, translate_errors

WHOLE = ("verdict", "says", "headline", "kind", "premise", "guard", "because", "mde", "exploratory", "checks", "start",
         "chance", "arms", "hashes", "history")  # fmt: skip


def read_kept(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """Read the stored result of a claim under `at`, or the packaged one; None if there is none. Raises RecipeError if
    it is incomplete."""
    found = kept_results.read_result(name, at)
    if found is not None and (gone := [key for key in WHOLE if key not in found]):
        where = (at or kept_results.find_results()) / f"{name}.json"
        raise RecipeError("", f"{where} is not the result of a claim (it lacks {', '.join(gone)}): move it away")
    return found


def find_runs(claim: Claim, check: int, arm: str, made: Made) -> list[Evidence]:
    """Return [S] the runs of an arm that a check reads, or seeds without runs if nothing is trained."""
    return made.evidence[arm] if claim.checks[check].trains else [Evidence(seed) for seed in claim.seeds]


def make_result(
    claim: Claim,
    quantities: Sequence[Quantity],
    made: Made,
    before: Mapping[str, Any] | None,
    hashed: Mapping[str, Any],
    ruled: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the whole result. `before`: the existing one, whose `history` it continues; `hashed`: the claim's `hashes`
    when its runs began; `ruled`: the findings by role of the checks."""
    metrics = list(
        dict.fromkeys(
            n
            for q in quantities
            for n in ability(q, "names")
        )
    )
    fixed = ruled["protocol"]
    now = {
        "date": date.today().isoformat(),
        "verdict": ruled["verdict"],
        "checks": [
            {k: v for k, v in c.items() if k != "values"}
            for c in ruled["checks"]
        ],
        "seeds": len(claim.seeds),
        "budget": dict([claim.budget]) if claim.budget else None,
        "core": hashed["core"],
        "recipes": hashed["recipes"],
        "says": claim.says,
        "protocol": fixed["hash"],
        "try": fixed["tries"],
        "commit": fixed["commit"],
        "used": [claim.seeds[0], claim.seeds[-1]] if claim.seeds else [],
        "premise": ruled["premise"]["failing"],
    }
    history = list((before or {}).get("history", []))
    if history and {**history[-1], "date": ""} == {**now, "date": ""}:  # the same runs, read again
        now = history.pop()
    return {
        "format": kept_results.RESULT,
        "method": claim.name,
        "smoke": claim.smoke,
        **ruled,
        "says": claim.says,
        "notes": list(claim.notes),
        "paper": dict(claim.method.tree.get("paper", {})),
        "task": dict(claim.own.tree.get("task", {})),
        "model": describe_model(claim),
        "budget": dict([claim.budget]) if claim.budget else None,
        "seeds": list(claim.seeds),
        "start": {
            arm: _average([dict(e.start) for e in runs])
            for arm, runs in made.evidence.items()
        },
        "chance": {k: round_to(v) for k, v in made.chance.items()},
        "arms": {arm: _describe_arm(claim, arm, made, metrics) for arm in made.evidence},
        "wall_s": round(
            sum(
                run.wall
                for runs in made.evidence.values()
                for run in runs
            )
        ),
        "hashes": hashed,
        "versions": dict(made.versions),
        "history": [*history, now],
    }


def compute_hashes(claim: Claim) -> dict[str, Any]:
    """Compute the hashes of what determines the result: the recipes of arms and warm starts, the claim's text, the
    method's own modules; and of the core and shared modules, whose change makes it older, not stale."""
    found = find_modules(claim)
    return {
        **_describe_stated(claim),
        "modules": {name: digest for name, digest in found.items() if name not in list_common()},
        "shared": {name: digest for name, digest in found.items() if name in list_common()},
        "core": digest_core(),
    }


def _describe_stated(claim: Claim) -> dict[str, Any]:
    checks = [describe(c) for c in claim.checks]
    words = {"says": claim.says, "notes": list(claim.notes)}
    return {
        "recipes": {name: compute_digest(recipe) for name, recipe in claim.recipes.items()},
        "claim": {"checks": checks, **words, "looks": list(claim.looks), "bed": claim.bed},
    }


def find_modules(claim: Claim) -> dict[str, str]:
    """Return module -> digest of every module outside the core that the claim's runs and simulations use."""
    found = digest_modules([], [q.by for q in list_quantities(claim) if isinstance(q, Simulated)])
    for name, recipe in (claim.recipes or {METHOD: claim.own}).items():
        try:
            found |= digest_modules([recipe])
        except RecipeError as error:
            raise RecipeError(f"arm {name!r}, {error.where}", error.problem) from None
    return dict(sorted(found.items()))


def list_quantities(claim: Claim) -> list[Quantity]:
    """Return the quantity of each check."""
    from shuhari.config.build import make_component

    found: list[Quantity] = []
    for i, check in enumerate(claim.checks):
        try:
            found.append(make_component("quantity", check.quantity, f"claim.check.{i}", "metric"))
        except RecipeError as error:
            raise RecipeError(f"{error.where} ({check.rule.role})", error.problem) from None
    return found


def find_stale(claim: Claim, result: Mapping[str, Any]) -> str:
    """Return why a result no longer belongs to the present claim; "" if it does. Only hashes stored in the result can
    make it stale."""
    return find_restated(claim, result) or find_changed(result["hashes"]["modules"], find_modules(claim))


def find_restated(claim: Claim, result: Mapping[str, Any]) -> str:
    """Return what has changed in the claim's text or its arms' recipes since it was measured; "" if nothing."""
    now, then = _describe_stated(claim), result["hashes"]
    for name, stated in _to_plain(now["claim"]).items():
        if stated != then["claim"].get(name):
            return f"claim.{name} has changed"
    for name in sorted({*now["recipes"], *then["recipes"]}):
        if now["recipes"].get(name) != then["recipes"].get(name):
            return f"recipe {name!r} has changed"
    return ""


def describe_model(claim: Claim) -> dict[str, Any]:
    """Describe the method's policy: its settings and number of parameters."""
    from shuhari.config.build import build_stage

    stage = claim.own.stages[-1]
    parts = build_stage(stage)
    policy = parts.models["policy"].model
    policy.build(parts.task)
    return {**stage["models"]["policy"], "parameters": sum(p.numel() for p in policy.module.parameters())}


def _describe_arm(claim: Claim, arm: str, made: Made, metrics: Sequence[str]) -> dict[str, Any]:
    """Describe an arm: how it differs from the method, its costs, and its raw curves."""
    runs = made.evidence[arm]
    out: dict[str, Any] = {"changes": find_differences(claim, arm), "wall_s": [round(r.wall, 1) for r in runs]}
    out["runs"] = [r.path.name for r in runs if r.path]
    out["spent"] = [round(r.spent[-1]) if r.spent else 0 for r in runs]
    ledgers = [
        {k: v[-1] for k, v in r.columns.items() if k.startswith("spent/") and v}
        for r in runs
    ]
    means = {
        k: mean([x.get(k) or 0.0 for x in ledgers])
        for k in ledgers[0]
    }
    out["ledger"] = {k.removeprefix("spent/"): round_to(v or 0.0, 7) for k, v in means.items()}
    if diverged := [r.seed for r in runs if r.diverged]:
        out["diverged"] = diverged
    there = [
        m
        for m in metrics
        if any(m in r.columns for r in runs)
    ]
    return {
        **out,
        "curves": {
            m: [list_points(r, m) for r in runs]
            for m in there
        },
    }


def find_differences(claim: Claim, arm: str) -> dict[str, Any]:
    """Return dotted key -> setting of the arm's last stage, for those that differ from the method's; None: not set."""
    skip = ("name", "summary", "claim", "paper", "alone", "laid")
    ours, theirs = (dict(walk_leaves(claim.arms[name].stages[-1])) for name in (METHOD, arm))
    keys = [k for k in dict.fromkeys([*ours, *theirs]) if k[0] not in skip and ours.get(k) != theirs.get(k)]
    return {format_path(k): theirs.get(k) for k in keys}


def describe_differences(changes: Mapping[str, Any]) -> list[str]:
    """Describe the differences as phrases; settings that the arm lacks are named by their table."""
    gone = {k.rpartition(".")[0] for k, v in changes.items() if v is None}
    phrases = [f"{k} = {v}" if v != "" else f'{k} = ""' for k, v in changes.items() if v is not None and v != {}]
    return [
        *phrases,
        *(
            f"without {g}"
            for g in sorted(gone)
            if not any(s.startswith(f"{g}.") for s in phrases)
        ),
    ]


def format_factor(factor: float) -> str:
    """Format the factor of the compared value as a prefix; "" for 1."""
    return f"{factor:g} x " if factor != 1 else ""


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def list_points(run: Evidence, metric: str) -> dict[str, list[float | None]]:
    """Return a curve as stored: every point, with None for NaN; empty if the run ended before its first report."""
    try:
        x, y = run.read_curve(metric)
    except KeyError:
        return {"x": [], "y": []}
    return {
        "x": [float(f"{v:.7g}") for v in x],
        "y": [round_to(float(v), 6) for v in y],
    }


def describe(check: Check) -> dict[str, Any]:
    """Describe a check's quantity and rule as JSON."""
    rule = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(check.rule).items() if v != ()}
    kind = {k: v for k, v in (("kind", check.kind), ("turned", check.turned)) if v}
    return {**check.quantity, **{k: v for k, v in rule.items() if k != "ratio" or v}, **kind}


def _to_plain(value: Any) -> Any:
    """Convert a recipe's value to JSON, which has neither `inf` nor dates."""
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(v) for v in value]
    odd = isinstance(value, date | time) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if odd else value


def _average(found: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    found = [f for f in found if f]  # a run that diverged has none
    names = found[0] if found else ()
    return {
        n: round_to(float(np.mean([f[n] for f in found])))
        for n in names
        if all(n in f for f in found)
    }


def round_to(value: float, digits: int = 5) -> float | None:
    """Round to a number of significant digits; None if it is not finite, which JSON cannot store."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def write(result: Mapping[str, Any], at: Path) -> Path:
    """Write `at`/claims/<family>/<method>.json and the plot of its curves (`find_plot`), then delete the record of
    begun tries."""
    from shuhari.lab.plot import plot_bands
    from shuhari.store.listing import name_arm

    path = save(result, at)
    metrics = list(
        dict.fromkeys(
            m
            for arm in result["arms"].values()
            for m in arm["curves"]
        )
    )
    if metrics:
        unit = next(iter(result["budget"] or {"steps": 0}))
        names = {name: name_arm(result["method"], name, result.get("bed") or "") for name in result["arms"]}
        curves = {
            m: {names[name]: arm["curves"].get(m, []) for name, arm in result["arms"].items()}
            for m in metrics
        }
        picture = find_plot(result, at)
        with translate_errors(f"write {picture}"):
            plot_bands(curves, unit, picture, f"{result['method']}: {result['verdict']}")
    file_of(result["method"], at).unlink(missing_ok=True)  # last: until then the tries count as begun
    return path


def find_plot(result: Mapping[str, Any], at: Path) -> Path:
    """Return the path of a result's plot."""
    return at / "plots" / f"{result['method']}.png"


def save(result: Mapping[str, Any], at: Path) -> Path:
    """Write the JSON file only."""
    return write_json(result, at / "claims" / f"{result['method']}.json")


def write_json(found: Mapping[str, Any], path: Path) -> Path:
    """Write a result as JSON, in its folder, and return the path."""
    text = json.dumps(_to_plain(found), indent=1, allow_nan=False) + "\n"
    with translate_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [text.encode()])
    return path
