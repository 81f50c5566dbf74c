"""The runs of a claim: arms x seeds in single-threaded processes, resumed if interrupted, shared between claims.

A run's folder is named by a digest of its recipe, its initial weights, and the source and packages that it runs on. So
a baseline shared by two claims is trained once, a killed claim resumes, and a change of code starts anew. A run that
ends in NaN is part of the evidence, without a value.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shuhari.config.overlay import read_budgets
from shuhari.config.recipe import Recipe
from shuhari.data import StalledError
from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.claim import ALIKE, WARM, Claim
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.pool import ClaimError, Progress, Workers, drive, is_changed
from shuhari.lab.claims.quantities import Evidence, Quantity, read_value
from shuhari.lab.claims.sources import digest_core, digest_modules
from shuhari.loop.machine import versions
from shuhari.loop.progress import counts
from shuhari.ports.hooks import ability
from shuhari.store.directory import Run
from shuhari.store.files import LockedError, StoreError, count_cores, is_locked, replace_file
from shuhari.store.layout import MADE
from shuhari.store.listing import read_made
from shuhari.store.schema import FILE

CHANCE = "chance"  # the arm of one job: the baseline's score before training
SCORES = "scores.json"  # in the folder of CHANCE: the scores
CPU = "cpu.json"  # in the folder of a run: CPU seconds, one number for each time it ran
DIVERGED = "diverged.txt"  # in the folder of a run that ended in NaN, or whose filters kept nothing: the message
SHARED = 200  # most claims to record for one run
VALUELESS = (FloatingPointError, StalledError)  # such an end is a finding about the run, not a failure
CLOCK = ("wall", "seconds", "speed/", "engine/seconds")  # metrics that differ from run to run
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "transformers", "tokenizers", "gymnasium", "python", "machine",
            "processor")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Job:
    """A training run. `own`: digests of the modules outside the core that it uses; `after`: the job whose weights it
    starts from."""

    arm: str
    recipe: Recipe
    path: Path
    own: tuple[str, ...] = ()
    after: Job | None = None

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def done(self) -> bool:
        if self.arm == CHANCE:
            return (self.path / SCORES).is_file()
        try:
            return self.diverged or ((self.path / FILE).is_file() and Run(self.path).status == "complete")
        except StoreError:  # killed before its first transaction; or broken, which `make` will report
            return False

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).is_file()

    def estimate_share(self) -> float | None:
        """Return the share that is done, by steps or by budget spent; None if it is not running."""
        return estimate_share(self.recipe, self.path)

    def make(self) -> str:
        """In a worker: make the run, or finish it. Returns an error message, or ""."""
        from shuhari.loop.roles import load_initial
        from shuhari.loop.study import train

        origin, began = str(self.after.path) if self.after else "", read_processor_time()
        try:
            while not self.done:
                if is_changed() or find_own(self.recipe) != self.own:
                    return "its source changed while the claim ran: give the command again"
                try:
                    if self.arm == CHANCE:
                        _grade_untrained(self)
                    else:
                        weights = load_initial(origin)
                        for _ in train(self.recipe, self.path, init=weights, origin=origin, rehearsal=False):
                            pass
                except LockedError:  # another claim makes the same run
                    time.sleep(1.0)
        except Exception as error:  # any error: the others continue, and all are reported together
            if self.done:  # another claim has just ended the same run
                return ""
            what = f"{type(error).__name__}: {error}"
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                if not isinstance(error, VALUELESS) or self.arm == WARM:
                    (self.path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
                    return f"{what} (traceback in error.txt there)"
                (self.path / DIVERGED).write_text(str(error), encoding="utf-8")
            except OSError as refused:  # a full disk
                return f"{what} (which could not be written down: {refused.strerror})"
        finally:
            note_time(self.path, read_processor_time() - began)
        if self.arm != WARM:  # claims read only the curves of all others
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        (self.path / "error.txt").unlink(missing_ok=True)
        return ""

    @property
    def cpu(self) -> float:
        """CPU seconds that the run took, NaN if unknown; if it was killed, only those since it resumed."""
        return read_time(self.path)


@dataclass(frozen=True, eq=False)
class Made:
    """The runs of a claim: `evidence`: arm -> runs by seed; `chance`: the scores of an untrained policy; `versions`:
    the packages that they ran on; `warm`: folder -> CPU seconds of each warm start."""

    evidence: Mapping[str, list[Evidence]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    warm: Mapping[str, float] = field(default_factory=dict)


def make(
    claim: Claim,
    quantities: Sequence[Quantity],
    root: Path,
    *,
    workers: int | Workers = 0,
    tell: Callable[[Progress], None] = lambda _: None,
    alone: bool | None = None,
) -> Made:
    """Make the missing runs of a claim under `root` and read all of them. workers: processes (0: one a core); alone:
    whether the runs have the machine for themselves (default: if a quantity needs it). Raises ClaimError if a run
    fails, after the others or, once two fail with the same error, after those already begun. Raises at the first run
    that shows it ClaimError if an arm does not spend its budget, RecipeError if it lacks what a check reads."""
    for i, quantity in enumerate(quantities):
        if not ability(quantity, "trains"):
            read_value(quantity, Evidence(claim.seeds[0]), METHOD, i)
    if not any(ability(q, "trains") for q in quantities):
        return Made()
    alone = any(ability(q, "alone") for q in quantities) if alone is None else alone
    jobs = plan_runs(claim, root.resolve(), alone)
    seen: dict[tuple[str, int], Evidence] = {}
    chance: dict[str, float] = {}
    warm: dict[str, float] = {}

    def note_done(job: Job) -> None:
        _note_made(job, claim)
        if job.arm == CHANCE:
            chance.update(json.loads((job.path / SCORES).read_text()))
        if job.arm == WARM:
            warm[job.path.name] = job.cpu
        if job.arm in claim.arms:
            run = seen[job.arm, job.seed] = read(job, claim)
            _check_spent(claim, job.arm, run)
            for i, (check, quantity) in enumerate(zip(claim.checks, quantities, strict=True)):
                if ability(quantity, "trains") and job.arm in (check.rule.arm, check.rule.against):
                    read_value(quantity, run, job.arm, i)

    team = workers if isinstance(workers, Workers) else 1 if alone else workers or count_cores()
    drive(jobs, team, tell, note_done)
    found = {
        name: [seen[name, seed] for seed in claim.seeds]
        for name in claim.arms
    }
    return Made(found, chance, _read_versions(jobs), warm)


def plan_runs(claim: Claim, root: Path, alone: bool = False) -> list[Job]:
    """Return every run of a claim: warm starts first, then seed by seed, so that unfinished work has complete pairs."""
    core = digest_setup()
    made_of = {id(recipe): find_own(recipe) for recipe in claim.recipes.values()}

    def job(arm: str, recipe: Recipe, seed: int, after: Job | None = None) -> Job:
        run, parts = with_seed(recipe, seed), made_of[id(recipe)]
        name = make_name(compute_digest(run), core, after.path.name if after else "", arm if alone else "", *parts)
        return Job(arm, run, root / {WARM: "warm", CHANCE: "chance"}.get(arm, "") / f"{name}-s{seed}", parts, after)

    warm: dict[Path, Job] = {}  # a warm start shared by several arms is one job
    jobs: list[Job] = []
    if claim.warm and not claim.smoke:
        jobs.append(job(CHANCE, claim.arms.get(BASELINE, claim.own), claim.seeds[0]))
    for seed in claim.seeds:
        for name, arm in claim.arms.items():
            made = job(WARM, claim.warm[name], seed) if name in claim.warm else None
            jobs.append(job(name, arm, seed, made and warm.setdefault(made.path, made)))
    return [*warm.values(), *jobs]


def _read_versions(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the versions that the last run with at least one step was made with."""
    there = next((job.path for job in reversed(jobs) if (job.path / FILE).is_file()), None)
    return dict(Run(there).get("made_with", {})) if there else {}


