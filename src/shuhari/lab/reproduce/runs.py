"""The runs of published protocols: one process a core, resumed if interrupted, and what they measured.

`OUT/reproduce/<name>.json`: `format` 1, `name`, `recipe`, `settings`, `env`, `metric`, `protocol`; `runs`, by seed:
`seed`, `value` of the metric (None if the run diverged), `curve` [[environment steps, mean return of the last 100
training episodes], ...], `wall_s`, `cpu_s`, `core` (digest of the library's core), `does` (digest of the
recipe), `versions`, those of installed simulators too, `data`, the digest of recorded data, and `diverged`, why there
is no value. A seed that is measured again replaces the one before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeGuard

from shuhari.config.recipe import Recipe
from shuhari.lab.claims.digest import hash_description
from shuhari.lab.claims.pool import Progress, drive
from shuhari.lab.claims.runs import (
    VALUELESS,
    estimate_share,
    find_spent,
    note_time,
    read_processor_time,
    read_time,
)  # fmt: skip
from shuhari.lab.claims.sources import digest_core
from shuhari.lab.reproduce.published import Target
from shuhari.lab.reproduce.recorded import digest_data, find_data, load_here
from shuhari.loop.machine import versions
from shuhari.store.directory import Run
from shuhari.store.files import StoreError, count_cores, replace_file
from shuhari.store.schema import FILE

FORMAT = 1
FOLDER = "reproduce"
CURVE, POINTS = "rollout/return", 200
NOTED = 30.0  # seconds of processor time between two notes of it
ENDED = "reproduced.json"  # in the folder of a run: what was measured
DAMAGED = "move it away; a result is written anew from the runs that are complete"
SIMULATORS = ("mujoco", "box2d", "minatar", "ale-py")


@dataclass(frozen=True, eq=False)
class Seed:
    """One run of a target, in a folder of its own."""

    target: Target
    seed: int
    path: Path
    after: None = None

    @property
    def name(self) -> str:
        return f"{self.target.name} seed {self.seed}"

    @property
    def done(self) -> bool:
        return (self.path / ENDED).is_file()

    def estimate_share(self) -> float | None:
        """How much of it is done, in [0, 1]; None if it has not begun."""
        return estimate_share(self.target.load(self.seed), self.path)

    def make(self) -> str:
        """Train it, or finish it. Returns an error message, "" if there is none. A run whose numbers became NaN is
        measured without a value."""
        from shuhari.loop.study import train

        noted, value, why, data = read_processor_time(), None, "", {}
        try:
            if path := find_data(self.target):
                data = {"data": digest_data(path)}
            for _ in train(load_here(self.target, self.seed), self.path, rehearsal=False):
                if (spent := read_processor_time() - noted) > NOTED:  # so that little is lost if it is killed
                    note_time(self.path, spent)
                    noted += spent
            value = read_value(Run(self.path), self.target.metric)
        except VALUELESS as error:
            why = str(error)
        except Exception as error:  # the other runs go on, and all errors are reported together
            return f"{type(error).__name__}: {error}"
        finally:
            note_time(self.path, read_processor_time() - noted)
        cpu, recipe = read_time(self.path), self.target.load(self.seed)  # as it is wherever the data are
        found = {"seed": self.seed, "value": value, **read_curve(self.path),
                 "cpu_s": None if math.isnan(cpu) else round(cpu, 1),
                 "core": digest_core(), "does": digest_recipe(recipe),
                 "versions": versions() | _list_simulators() | {"threads": recipe.threads},
                 **data, **({"diverged": why} if why else {})}  # fmt: skip
        replace_file(self.path / ENDED, [json.dumps(found).encode()])
        return ""


def digest_recipe(recipe: Recipe) -> str:
    """A digest of the settings in a recipe but the seed, those that it builds on among them."""
    return hash_description({k: v for k, v in recipe.tree.items() if k not in ("seed", "summary", "paper")})


def _list_simulators() -> dict[str, str]:
    found = {}
    for name in SIMULATORS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def read_value(run: Run, metric: str) -> float | None:
    """The last value of the curve `metric`, or that score in the final evaluation (`greedy`); None without one."""
    after = (run.summary or {}).get("after") or {}
    found = [after[metric]] if metric in after else run.metrics().get(metric, [])
    known = [float(x) for x in found if x is not None and math.isfinite(x)]
    return known[-1] if known else None


def read_curve(path: Path) -> dict[str, Any]:
    """`curve`, at most POINTS points of it, and `wall_s`, both from the folder of one run."""
    if not (path / FILE).is_file():
        return {"curve": [], "wall_s": None}
    columns = Run(path).metrics()
    steps = find_spent(columns, "env_steps")
    points = [
        [x, float(f"{y:.6g}")]
        for x, y in zip(steps, columns.get(CURVE, []), strict=False)
        if y is not None
    ]
    thin = max(1, math.ceil(len(points) / POINTS))
    kept = points[::-1][::thin][::-1]  # the last one is always there
    return {"curve": kept, "wall_s": round(float(columns["wall"][-1]), 1) if columns["step"] else None}


def find_folder(runs: Path, name: str, seed: int) -> Path:
    """The folder below `runs` in which one seed of a target is trained."""
    return runs / name / f"seed-{seed}"


def measure(
    targets: Mapping[str, tuple[Target, Sequence[int]]],
    runs: Path,
    out: Path,
    *,
    workers: int = 0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Make the missing runs of targets (name -> target, seeds) below `runs`, and write each result to `out` as soon as
    a seed is done. workers: processes (0: one a core). Raises ClaimError if a run fails, after the others are done."""
    jobs = [
        Seed(target, seed, find_folder(runs, name, seed).resolve())
        for name, (target, seeds) in targets.items()
        for seed in seeds
    ]
    drive(jobs, workers or count_cores(), tell, lambda job: _keep(job, out), patient=True)


