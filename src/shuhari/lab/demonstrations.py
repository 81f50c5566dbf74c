"""Demonstrations: what a method changes, shown with and without it on a few seeds, and no verdict.

A method whose paper's regime or strongest rival is not at hand has a `demonstration.toml` in place of a claim:

```toml
says = "..."                      # what is shown, in a sentence
why = "..."                       # why it is no claim
bed = "beds/trie/twins"           # the recipe that the method is laid over (default: its usual base)
warm = "warm-up"                  # the stages up to this one run once a seed, shared by both sides
budget = {steps = 60}             # of each side, in one unit of the ledger
seeds = 3                         # at least 3
settings = {}                     # laid over both sides, below the method
with = {}                         # laid over the side with the method
without = {}                      # laid over the other side, which is the bed alone; `extends` names another recipe
quantity = "policy/entropy:final" # the method's own quantity, a reading of a curve
dose = "policy/chosen:mean"       # what share the method changes, on its side; "1 - rollout/alike:mean" is the rest
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from shuhari.bounds import Bounds
from shuhari.config import library
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import find_file, load
from shuhari.config.settings import Settings
from shuhari.data import EMPTY
from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.claim import Claim, resolve
from shuhari.lab.claims.pool import Progress
from shuhari.lab.claims.quantities import Metric, read_values
from shuhari.lab.claims.result import (
    compute_hashes,
    find_differences,
    find_plot,
    list_points,
    list_quantities,
    round_to,
    write_json,
)
from shuhari.lab.claims.runs import Made, make
from shuhari.lab.claims.sources import find_changed
from shuhari.store.files import translate_errors

FORMAT = 1
FOLDER = "demonstrations"
LEAST = 3  # seeds
SIDES = {METHOD: "with", BASELINE: "without"}


@dataclass(frozen=True)
class Stated:
    """A `demonstration.toml` as written."""

    quantity: str
    """Metric and reading that the method is about, such as `evaluate/exact.entropy:final`."""
    dose: str
    """Metric and reading of what share the method changes, read on its side; after `1 - `, of the share it does not."""
    budget: Mapping[str, Any]
    """What each side may spend, in one unit of the ledger, such as `{steps = 60}`."""
    says: str = ""
    """What is shown, in a sentence."""
    why: str = ""
    """Why the method has a demonstration and no claim."""
    seeds: Annotated[int, Bounds(LEAST)] = LEAST
    """Number of seeds, at least 3."""
    bed: str = ""
    """Recipe that the method is laid over; its usual base if empty."""
    warm: str | Mapping[str, Any] = ""
    """Last of the stages that run once a seed, before both sides."""
    settings: Mapping[str, Any] = field(default=EMPTY)
    """Settings of both sides, below the method."""
    method: Mapping[str, Any] = field(default=EMPTY)
    """Settings of the side with the method (`with` in the file)."""
    without: Mapping[str, Any] = field(default=EMPTY)
    """Settings of the side without it."""


@dataclass(frozen=True)
class Demonstration:
    """A demonstration: its `claim`-like arms, and how it was stated."""

    claim: Claim
    stated: Stated

    @property
    def name(self) -> str:
        return self.claim.name


def read(name: str) -> Demonstration:
    """Read the demonstration of a method. Raises RecipeError if it has none, or for a mistake in it."""
    method, found = load(name), library.read_demonstration(name, find_file(name))
    if found is None:
        there = "; it has a claim: `shuhari claim`" if method.tree.get("claim") else ""
        raise RecipeError("", f"{method.name} has no {library.SHOWN}{there}")
    if method.tree.get("claim"):
        raise RecipeError("", f"{method.name} has a claim and a {library.SHOWN}: expected one of them")
    table = {"method" if key == "with" else key: value for key, value in found.items()}
    where = library.SHOWN
    stated: Stated = Settings().make(Stated, table, where, "a demonstration")
    for key in ("quantity", "dose"):
        try:
            Metric(getattr(stated, key))
        except ValueError as error:
            raise RecipeError(f"{where}.{key}", str(error)) from None
    checks = [
        {"role": "headline", "metric": stated.quantity, "direction": "equal"},
        {"role": "dose", "metric": stated.dose, "against": 0.0},
    ]
    as_claim = {
        "says": stated.says,
        "bed": stated.bed,
        "warm": stated.warm,
        "budget": stated.budget,
        "settings": stated.settings,
        "baseline": dict(stated.without),
        "arms": {METHOD: stated.method} if stated.method else {},
        "check": checks,
    }
    return Demonstration(resolve(name, method, as_claim, seeds=stated.seeds), stated)


def list_names() -> list[str]:
    """Return the methods that have a demonstration."""
    return [name for name in library.list_names() if library.read_demonstration(name) is not None]


def demonstrate(
    shown: Demonstration, root: Path, *, workers: int = 0, tell: Callable[[Progress], None] = lambda _: None
) -> dict[str, Any]:
    """Make both sides of a demonstration, with its runs under `root`, and return the result: by side the quantity and
    the dose of each seed and their curves. Raises ClaimError if a run fails."""
    claim, hashes = shown.claim, compute_hashes(shown.claim)
    quantities = list_quantities(claim)
    made = make(claim, quantities, root, workers=workers, tell=tell)
    quantity, dose = quantities
    doses = read_values(dose, made.evidence[METHOD], METHOD, 1)
    sides = {
        word: {
            "values": [round_to(v) for v in read_values(quantity, made.evidence[arm], arm, 0)],
            **_describe(shown, made, arm),
        }
        for arm, word in SIDES.items()
    }
    return {
        "format": FORMAT,
        "method": claim.name,
        "says": shown.stated.says,
        "why": shown.stated.why,
        "paper": dict(claim.method.tree.get("paper", {})),
        "bed": claim.bed,
        "budget": dict([claim.budget]) if claim.budget else None,
        "seeds": list(claim.seeds),
        "quantity": shown.stated.quantity,
        "dose": {"metric": shown.stated.dose, "values": [round_to(v) for v in doses]},
        **sides,
        "changes": find_differences(claim, BASELINE),
        "hashes": {key: hashes[key] for key in ("recipes", "modules", "shared", "core")},
        "versions": dict(made.versions),
    }


def _describe(shown: Demonstration, made: Made, arm: str) -> dict[str, Any]:
    """Return a side's curves of the quantity and, if it has one, the dose, and what it cost."""
    runs = made.evidence[arm]
    names = [*Metric(shown.stated.quantity).names, *Metric(shown.stated.dose).names]
    return {
        "curves": {
            name: [list_points(run, name) for run in runs]
            for name in dict.fromkeys(names)
            if any(name in run.columns for run in runs)
        },
        "cpu_s": [round_to(run.cpu, 3) for run in runs],
    }


