"""The runs of a claim: arms x seeds in single-threaded processes, resumed where they stand, shared between claims.

A run's folder is named by what it does: its recipe, the weights that it starts from, and the source of the library. So
a baseline that two claims share is trained once, a claim that was killed goes on, and a change of code starts anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shuhari.claims.claim import ALIKE, BASELINE, Claim, digest
from shuhari.claims.quantities import Evidence, Quantity
from shuhari.claims.sources import version
from shuhari.overlay import RecipeError
from shuhari.recipe import Recipe
from shuhari.store.directory import Run
from shuhari.store.files import StoreError, locked

CHANCE = "chance"  # the arm of one run: the baseline before anything was learnt


class ClaimError(RuntimeError):
    """A claim that could not be measured: a run failed, or the arms did not spend the same."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run to be made: `after`, the job whose weights it starts from."""

    arm: str
    recipe: Recipe
    path: Path
    after: Job | None = None

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def done(self) -> bool:
        try:
            return (self.path / "run.sqlite").is_file() and Run(self.path).status == "complete"
        except StoreError:  # killed before its first transaction; or broken, which making it will say
            return False


@dataclass(frozen=True)
class Progress:
    """How far a claim's runs are: `share` of all in [0, 1], what runs `now`, what was finished last."""

    share: float
    done: int
    total: int
    now: str = ""
    finished: str = ""


@dataclass(frozen=True, eq=False)
class Made:
    """The runs of a claim: arm -> evidence by seed, arm -> wall seconds, and what an untrained policy scores."""

    evidence: Mapping[str, list[Evidence]]
    wall: Mapping[str, list[float]] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)