def _keep(job: Seed, out: Path) -> None:
    """Write the result of a run that is done beside those of its target's other seeds."""
    found = json.loads((job.path / ENDED).read_text())
    kept = read_result(job.target.name, out) or {"runs": []}
    others = [run for run in kept["runs"] if run["seed"] != job.seed]
    target = job.target
    table = {"format": FORMAT, "name": target.name, "recipe": target.recipe, "settings": dict(target.settings),
             "env": target.env, "metric": target.metric, "protocol": target.protocol,
             "runs": sorted([*others, found], key=lambda run: run["seed"])}  # fmt: skip
    if kept.get("peer"):
        table["peer"] = kept["peer"]
    file = out / FOLDER / f"{target.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, [(json.dumps(table, separators=(",", ":")) + "\n").encode()])


def read_result(name: str, out: Path) -> dict[str, Any] | None:
    """A target's kept result; None if there is none. Raises StoreError if its file is damaged or cannot be read."""
    file = out / FOLDER / f"{name}.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise StoreError(f"{file} is damaged ({error})", DAMAGED) from error
    if not _has_runs(found) or (found.get("peer") and not _has_runs(found["peer"])):
        raise StoreError(f"{file} is no result: expected `runs`, a list of seeds with a value each", DAMAGED)
    return found


def _has_runs(side: Any) -> TypeGuard[dict[str, Any]]:
    """Whether parsed JSON is a result, or a peer in one, as far as it is read."""
    runs = side.get("runs") if isinstance(side, dict) else None
    return isinstance(runs, list) and all(isinstance(run, dict) and {"seed", "value"} <= run.keys() for run in runs)


def list_runs(result: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """One entry for each seed in a result; none without a result."""
    return list(result["runs"]) if result else []


def count_earlier(result: Mapping[str, Any] | None, target: Target) -> int:
    """How many seeds in a result were made with another recipe or core than those of today."""
    there = list_runs(result)
    now = {"core": digest_core(), "does": digest_recipe(target.load(0))} if there else {}
    return len([run for run in there if not _is_of(run, now)])


def _is_of(run: Mapping[str, Any], now: Mapping[str, str]) -> bool:
    """Whether a seed was made with these digests, as far as it has them."""
    return all(run.get(key, value) == value for key, value in now.items())


def list_values(result: Mapping[str, Any] | None) -> list[float]:
    """The values in a result, one for each seed that has one."""
    return [run["value"] for run in list_runs(result) if run["value"] is not None]
