"""Runs a sweep: trials on tuning seeds, one at a time, then the best settings beside the recipe's own on test seeds.

The recommendations are those of Eimer et al. (2023, Hyperparameters in Reinforcement Learning and How To Tune Them,
arXiv 2306.01324): tuning and test seeds apart, a principled optimiser, a wide space, the whole budget told."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe
from shuhari.data import Info
from shuhari.kernel.findings import ignore
from shuhari.kernel.pareto import compute_hypervolume, find_front
from shuhari.kernel.stats import difference
from shuhari.lab.sweeps.picture import draw_sweep
from shuhari.lab.sweeps.space import Space
from shuhari.lab.sweeps.trials import (
    DONE,
    FAILED,
    PRUNED,
    Trial,
    add_trial,
    find_state,
    make_study,
    propose,
    read_trials,
)

PLAN, TRIALS, RESULT, PICTURE = "sweep.json", "trials.jsonl", "result.json", "sweep.png"
BAD = 3  # trials that fail before any ends well, after which the sweep is given up
ENOUGH = 8  # trials with values, from which on importances are told


@dataclass(frozen=True)
class Objective:
    """A metric, by its last value in a run; `up`: whether more is better."""

    metric: str
    up: bool = True

    @property
    def direction(self) -> str:
        return "maximize" if self.up else "minimize"


@dataclass(frozen=True)
class Sweep:
    """A sweep as asked for. `seeds`: of each trial, whose mean counts; `tests`: other seeds, for the best settings and
    the recipe's own; `hyperband`: whether trials that fall behind are ended early, by the first seed."""

    recipe: Recipe
    space: Space
    objectives: tuple[Objective, ...]
    trials: int
    seeds: tuple[int, ...] = (0,)
    tests: tuple[int, ...] = ()
    sampler: str = "tpe"
    hyperband: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hyperband and len(self.objectives) > 1:
            names = " and ".join(one.metric for one in self.objectives)
            found = f"it compares by one objective, and there are {len(self.objectives)} ({names})"
            raise RecipeError("--hyperband", f"{found}: give one metric, or no --hyperband")
        if both := set(self.seeds) & set(self.tests):
            raise RecipeError("--test-seeds", f"{min(both)} is a tuning seed too: a score on it would flatter")

    def describe(self) -> dict[str, Any]:
        """Return what two sweeps must share for one to continue the other."""
        from shuhari.lab.claims.digest import compute_digest

        return {"recipe": self.recipe.name, "digest": compute_digest(self.recipe),
                "space": {key: str(law) for key, law in self.space.items()},
                "objectives": [asdict(one) for one in self.objectives], "seeds": list(self.seeds),
                "sampler": self.sampler, "hyperband": self.hyperband, "seed": self.seed}  # fmt: skip


class MetricError(LookupError):
    """Runs of the recipe have no such metric."""


def run_sweep(sweep: Sweep, at: Path, tell: Callable[[str], None] = ignore) -> dict[str, Any]:
    """Run a sweep in the folder `at`, or continue the one that is there, and return its result. Raises RecipeError if
    another sweep is there, or if trials fail from the start."""
    at.mkdir(parents=True, exist_ok=True)
    done = read_trials(at / TRIALS)
    if not done:  # another sweep that ended before its first trial did, such as one of a misspelt metric
        (at / PLAN).unlink(missing_ok=True)
    _check_plan(sweep, at / PLAN)
    for number in range(len(done), sweep.trials):
        try:
            trial = _run_trial(sweep, done, number, at, tell)
        except MetricError as error:  # other trials would have no such metric either
            raise RecipeError("--metric", str(error.args[0])) from error
        add_trial(at / TRIALS, trial)
        done.append(trial)
        tell(describe_trial(trial, sweep))
        if len(done) >= BAD and all(one.state == FAILED for one in done):
            raise RecipeError("", f"the first {len(done)} trials have failed; the last: {trial.why}")
    return _sum_up(sweep, done[: sweep.trials], at, tell)