def make(
    claim: Claim,
    quantities: Sequence[Quantity],
    root: Path,
    *,
    workers: int = 0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Made:
    """Make what is missing of a claim's runs under `root` and read them all. workers: processes (0: one a core). Raises
    ClaimError where a run fails, when the others are done, and where the arms differ in what they spent."""
    if not any(q.trains for q in quantities):
        return Made({})
    alone = any(q.alone for q in quantities)
    jobs = planned(claim, root, alone)
    _drive(jobs, 1 if alone else workers or os.cpu_count() or 1, tell)
    arms = {name: [j for j in jobs if j.arm == name] for name in claim.arms}
    evidence = {name: [read(job, claim) for job in found] for name, found in arms.items()}
    _check_spent(claim, evidence)
    wall = {name: [float((Run(j.path).summary or {})["wall_s"]) for j in found] for name, found in arms.items()}
    chance = next((_before(j) for j in jobs if j.arm == CHANCE), {})
    return Made(evidence, wall, chance)


def planned(claim: Claim, root: Path, alone: bool = False) -> list[Job]:
    """Every run of a claim, warm starts first, seed by seed so that a part of the work has whole pairs."""
    core = version()
    warm, jobs = {}, []
    for seed in claim.seeds:
        if claim.warm is not None:
            recipe = _seeded(claim.warm, seed)
            warm[seed] = Job("warm start", recipe, root / "warm" / f"{digest(recipe)}-{core}-s{seed}")
    if claim.warm is not None and not claim.smoke:
        last = list(claim.arms[BASELINE].tree.get("stage", ()))[-1:]
        small = claim.arms[BASELINE].changed({"stage": {last[0]: {"steps": 1}}} if last else {"steps": 1})
        jobs.append(_job(CHANCE, small, claim.seeds[0], None, root, core, alone))
    for seed in claim.seeds:
        jobs += [_job(name, arm, seed, warm.get(seed), root, core, alone) for name, arm in claim.arms.items()]
    return [*warm.values(), *jobs]


def _job(arm: str, recipe: Recipe, seed: int, after: Job | None, root: Path, core: str, alone: bool) -> Job:
    seeded = _seeded(recipe, seed)
    told = (digest(seeded), core, after.path.name if after else "", arm if alone else "")
    name = hashlib.blake2b("\n".join(told).encode(), digest_size=8).hexdigest()
    return Job(arm, seeded, root / recipe.name.replace("/", "-") / f"{name}-s{seed}", after)


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    tree = {k: v for k, v in recipe.tree.items() if k != "claim"}  # what is claimed changes nothing that is run
    return Recipe(recipe.name, tree).changed({"seed": seed, "threads": 1})


# ------------------------------------------------------------------------------------------------ driving


def _drive(jobs: Sequence[Job], workers: int, tell: Callable[[Progress], None]) -> None:
    left = [j for j in jobs if not j.done]
    total, failed = len(jobs), dict[Job, str]()
    tell(Progress((total - len(left)) / total, total - len(left), total))
    if not left:
        return
    with ProcessPoolExecutor(min(workers, len(left)), mp_context=get_context("spawn")) as pool:
        flying: dict[Future[str], Job] = {}
        try:
            while left or flying:
                lost = [j for j in left if j.after in failed]
                failed |= dict.fromkeys(lost, "its warm start failed")
                left = [j for j in left if j not in lost]
                for job in _ready(left, flying):
                    if len(flying) < 2 * workers:  # so that no worker waits, and a stop leaves little behind
                        left.remove(job)
                        start = str(job.after.path) if job.after else ""
                        flying[pool.submit(work, job.recipe, job.path, start)] = job
                ended, _ = wait(flying, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in ended:
                    job = flying.pop(future)
                    if error := future.result():
                        failed[job] = error
                    tell(_progress(jobs, left, flying, f"{job.arm} seed {job.seed}{': failed' if error else ''}"))
                if not ended:
                    tell(_progress(jobs, left, flying))
        except BaseException:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()  # a run that is killed goes on from its last checkpoint
            raise
    if failed:
        told = "\n".join(f"  {j.arm} seed {j.seed} ({j.path}): {error}" for j, error in failed.items())
        raise ClaimError(f"{len(failed)} of {total} runs failed:\n{told}")


def _ready(left: Sequence[Job], flying: Mapping[Any, Job]) -> list[Job]:
    """What can be started: its warm start is there, and no other job makes the same run."""
    taken, out = {job.path for job in flying.values()}, []
    for job in left:
        if (job.after is None or job.after.done) and job.path not in taken:
            taken.add(job.path)
            out.append(job)
    return out


def _progress(jobs: Sequence[Job], left: Sequence[Job], flying: Mapping[Any, Job], finished: str = "") -> Progress:
    done = len(jobs) - len(left) - len(flying)
    running = [(j, _share(j)) for j in flying.values() if locked(j.path)]
    share = (done + sum(s for _, s in running)) / len(jobs)
    return Progress(share, done, len(jobs), "; ".join(f"{j.arm} s{j.seed} {s:.0%}" for j, s in running), finished)


def _share(job: Job) -> float:
    """How much of a run is done, by its steps or by what its last stage has spent."""
    try:
        run = Run(job.path)
        columns = run.metrics(after=run.step - 1)
    except StoreError:  # it is just being made
        return 0.0
    unit, amount = next((b, float(v)) for stage in job.recipe.stages[-1:] for b, v in _budgets(stage).items())
    whole = job.recipe.total or amount
    spent = [
        v for k, values in columns.items() if k == f"spent/{'steps' if job.recipe.total else unit}" for v in values
    ]
    return min(1.0, float(spent[-1] or 0) / whole) if spent else 0.0


def _budgets(stage: Mapping[str, Any]) -> dict[str, Any]:
    from shuhari.overlay import BUDGETS

    return {b: stage[b] for b in BUDGETS if b in stage}


def work(recipe: Recipe, path: Path, start: str) -> str:
    """In a worker: make one run, or finish it. What went wrong, "" where nothing did."""
    from shuhari.api import train

    while locked(path):  # another claim makes the same run
        time.sleep(1.0)
    try:
        train(recipe, path, init=start)
    except Exception as error:  # whatever it is: the others go on, and all are told of together
        return f"{type(error).__name__}: {error}"
    if path.parent.name != "warm":  # of all others the curves are what a claim reads
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return ""


# ------------------------------------------------------------------------------------------------ reading


def read(job: Job, claim: Claim) -> Evidence:
    """The evidence of a complete run."""
    columns = Run(job.path).metrics()
    unit, amount = claim.budget or ("steps", float(len(columns["step"])))
    return Evidence(job.seed, columns, spent(columns, unit), _before(job), amount, job.path)


def spent(columns: Mapping[str, Sequence[Any]], unit: str) -> list[float]:
    """[steps] what a run had spent of a unit, over all tags but evaluation."""
    names = [
        n for n in columns if n.startswith("spent/") and n.split("/")[-1] == unit and "evaluate" not in n.split("/")
    ]
    return [sum(float(columns[n][i] or 0) for n in names) for i in range(len(columns["step"]))]


def _before(job: Job) -> Mapping[str, float]:
    return dict((Run(job.path).summary or {}).get("before") or {})


def _check_spent(claim: Claim, evidence: Mapping[str, Sequence[Evidence]]) -> None:
    if claim.budget is None:
        raise RecipeError("claim.budget", "missing: what every arm may spend, such as {tokens = 400_000}")
    unit, amount = claim.budget
    for arm, runs in evidence.items():
        if "study" in claim.arms[arm].tree:  # it spends the budget on each of its runs
            continue
        for run in runs:
            if not claim.smoke and not amount <= run.spent[-1] <= amount * (1 + ALIKE):
                raise ClaimError(
                    f"arm {arm!r}, seed {run.seed}, spent {run.spent[-1]:,.0f} {unit}: expected {amount:,.0f}, and at "
                    f"most {ALIKE:.0%} more: make its last step shorter, or the budget larger"
                )
