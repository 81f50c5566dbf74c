"""Trials of a sweep in a file, a line of JSON each, and as optuna has them.

Optuna's storage is not used: a study is made anew for each trial from the lines so far, with a sampler seeded by the
sweep's seed and the trial's number. So what a trial proposes depends on these alone, and a sweep that was killed goes
on as if it had not been."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shuhari.data import EMPTY
from shuhari.lab.sweeps.space import Choice, Range, Space
from shuhari.store.files import StoreError

DONE, PRUNED, FAILED = "done", "pruned", "failed"


@dataclass(frozen=True)
class Trial:
    """A trial that has ended. `settings`: what was tried; `values`: of each objective, empty if it was pruned or has
    failed; `path`: (step, value) as the first seed reported them; `notes`: of optuna, as JSON; `why`: it failed."""

    number: int
    state: str
    settings: Mapping[str, Any]
    values: tuple[float, ...] = ()
    path: tuple[tuple[int, float], ...] = ()
    notes: Mapping[str, Any] = field(default=EMPTY)
    why: str = ""


def read_trials(file: Path) -> list[Trial]:
    """Return the trials in a file, in order; none if there is no file. A last line that was cut is left out. Raises
    StoreError for one that is damaged elsewhere."""
    if not file.is_file():
        return []
    out: list[Trial] = []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, line in enumerate(lines):
        if not line.endswith("\n"):
            break  # it was being written
        try:
            row = json.loads(line)
            path = tuple((int(step), float(value)) for step, value in row["path"])
            trial = Trial(**{**row, "values": tuple(row["values"]), "path": path})
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{file} line {i + 1}: {error}") from error
        if trial.number != i:
            raise StoreError(f"{file} line {i + 1}: trial {trial.number}, expected {i}")
        out.append(trial)
    return out


def add_trial(file: Path, trial: Trial) -> None:
    """Append a trial, on the disk when this returns."""
    whole = file.read_bytes() if file.is_file() else b""
    with file.open("r+b" if whole else "wb") as out:
        out.seek(whole.rfind(b"\n") + 1)  # over a line that was cut
        out.truncate()
        out.write(json.dumps(asdict(trial), allow_nan=False).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def make_study(
    done: Sequence[Trial], space: Space, *, seed: int, directions: Sequence[str], sampler: str, hyperband: bool
) -> Any:
    """Return optuna's study of the trials so far, whose next proposal is that of trial `len(done)`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start = seed * 1_000_003 + len(done)
    if sampler == "random":
        chosen: Any = optuna.samplers.RandomSampler(seed=start)
    else:
        chosen = optuna.samplers.TPESampler(seed=start, multivariate=len(space) > 1)
    longest = max((trial.path[-1][0] for trial in done if trial.state == DONE and trial.path), default=1)
    pruner = optuna.pruners.HyperbandPruner(1, max(longest, 2), 3) if hyperband else optuna.pruners.NopPruner()
    goals: Any = list(directions)
    study = optuna.create_study(directions=goals, sampler=chosen, pruner=pruner, study_name="sweep")
    laws = {key: make_law(law) for key, law in space.items()}
    for trial in done:
        study.add_trial(_to_optuna(trial, laws))
    return study


def propose(study: Any, space: Space) -> tuple[Any, dict[str, Any]]:
    """Return optuna's next trial, and the settings that it proposes."""
    trial = study.ask()
    found: dict[str, Any] = {}
    for key, law in space.items():
        if isinstance(law, Choice):
            found[key] = law.values[trial.suggest_categorical(key, list(range(len(law.values))))]
        elif law.whole:
            found[key] = trial.suggest_int(key, int(law.low), int(law.high), log=law.log)
        else:
            found[key] = trial.suggest_float(key, law.low, law.high, log=law.log)
    return trial, found


def make_law(law: Range | Choice) -> Any:
    """Return optuna's distribution; of a choice, of the places of its values, which may be tables."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(law, Choice):
        return CategoricalDistribution(list(range(len(law.values))))
    if law.whole:
        return IntDistribution(int(law.low), int(law.high), log=law.log)
    return FloatDistribution(law.low, law.high, log=law.log)


def find_state(state: str) -> Any:
    """Return optuna's word for how a trial ended."""
    from optuna.trial import TrialState

    return {DONE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}[state]


def _to_optuna(trial: Trial, laws: Mapping[str, Any]) -> Any:
    from optuna.trial import create_trial

    asked = dict(trial.notes["asked"])
    values: dict[str, Any] = {"values": list(trial.values)} if trial.state == DONE else {}
    values |= {"params": asked, "distributions": {key: laws[key] for key in asked}}
    return create_trial(state=find_state(trial.state), intermediate_values=dict(trial.path),
                        system_attrs=dict(trial.notes["system"]), **values)  # fmt: skip