def _check_plan(sweep: Sweep, file: Path) -> None:
    now = json.loads(json.dumps(sweep.describe()))
    if not file.is_file():
        file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return
    then = json.loads(file.read_text(encoding="utf-8"))
    for key, value in now.items():
        if then.get(key) != value:
            found = f"{file.parent} holds another sweep: its {key} is {then.get(key)!r}, not {value!r}"
            raise RecipeError("--out", f"{found}: give another folder")


def _run_trial(sweep: Sweep, done: Sequence[Trial], number: int, at: Path, tell: Callable[[str], None]) -> Trial:
    directions = [one.direction for one in sweep.objectives]
    study = make_study(done, sweep.space, seed=sweep.seed, directions=directions, sampler=sweep.sampler,
                       hyperband=sweep.hyperband)  # fmt: skip
    asked, settings = propose(study, sweep.space)
    tell(f"trial {number}: " + ", ".join(f"{key} = {show(value)}" for key, value in settings.items()))
    path: list[tuple[int, float]] = []

    def end(state: str, values: tuple[float, ...] = (), why: str = "") -> Trial:
        kept = study.tell(asked, list(values) or None, state=find_state(state))
        system = json.loads(json.dumps(dict(kept.system_attrs)))
        return Trial(number, state, settings, values, tuple(path), {"asked": dict(kept.params), "system": system}, why)

    def falls_behind(step: int, value: float) -> bool:
        if path and step <= path[-1][0]:
            return False  # a resumed run makes the steps after its checkpoint again
        path.append((step, value))
        asked.report(value, step)
        return sweep.hyperband and bool(asked.should_prune())

    scores = []
    for i, seed in enumerate(sweep.seeds):
        folder = at / "trials" / f"{number:04d}" / f"s{seed}"
        try:
            found = train_once(sweep, settings, seed, folder, falls_behind if i == 0 else None)
        except (RecipeError, ValueError, ArithmeticError, RuntimeError) as error:
            return end(FAILED, why=f"{type(error).__name__}: {error}")
        if found is None:
            return end(PRUNED)
        scores.append(found)
    return end(DONE, tuple(np.mean(scores, axis=0).tolist()))


def train_once(
    sweep: Sweep, settings: Mapping[str, Any], seed: int, folder: Path,
    behind: Callable[[int, float], bool] | None = None,
) -> tuple[float, ...] | None:  # fmt: skip
    """Train one run, or continue it, and return the last value of each objective; None if `behind`, called with the
    step and each value of the first objective, has ended it. Raises ValueError if an objective has no finite value, and
    MetricError if there is no such metric."""
    from shuhari.desk.api import read_trained, train
    from shuhari.loop.stopping import Stop
    from shuhari.store.schema import FILE

    first, ended = sweep.objectives[0].metric, False

    def check_report(report: Info) -> None:
        nonlocal ended
        value = report.get(first)
        if behind is not None and isinstance(value, int | float) and math.isfinite(value):
            ended = behind(int(report["step"]), float(value))
            if ended:
                raise Stop("fell behind other trials")

    if (folder / FILE).is_file():  # what a stopped run has reported already
        try:
            for report in read_trained(folder).reports:
                check_report(report)
        except Stop:
            return None
    recipe = sweep.recipe.with_settings({**settings, "seed": seed})
    logger = logging.getLogger("shuhari")
    level = logger.level
    logger.setLevel(logging.ERROR)  # alarms of many trials
    try:
        found = train(recipe, folder, progress=False, observe=check_report)
    finally:
        logger.setLevel(level)
    if ended:
        return None
    return tuple(_read_last(found.metrics, one.metric, folder) for one in sweep.objectives)


def _read_last(columns: Mapping[str, Sequence[Any]], metric: str, folder: Path) -> float:
    from shuhari.data import nearest

    if metric not in columns:
        raise MetricError(f"{folder} has no metric {metric!r}; {nearest(metric, columns)}")
    values = [v for v in columns[metric] if isinstance(v, int | float)]
    if not values or not math.isfinite(values[-1]):
        raise ValueError(f"{folder}: the last {metric} is {values[-1] if values else None}")
    return float(values[-1])


# ------------------------------------------------------------------------------------------------ results


