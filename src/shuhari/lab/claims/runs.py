"""The runs of a claim: arms x seeds in single-threaded processes, resumed if interrupted, shared between claims.

A run's folder is named by what it does: its recipe, the weights that it starts from, and the source and the packages
that it runs on. So a baseline that two claims share is trained once, a claim that was killed goes on, and a change of
code starts anew. A run whose numbers end in NaN is one of the evidence, without a value.
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
from shuhari.lab.claims.arms import METHOD
from shuhari.lab.claims.checks import BASELINE
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

CHANCE = "chance"  # the arm of one job: how the baseline scores before anything was learnt
SCORES = "scores.json"  # in the folder of CHANCE: what was measured
CPU = "cpu.json"  # in the folder of a run: seconds of processor time, one number each time that it was gone on with
DIVERGED = "diverged.txt"  # in the folder of a run whose numbers ended in NaN, or whose filters kept nothing: why
SHARED = 200  # claims that are named as those that a run was made for
VALUELESS = (FloatingPointError, StalledError)  # such an end is what the run has to say, and no mistake
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "transformers", "tokenizers", "gymnasium", "python", "machine",
            "processor")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Job:
    """One training run: `own`, digests of the modules beside the core that it uses; `after`, the job whose weights
    it starts from."""

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
        except StoreError:  # killed before its first transaction; or broken, which making it will say
            return False

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).is_file()

    def estimate_share(self) -> float | None:
        """How much of it is done, by its steps or by what it has spent; None where it has not begun."""
        if not is_locked(self.path):
            return None
        try:
            run = Run(self.path)
            columns = run.metrics(after=run.step - 1)
        except StoreError:  # it is just being made
            return 0.0
        steps = self.recipe.total
        unit = "steps" if steps else next(iter(read_budgets(self.recipe.stages[-1])))
        whole = steps or sum(read_budgets(stage).get(unit, 0) for stage in self.recipe.stages) or 1
        return min(1.0, find_spent(columns, unit)[-1] / whole) if columns["step"] else 0.0

    def make(self) -> str:
        """In a worker: make the run, or finish it. Returns an error message, "" where there is none."""
        from shuhari.loop.roles import load_initial
        from shuhari.loop.study import train

        origin, began = str(self.after.path) if self.after else "", _read_processor_time()
        try:
            while not self.done:
                if is_changed() or find_own(self.recipe) != self.own:
                    return "its source changed while the claim ran: give the command again"
                try:
                    if self.arm == CHANCE:
                        _score_untrained(self)
                    else:
                        weights = load_initial(origin)
                        for _ in train(self.recipe, self.path, init=weights, origin=origin, rehearsal=False):
                            pass
                except LockedError:  # another claim makes the same run
                    time.sleep(1.0)
        except Exception as error:  # whatever it is: the others go on, and all are reported together
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
            _note_time(self.path, _read_processor_time() - began)
        if self.arm != WARM:  # of all others the curves are what a claim reads
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        (self.path / "error.txt").unlink(missing_ok=True)
        return ""

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it took, NaN where that is not known; of a run that was killed, since then."""
        try:
            return float(sum(json.loads((self.path / CPU).read_text())))
        except (OSError, ValueError):
            return math.nan


@dataclass(frozen=True, eq=False)
class Made:
    """The runs of a claim: arm -> evidence by seed, what an untrained policy scores, the packages that they ran on, and
    folder -> seconds of processor time of each warm start."""

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
    """Make the missing runs of a claim under `root` and read them all. workers: processes (0: one a core); alone:
    whether they have the machine for themselves, by default where a quantity needs it. Raises
    ClaimError where a run fails, when the others are done, or those begun where two fail alike; and, at the first run
    that shows it, where an arm does not spend its budget, or RecipeError where it lacks what a check is about."""
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

    def look(job: Job) -> None:
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
    drive(jobs, team, tell, look)
    found = {
        name: [seen[name, seed] for seed in claim.seeds]
        for name in claim.arms
    }
    return Made(found, chance, _read_versions(jobs), warm)


def plan_runs(claim: Claim, root: Path, alone: bool = False) -> list[Job]:
    """Every run of a claim, warm starts first, seed by seed so that a part of the work has whole pairs."""
    core = digest_setup()
    made_of = {id(recipe): find_own(recipe) for recipe in claim.recipes.values()}

    def job(arm: str, recipe: Recipe, seed: int, after: Job | None = None) -> Job:
        run, parts = with_seed(recipe, seed), made_of[id(recipe)]
        name = make_name(compute_digest(run), core, after.path.name if after else "", arm if alone else "", *parts)
        return Job(arm, run, root / {WARM: "warm", CHANCE: "chance"}.get(arm, "") / f"{name}-s{seed}", parts, after)

    warm: dict[Path, Job] = {}  # what several arms start from is one job
    jobs: list[Job] = []
    if claim.warm and not claim.smoke:
        jobs.append(job(CHANCE, claim.arms.get(BASELINE, claim.own), claim.seeds[0]))
    for seed in claim.seeds:
        for name, arm in claim.arms.items():
            made = job(WARM, claim.warm[name], seed) if name in claim.warm else None
            jobs.append(job(name, arm, seed, made and warm.setdefault(made.path, made)))
    return [*warm.values(), *jobs]