def digest_setup() -> str:
    """Compute a digest of what all runs here depend on: the core's source, packages, and the kind of processor."""
    found = versions()
    return make_name(digest_core(), *(f"{n} {found.get(n)}" for n in PACKAGES))


def make_name(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe of one run, without settings that do not affect it."""
    tree = {k: v for k, v in recipe.tree.items() if k not in ("claim", "paper", "summary")}
    return Recipe("claim", tree).with_settings({"seed": seed, "threads": 1})


def find_own(recipe: Recipe) -> tuple[str, ...]:
    return tuple(" ".join(module) for module in digest_modules([recipe]).items())


def read_processor_time() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def estimate_share(recipe: Recipe, path: Path) -> float | None:
    """Return the share of a run that is done, by steps or by budget spent; None if it is not running."""
    if not is_locked(path):
        return None
    try:
        run = Run(path)
        columns = run.metrics(after=run.step - 1)
    except StoreError:  # it is just being created
        return 0.0
    steps = recipe.total
    unit = "steps" if steps else next(iter(read_budgets(recipe.stages[-1])))
    whole = steps or sum(read_budgets(stage).get(unit, 0) for stage in recipe.stages) or 1
    return min(1.0, find_spent(columns, unit)[-1] / whole) if columns["step"] else 0.0


def read_time(path: Path) -> float:
    """Return the CPU seconds that `note_time` has noted for a run, NaN if unknown."""
    try:
        return float(sum(json.loads((path / CPU).read_text())))
    except (OSError, ValueError):
        return math.nan


def note_time(path: Path, seconds: float) -> None:
    """Append a run's CPU seconds to the record in its folder."""
    file = path / CPU
    with suppress(OSError, ValueError):  # a full disk: the time stays unknown
        before = json.loads(file.read_text()) if file.is_file() else []
        if path.is_dir():
            replace_file(file, [json.dumps([*before, round(seconds, 3)]).encode()])


def _note_made(job: Job, claim: Claim) -> None:
    """Record in a run's folder the claim and arm that it was made for, beside others that share it."""
    entry = {"method": claim.name, "arm": job.arm, "seed": job.seed, "bed": claim.bed}
    with suppress(OSError):  # a full disk: the record is left out
        before = read_made(job.path)
        if entry not in before and len(before) < SHARED and job.path.is_dir():
            replace_file(job.path / MADE, [json.dumps([*before, entry]).encode()])


def _grade_untrained(job: Job) -> None:
    """Score an untrained policy; for a study, in one of its runs. No training step is made, because it might fail: an
    untrained policy may give only groups without contrast, which are sampled again without end."""
    from shuhari.loop.run import open_run

    alone = {key: table for key, table in job.recipe.tree.items() if key != "study"}
    with open_run(replace(job.recipe, tree=alone)) as run:
        run.enter_stage()
        scores = {name: v for name, v in run.before.items() if math.isfinite(v)}
    job.path.mkdir(parents=True, exist_ok=True)
    replace_file(job.path / SCORES, [json.dumps(scores).encode()])


# ------------------------------------------------------------------------------------------------ reading


def read(job: Job, claim: Claim) -> Evidence:
    """Read the evidence of a finished run."""
    if not (job.path / FILE).is_file():  # it ended in its first step
        return Evidence(job.seed, path=job.path, diverged=job.diverged, cpu=job.cpu)
    run = Run(job.path)
    found = make_evidence(job, claim, run.metrics(), dict((run.summary or {}).get("before") or {}))
    return found if math.isnan(job.cpu) else replace(found, cpu=job.cpu)


def make_evidence(
    job: Job, claim: Claim, columns: Mapping[str, Sequence[Any]], before: Mapping[str, float]
) -> Evidence:
    """Make the evidence of a run from its metrics so far and its scores when the last stage began."""
    assert claim.budget is not None  # a claim that trains has one
    unit, amount = claim.budget
    used = find_spent(columns, unit)
    if "study" in job.recipe.tree:
        amount = used[-1]
    wall = float(columns["wall"][-1]) if used else 0.0  # one thread: about the time it computed
    return Evidence(
        job.seed, columns, used, before, amount, job.path, job.diverged, _find_beginning(columns, used), wall
    )


def _find_beginning(columns: Mapping[str, Sequence[Any]], used: Sequence[float]) -> float:
    """Return the budget spent when the last stage began, before its first step."""
    first = columns["stage"].index(columns["stage"][-1]) if used else 0
    return used[first - 1] if first else 0.0


def find_spent(columns: Mapping[str, Sequence[Any]], unit: str) -> list[float]:
    """Return [steps] the budget spent in a unit, over all tags except evaluation."""
    names = [n for n in columns if n.startswith("spent/") and counts(n, unit)]
    return [
        sum(float(columns[n][i] or 0) for n in names)
        for i in range(len(columns["step"]))
    ]


def _check_spent(claim: Claim, arm: str, run: Evidence) -> None:
    assert claim.budget is not None
    unit, amount = claim.budget
    if claim.smoke or run.diverged or "study" in claim.arms[arm].tree:  # a study spends the budget on each of its runs
        return
    if not amount <= run.spent[-1] <= amount * (1 + ALIKE):
        raise ClaimError(
            f"arm {arm!r}, seed {run.seed}, spent {run.spent[-1]:,.0f} {unit}: expected {amount:,.0f}, and at most "
            f"{ALIKE:.0%} more: make its last step shorter, or the budget larger"
        )
