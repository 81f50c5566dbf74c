"""Makes the card of a test bed: runs of its baseline, of the same with other random draws, and of a positive control,
each over many seeds (see `cards`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shuhari.config import library
from shuhari.config.overlay import RecipeError, read_budgets
from shuhari.config.recipe import Recipe, load
from shuhari.config.settings import look_up
from shuhari.lab.claims.cards import FORMAT, REDRAW
from shuhari.lab.claims.checks import BASELINE
from shuhari.lab.claims.claim import WARM, Claim, part_stages
from shuhari.lab.claims.pool import Progress, drive
from shuhari.lab.claims.quantities import Evidence
from shuhari.lab.claims.result import compute_hashes, list_points, round_to
from shuhari.lab.claims.runs import Job, plan_runs, read, with_seed
from shuhari.store.files import count_cores, replace_file, translate_errors

FIRST, SEEDS = 2000, 24  # apart from the seeds of claims
AWAY = 1_000_000  # added to a run's seed for its redraw
SEEN = ("rollout/length", "rollout/alike", "rollout/truncated", "reward/mean", "entropy")  # kept besides evaluation


def plan_card(bed: str, seeds: int = SEEDS) -> Claim:
    """Return the runs of a card as a claim without checks. `bed`: its recipe. Raises RecipeError if the last stage has
    several budgets, or none."""
    family, _, name = bed.partition("/")
    where, _, variant = name.rpartition("/")
    control = f"{family}/{where}/{library.CONTROL}/{variant}"
    arms = {BASELINE: load(bed)} | ({library.CONTROL: load(control)} if control in library.list_names() else {})
    return claim_of(bed, arms, seeds)


def claim_of(bed: str, arms: Mapping[str, Recipe], seeds: int) -> Claim:
    """Return a claim without checks. `arms`: name -> recipe; they share every stage except the last."""
    recipe = arms[BASELINE]
    *before, last = recipe.stages
    spend = read_budgets(last)
    if len(spend) != 1:
        raise RecipeError("", f"{bed} spends {', '.join(spend) or 'nothing'} in its last stage: expected one budget")
    ((unit, amount),) = spend.items()
    warm, rest = part_stages(arms, before[-1]["name"] if before else "")
    numbers = tuple(range(FIRST, FIRST + seeds))
    return Claim(recipe, "", rest, (), numbers, (unit, float(amount)), warm, ())


def plan_jobs(claim: Claim, root: Path) -> list[Job]:
    """Return every run of a card: the runs of its claim, and each run of the baseline again with other random draws."""
    jobs = [job for job in plan_runs(claim, root.resolve()) if job.arm in (*claim.arms, WARM)]
    return jobs + [_redraw(job) for job in jobs if job.arm == BASELINE]


def make_card(
    bed: str,
    claim: Claim,
    root: Path,
    *,
    workers: int = 0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Train what is missing and return the card as plain values. `root`: folder of the runs; `workers`: number of
    processes, 0 for the cores of this machine; `tell`: called with the progress. Raises ClaimError if a run fails."""
    hashes = compute_hashes(claim)
    jobs = plan_jobs(claim, root)
    seen: dict[Path, Evidence] = {}
    warm: dict[Path, float] = {}

    def note_done(job: Job) -> None:
        if job.arm == WARM:
            warm[job.path] = job.cpu
        else:
            seen[job.path] = read(job, claim)

    drive(jobs, workers or count_cores(), tell, note_done)
    assert claim.budget is not None
    unit, amount = claim.budget
    names = [
        name
        for name in (BASELINE, REDRAW, library.CONTROL)
        if any(job.arm == name for job in jobs)
    ]
    return {
        "format": FORMAT,
        "bed": bed.partition("/")[2],
        "budget": {unit: amount},
        "seeds": list(claim.seeds),
        "arms": {
            name: _arm([seen[job.path] for job in jobs if job.arm == name])
            for name in names
        },
        "warm_cpu_s": [round_to(s) for s in warm.values()],
        "hashes": {key: hashes[key] for key in ("recipes", "modules", "shared", "core")},
    }


def save_card(card: Mapping[str, Any], at: Path) -> Path:
    """Write `at`/beds/<bed>/<variant>.json and return its path. Raises StoreError if it cannot be written."""
    path = at / "beds" / f"{card['bed']}.json"
    with translate_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [(json.dumps(card, separators=(",", ":"), allow_nan=False) + "\n").encode()])
    return path


def _redraw(job: Job) -> Job:
    """Return a run of the baseline with the same task and warm start, and another seed."""
    recipe = with_seed(job.recipe, job.seed + AWAY)
    own = {f.name for f in fields(look_up("task", recipe.stages[-1]["task"]["name"], "task.name"))}
    recipe = recipe.with_settings({"task": {"seed": job.seed}}) if "seed" in own else recipe
    return replace(job, arm=REDRAW, recipe=recipe, path=job.path.with_name(f"{job.path.name}-redraw"))


def _arm(runs: Sequence[Evidence]) -> dict[str, Any]:
    metrics = sorted(
        {
            metric
            for run in runs
            for metric in run.columns
        }
    )
    kept = [m for m in metrics if m.startswith("evaluate/") or m.endswith(SEEN)]
    return {
        "curves": {
            m: [list_points(r, m) for r in runs]
            for m in kept
        },
        "cpu_s": [round_to(r.cpu) for r in runs],
    }