def _read_versions(jobs: Sequence[Job]) -> dict[str, str]:
    """What the last of the runs was made with, of those that ended a step."""
    there = next((job.path for job in reversed(jobs) if (job.path / FILE).is_file()), None)
    return dict(Run(there).get("made_with", {})) if there else {}


def digest_setup() -> str:
    """A digest of what all runs here are made with: the core's source, packages, and the kind of processor."""
    found = versions()
    return make_name(digest_core(), *(f"{n} {found.get(n)}" for n in PACKAGES))


def make_name(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one run, without settings that do not affect it."""
    tree = {k: v for k, v in recipe.tree.items() if k not in ("claim", "paper", "summary")}
    return Recipe("claim", tree).with_settings({"seed": seed, "threads": 1})


def find_own(recipe: Recipe) -> tuple[str, ...]:
    return tuple(" ".join(module) for module in digest_modules([recipe]).items())


def _read_processor_time() -> float:
    """Of this process and of those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _note_time(path: Path, seconds: float) -> None:
    """Add a run's processor time to what is noted in its folder."""
    file = path / CPU
    with suppress(OSError, ValueError):  # a full disk: then it is not known
        before = json.loads(file.read_text()) if file.is_file() else []
        if path.is_dir():
            replace_file(file, [json.dumps([*before, round(seconds, 3)]).encode()])


def _note_made(job: Job, claim: Claim) -> None:
    """Write down in a run's folder for which claim it was made, and as which arm, beside others that share it."""
    entry = {"method": claim.name, "arm": job.arm, "seed": job.seed, "bed": claim.bed}
    with suppress(OSError):  # a full disk: then it is not known
        before = read_made(job.path)
        if entry not in before and len(before) < SHARED and job.path.is_dir():
            replace_file(job.path / MADE, [json.dumps([*before, entry]).encode()])


def _score_untrained(job: Job) -> None:
    """The score of an untrained policy, of a study that of one of its runs; it need not learn, which where groups
    without contrast are sampled again it could not."""
    from shuhari.loop.run import open_run

    alone = {key: table for key, table in job.recipe.tree.items() if key != "study"}
    with open_run(replace(job.recipe, tree=alone)) as run:
        run.enter_stage()
        scores = {name: v for name, v in run.before.items() if math.isfinite(v)}
    job.path.mkdir(parents=True, exist_ok=True)
    replace_file(job.path / SCORES, [json.dumps(scores).encode()])


# ------------------------------------------------------------------------------------------------ reading


def read(job: Job, claim: Claim) -> Evidence:
    """The evidence of a run that is done."""
    if not (job.path / FILE).is_file():  # it ended in its first step
        return Evidence(job.seed, path=job.path, diverged=job.diverged, cpu=job.cpu)
    run = Run(job.path)
    found = make_evidence(job, claim, run.metrics(), dict((run.summary or {}).get("before") or {}))
    return found if math.isnan(job.cpu) else replace(found, cpu=job.cpu)


def make_evidence(
    job: Job, claim: Claim, columns: Mapping[str, Sequence[Any]], before: Mapping[str, float]
) -> Evidence:
    """The evidence of a run from its metrics so far and its scores when its last stage began."""
    assert claim.budget is not None  # of a claim that trains
    unit, amount = claim.budget
    used = find_spent(columns, unit)
    if "study" in job.recipe.tree:
        amount = used[-1]
    wall = float(columns["wall"][-1]) if used else 0.0  # of one thread about what it computed
    return Evidence(
        job.seed, columns, used, before, amount, job.path, job.diverged, _find_beginning(columns, used), wall
    )


def _find_beginning(columns: Mapping[str, Sequence[Any]], used: Sequence[float]) -> float:
    """The spending when the last stage began, before whose first step a run is measured."""
    first = columns["stage"].index(columns["stage"][-1]) if used else 0
    return used[first - 1] if first else 0.0


def find_spent(columns: Mapping[str, Sequence[Any]], unit: str) -> list[float]:
    """[steps] the amount of a unit that a run had spent, over all tags but evaluation."""
    names = [n for n in columns if n.startswith("spent/") and counts(n, unit)]
    return [
        sum(float(columns[n][i] or 0) for n in names)
        for i in range(len(columns["step"]))
    ]


def _check_spent(claim: Claim, arm: str, run: Evidence) -> None:
    assert claim.budget is not None
    unit, amount = claim.budget
    if claim.smoke or run.diverged or "study" in claim.arms[arm].tree:  # which spends the budget on each of its runs
        return
    if not amount <= run.spent[-1] <= amount * (1 + ALIKE):
        raise ClaimError(
            f"arm {arm!r}, seed {run.seed}, spent {run.spent[-1]:,.0f} {unit}: expected {amount:,.0f}, and at most "
            f"{ALIKE:.0%} more: make its last step shorter, or the budget larger"
        )