def find_stale(shown: Demonstration, result: Mapping[str, Any]) -> str:
    """Return what has changed since a demonstration was made: its sides or the method's own modules; "" if nothing."""
    now, then = compute_hashes(shown.claim), result["hashes"]
    for name in sorted({*now["recipes"], *then["recipes"]}):
        if now["recipes"].get(name) != then["recipes"].get(name):
            return f"recipe {name!r} has changed"
    stated = {**result, "dose": result["dose"]["metric"]}
    for key in ("quantity", "dose", "says", "why"):
        if stated[key] != getattr(shown.stated, key):
            return f"{key} has changed"
    return find_changed(then["modules"], {**now["modules"], **now["shared"]})


def write(result: Mapping[str, Any], at: Path) -> Path:
    """Write `at`/demonstrations/<family>/<method>.json and its picture, where that of a claim would be, and return the
    path of the first."""
    from shuhari.lab.plot import plot_bands

    path = write_json(result, at / FOLDER / f"{result['method']}.json")
    curves = {
        metric: {word: result[word]["curves"].get(metric, []) for word in SIDES.values()}
        for metric in result["with"]["curves"]
    }
    unit, title = next(iter(result["budget"])), f"{result['method']}: with and without it"
    with translate_errors(f"draw {result['method']}"):
        plot_bands(curves, unit, find_plot(result, at), title)
    return path


def read_result(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """Read the stored result of a demonstration; None if it was not made. Raises RecipeError if it is unreadable."""
    from shuhari.lab.claims.kept_results import find_results, read_json

    def refuse(found: Any) -> str:
        whole = found["format"] == FORMAT and {"dose", *SIDES.values()} <= found.keys()
        return "" if whole else f"format {found['format']!r}, not {FORMAT}, or a side is missing"

    return read_json((at or find_results(FOLDER)) / f"{name}.json", "the result of a demonstration", refuse)