def _sum_up(sweep: Sweep, done: Sequence[Trial], at: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    ended = [trial for trial in done if trial.state == DONE]
    states = [trial.state for trial in done]
    counts = {state: states.count(state) for state in (DONE, PRUNED, FAILED)}
    out: dict[str, Any] = {**sweep.describe(), "trials": [asdict(trial) for trial in done], "counts": counts}
    if not ended:
        raise RecipeError("", f"none of {len(done)} trials has ended: {done[-1].why or 'all were pruned'}")
    signs = np.array([1.0 if one.up else -1.0 for one in sweep.objectives])
    front = find_front(np.array([trial.values for trial in ended]) * signs)
    chosen = [ended[i] for i in front]
    if len(sweep.objectives) > 1:
        values = np.array([trial.values for trial in ended]) * signs
        out["reference"] = (values.min(0) * signs).tolist()
        out["hypervolume"] = compute_hypervolume(values[front], values.min(0))
    out["best"] = [{"number": t.number, "settings": dict(t.settings), "values": list(t.values)} for t in chosen]
    out["importance"] = find_importance(sweep, done)
    if sweep.tests:
        out["test"] = list(_test(sweep, chosen, at, tell))
    (at / RESULT).write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    draw_sweep(out, at / PICTURE)
    return out


def _test(sweep: Sweep, chosen: Sequence[Trial], at: Path, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the scores of the recipe's own settings and of the best ones on the test seeds."""
    own: list[tuple[float, ...]] = []
    for name, settings, tuned in [("own", {}, None), *((f"trial {t.number}", t.settings, t.values) for t in chosen)]:
        scores = []
        for seed in sweep.tests:
            tell(f"test of {name} on seed {seed}")
            found = train_once(sweep, settings, seed, at / "test" / name.replace(" ", "-") / f"s{seed}")
            assert found is not None
            scores.append(found)
        own = own or scores
        row: dict[str, Any] = {"of": name, "seeds": list(sweep.tests), "values": scores,
                               "mean": np.mean(scores, axis=0).tolist()}  # fmt: skip
        if tuned is not None:
            row["overfit"] = [a - b for a, b in zip(tuned, row["mean"], strict=True)]
            row["gain"] = [_compare(a, b) for a, b in zip(np.transpose(own), np.transpose(scores), strict=True)]
        yield row


def _compare(own: Any, tuned: Any) -> list[float | None]:
    """Return the mean difference over seeds, and the ends of its paired interval, None if there are too few or all are
    alike: a few equal differences do not show that there is no spread."""
    gap = difference(own, tuned, paired=True)
    known = math.isfinite(gap.low) and gap.low < gap.high
    return [gap.value, *((gap.low, gap.high) if known else (None, None))]


def find_importance(sweep: Sweep, done: Sequence[Trial]) -> dict[str, float]:
    """Return setting -> its share in the variance of the objective over trials (fANOVA, Hutter et al. 2014); empty for
    a single setting, for fewer than ENOUGH trials with values, and for several objectives."""
    ended = sum(trial.state == DONE for trial in done)
    if len(sweep.space) < 2 or ended < ENOUGH or len(sweep.objectives) > 1:
        return {}
    if len({trial.values for trial in done if trial.state == DONE}) < 2:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    study = make_study(done, sweep.space, seed=sweep.seed, directions=[sweep.objectives[0].direction],
                       sampler=sweep.sampler, hyperband=sweep.hyperband)  # fmt: skip
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=sweep.seed))
    return {key: float(value) for key, value in found.items()}


def describe_trial(trial: Trial, sweep: Sweep) -> str:
    """Return a line on a trial that has ended."""
    if trial.state == DONE:
        pairs = zip(sweep.objectives, trial.values, strict=True)
        return f"trial {trial.number}: " + ", ".join(f"{one.metric} {value:.4g}" for one, value in pairs)
    if trial.state == PRUNED:
        return f"trial {trial.number}: ended early at step {trial.path[-1][0]}, {trial.path[-1][1]:.4g}"
    return f"trial {trial.number} failed: {trial.why}"


def show(value: Any) -> str:
    """Return a setting's value, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
