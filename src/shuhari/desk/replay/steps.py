"""The stored steps of a run, and its state when one began: its stage, and what it had spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config.overlay import REMOVE, RecipeError, read_settings
from shuhari.config.recipe import Recipe
from shuhari.data import Step, nearest
from shuhari.loop.run import Run
from shuhari.ports import is_vector
from shuhari.store import Run as Stored

TEXT = 400  # characters of an episode's text in reports


@dataclass(frozen=True)
class StepState:
    """The state of a run when `step` began: its stage and that stage's `first` step; the ledger then (`spent`), and
    when the stage began (`started`); `seconds` and `stage_seconds`: the time since the start of the run, and of the
    stage."""

    step: int
    stage: str
    first: int
    spent: Mapping[str, float]
    started: Mapping[str, float]
    seconds: float
    stage_seconds: float


def find_state(columns: Mapping[str, Sequence[Any]], step: int) -> StepState:
    """Return the state from the stored metrics of a run (`Run.metrics`). Raises ValueError for a step that it has not
    made."""
    steps = list(columns["step"])
    if step not in steps:
        there = f"it has made steps {steps[0]} to {steps[-1]}" if steps else "it has made none"
        raise ValueError(f"there is no step {step}: {there}")
    at = first = steps.index(step)
    while first and columns["stage"][first - 1] == columns["stage"][at]:
        first -= 1
    ends = [_read_ledger(columns, i - 1) for i in (at, first)]
    walls = [float(columns["wall"][i - 1]) if i else 0.0 for i in (at, first)]
    return StepState(step, columns["stage"][at], steps[first], ends[0], ends[1], *walls)


def set_state(run: Run, state: StepState) -> None:
    """Set a run's step, ledger and schedules to a state; its weights and memory do not change."""
    ctx, progress = run.ctx, run.progress
    progress.index = progress.stages.index(find_stage(progress.stages, state.stage))
    ctx.ledger.update(state.spent)
    progress.started = {**state.started, "seconds": state.stage_seconds}
    progress.wall = state.seconds
    ctx.version += state.step - 1 - ctx.step
    ctx.step, ctx.count = state.step - 1, progress.count()


def choose_steps(stored: Stored, first: int | None = None, last: int | None = None, stage: str = "") -> list[int]:
    """Return the steps from `first` to `last` with stored groups. Raises ValueError if there are none, with the reason,
    for a `stage` or for all."""
    there = stored.kept_steps()
    if not there:
        raise ValueError(f"{stored.path} keeps no rollouts: {_explain_none(stored, stage)}")
    low, high = there[0] if first is None else first, there[-1] if last is None else last
    if chosen := [s for s in there if low <= s <= high]:
        return chosen
    asked = f"step {low}" if low == high else f"steps {low}..{high}"
    why = f": {_explain_none(stored, stage)}" if stage else ""
    raise ValueError(f"{stored.path} keeps no rollouts of {asked}{why}; there are some of {_name_steps(there)}")


def change_recipe(recipe: Recipe, sets: Iterable[str]) -> tuple[Recipe, dict[str, Any]]:
    """Return (the recipe with settings `a.b.c=value` laid over it, dotted key -> value). Raises RecipeError for an
    unknown setting."""
    given = read_settings(sets)
    changed = recipe.with_settings(given, "--set") if given else recipe
    assert changed.stages  # resolves them: a mistake in an overlay is found here
    return changed, given


def list_keys(given: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that settings set or remove."""
    return [*given.get(REMOVE, ()), *(key for key in given if key != REMOVE)]


def of_stage(path: Sequence[str]) -> Sequence[str]:
    """Return a path of a setting without its stage."""
    return path[2:] if path[0] == "stage" else path


def describe_steps(steps: Sequence[Step]) -> str:
    """Return the start of the text along a path, or its number of decisions if there is no text."""
    acts = [s for s in steps if s.action is not None]
    texts = [s.info.get("text") for s in acts]
    if any(isinstance(t, str) for t in texts):
        return "".join(t for t in texts if isinstance(t, str))[:TEXT]
    return f"{len(acts)} decisions"


def finite(value: float) -> float | None:
    """Return a number for JSON: None if it is not finite."""
    return float(value) if value - value == 0 else None


def find_stage(stages: Iterable[Any], name: str) -> Any:
    """Return the stage of that name, among components or tables. Raises ValueError with the nearest name."""
    named = {stage["name"] if isinstance(stage, Mapping) else stage.name: stage for stage in stages}
    if name not in named:
        raise ValueError(f"the recipe has no stage {name!r}; {nearest(name, named)}")
    return named[name]


def _read_ledger(columns: Mapping[str, Sequence[Any]], at: int) -> dict[str, float]:
    """Return the ledger at the end of the step in row `at`; empty before the first."""
    names = [n for n in columns if n.startswith("spent/")] if at >= 0 else []
    return {n.removeprefix("spent/"): columns[n][at] for n in names if columns[n][at] is not None}


def _name_steps(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, {steps[0]} to {steps[-1]}"


def _explain_none(stored: Stored, stage: str) -> str:
    """Return why a stage, or a run, has no groups, and which setting would store some."""
    from shuhari.config.build import build_stages
    from shuhari.loop.opening import read_recipe

    try:
        stages = [s for s in build_stages(read_recipe(Path(stored.path)).stages) if stage in ("", s.name)]
    except (RecipeError, LookupError):
        stages = []
    if stages and all(is_vector(s.rollout) for s in stages):
        return "environments are stepped in lanes, which form no groups; episodes do (rollout.use = 'episode')"
    if stages and not any(
        learner.buffer.wanted()
        for s in stages
        for learner in s.learners.values()
    ):
        return "what learns there learns from recorded data, and nothing is sampled"
    return "[store] rollouts says how many groups of a step are kept, and [store] groups = ['all'] keeps every one"
