"""The tree of a run for the store, and its restoration: a resumed run is bit-equal to one that never stopped."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shuhari.config.overlay import BUDGETS, split_path
from shuhari.config.recipe import Recipe, RecipeError, dump, find_differences, restore_names, spreads
from shuhari.config.repeats import is_left
from shuhari.config.stage import Components
from shuhari.data import EMPTY
from shuhari.kernel import state
from shuhari.kernel.profile import spanned
from shuhari.loop.based import Start, leave_out
from shuhari.loop.evaluation import LastScores, basis, measures
from shuhari.loop.kept import choose_rollouts, count_problems
from shuhari.loop.machine import versions
from shuhari.loop.outside import check_outside, describe_changed, find_outside, keep_outside
from shuhari.loop.progress import Progress
from shuhari.loop.reward_names import read_names, write_names
from shuhari.loop.roles import load_weights, weights
from shuhari.loop.space import check_room
from shuhari.loop.stopping import Stop, is_stop, look, read_end, write_end
from shuhari.ports import ability
from shuhari.store import Store
from shuhari.store.files import read_file
from shuhari.store.names import BASED

if TYPE_CHECKING:
    from shuhari.loop.context import Context


class Resumable(Protocol):
    """The parts of a run that are stored: what `loop.run` makes of a recipe."""

    recipe: Recipe
    ctx: Context
    progress: Progress
    store: Store | None
    saved: bool  # whether the last step is in a checkpoint
    info: dict[str, Any]  # the last report
    before: dict[str, Any]  # the held-out scores when the stage began
    scores: LastScores
    starts: dict[str, Start | None]  # role -> what it was loaded from

    @property
    def stage(self) -> Components: ...
    def install(self, stage: Components, *, restoring: bool = False) -> None: ...


def tree_of(run: Resumable) -> dict[str, Any]:
    """Return progress, weights by role, and the memory of every component of the stages reached so far."""
    ctx, at = run.ctx, run.progress
    progress = {
        "step": ctx.step,
        "version": ctx.version,
        "ledger": ctx.ledger,
        "row": ctx.next_row,
        "ticket": ctx.next_ticket,
        "stage": at.index,
        "started": at.started,
        "before": run.before,
        "problems": run.scores.problems,
        "scores": run.scores.played,
        "recorded": run.scores.recorded,
        "measured": run.scores.step,
        "reads": run.scores.reads,
        "rewards": write_names(ctx.reward_names),
        "tested": write_names(ctx.tested_names),
        "seconds": at.seconds(),
        **({"end": found} if (found := write_end(at)) else {}),
    }
    models, based = leave_out(weights(ctx.models), run.starts)
    parts = {"models": models, "components": state.memory(memories(run)), "flight": ctx.in_flight.tree()}
    return {"progress": progress, **parts, **({BASED: based} if based else {})}


def restore(run: Resumable, tree: Mapping[str, Any]) -> None:
    """Set a freshly made run to the state of `tree_of`."""
    at, ctx = tree["progress"], run.ctx
    ctx.step, ctx.version = at["step"], at["version"]
    ctx.ledger.update(at["ledger"])
    ctx.next_row, ctx.next_ticket = at["row"], at["ticket"]
    progress = run.progress
    progress.index, progress.started, progress.wall = at["stage"], dict(at["started"]), at["seconds"]
    run.before, run.scores = dict(at["before"]), LastScores(dict(at["scores"]), at["measured"])
    run.scores.recorded, run.scores.reads = dict(at.get("recorded", EMPTY)), at.get("reads", "")
    ctx.reward_names, ctx.tested_names = read_names(at["rewards"]), read_names(at.get("tested", ()))
    run.scores.problems = dict(at.get("problems", EMPTY))
    for stage in _stages_begun(run):  # roles come to life, and optimisers bind, in the order they first did
        run.install(stage, restoring=True)
    progress.entered = True
    read_end(progress, at.get("end", EMPTY), anew=run.store is None or run.store.get("goes_on") == ctx.step)
    run.scores.basis = basis(ctx, run.stage.evaluate, run.stage.evaluation_rollout)
    load_weights(ctx.models, tree["models"], tree.get(BASED, EMPTY))
    state.remember(memories(run), tree["components"])
    ctx.serve()
    ctx.in_flight.restore(tree["flight"], lambda: _restart(run))


def _restart(run: Resumable) -> None:
    for _, component in state.walk(run.stage.list_memories()):
        ability(component, "restart")(run.ctx)


def memories(run: Resumable) -> dict[str, Any]:
    """Return stage name -> its components; a component shared by stages is under the first."""
    return {s.name: s.list_memories() for s in _stages_begun(run)}


def _stages_begun(run: Resumable) -> Sequence[Components]:
    """Return the stages up to the current one."""
    return run.progress.stages[: run.progress.index + 1]


@spanned("store")
def commit_step(run: Resumable, *, checkpoint: bool, ends: bool = False) -> None:
    """Store the step in one transaction; with a checkpoint if requested or due, which is kept for good if it `ends` a
    stage that another one follows."""
    if run.store is None:
        return
    ctx, again = run.ctx, run.store.step == run.ctx.step  # again: the step is stored and now saved, on leaving
    run.saved = checkpoint = checkpoint or run.store.is_due(ctx.step, run.stage.store.every)
    if checkpoint:
        _keep_start(run)  # before: a run that is killed between the two makes the step again
        if run.scores.reads and run.store.get("measure") != run.scores.reads:
            run.store.set(measure=run.scores.reads)
    run.store.commit(
        ctx.step,
        stage=run.stage.name,
        wall=run.progress.seconds(),
        metrics=run.info,
        tree=tree_of(run) if checkpoint else None,
        problems=(counts := count_problems(run.ctx, run.stage.evaluate)),
        rollouts=choose_rollouts(run.ctx, run.stage.store, run.store, counts),
        events=() if again else [*(("problem", text) for text in ctx.problems), *run.scores.take_answers()],
        pin=ends and is_left(run.recipe.tree.get("stage", EMPTY), run.progress.index),
    )
    if checkpoint:
        _keep_cards(run)


def commit_measured(run: Resumable) -> dict[str, Any]:
    """End a stage of 0 steps, and return its report: what it measured as it began is stored in one transaction, at step
    0 if the run begins with it, else as the next step. Raises RecipeError if nothing was measured."""
    ctx = run.ctx
    if not run.before:
        message = "nothing was measured: no model of the recipe plays a role of what is played at evaluation"
        raise RecipeError("evaluate", f"{message} (stage {run.stage.name!r})")
    ctx.step += run.progress.index > 0
    run.scores.step, run.before = ctx.step, {}
    evaluated = {f"evaluate/{k}": v for k, v in run.scores.values.items()}
    spent = {f"spent/{k}": v for k, v in ctx.ledger.items()}
    run.info = {"step": ctx.step, "stage": run.stage.name, **evaluated, **spent}
    commit_step(run, checkpoint=True, ends=True)
    told = run.scores.name_measure(scored=True)
    return {**run.info, "seconds": run.progress.seconds(), **told, "problems": tuple(ctx.problems)}


def _keep_start(run: Resumable) -> None:
    """Store the scores in [0, 1] with which the stage began, as the fact `began`: stage -> {scores, problems}."""
    store, known = run.store, run.store.get("began", {}) if run.store else {}
    scores = {n: x for n in run.scores.problems if 0 <= (x := run.before.get(n, math.nan)) <= 1}
    if store is not None and scores and run.stage.name not in known:
        store.set(began={**known, run.stage.name: {"scores": scores, "problems": run.scores.problems}})


def _keep_cards(run: Resumable) -> None:
    """Write the cards of the data sets that the run has loaded to data.json: place -> card."""
    store, stage = run.store, run.stage
    found = {f"{stage.name}/{at}": card for at, c in state.walk(dict(stage.learners)) if (card := ability(c, "card"))}
    if store is None or not found:
        return
    known = store.get("data", {})
    if {**known, **found} != known:
        store.set(data={**known, **found})
        store.write_text("data.json", json.dumps({**known, **found}, indent=2) + "\n")


def commit_report(run: Resumable, *, over: bool, evaluated: bool) -> None:
    """Store the step of the current report, after which a stage may be `over`, by its budget or by its `stop_when`."""
    if not over and (told := look(run.progress, run.info)):
        run.ctx.problems.append(told)
    over |= bool(run.progress.ended)
    commit_step(run, checkpoint=over or evaluated, ends=over)


def check_disk(run: Resumable) -> None:
    """Raise StoreError, as the first stage of a run begins, if there is no room for its checkpoints."""
    store, at = run.store, run.progress
    if store is not None and not at.index:
        check_room(at.stages, run.ctx.models, run.starts, store.path, new=store.step < 0)


def halt(run: Resumable, stop: Stop) -> None:
    """End a run after the committed step, and save it. If `Stop` was raised inside of a step it is an error like
    others, as the part of the step that was learnt cannot be saved."""
    if run.store is not None and run.store.step != run.ctx.step:
        raise stop
    run.progress.ended, run.progress.halted = str(stop), True
    commit_step(run, checkpoint=True, ends=True)


def _measure_end(run: Resumable) -> None:
    """Measure the final scores of a run that was stopped between two evaluations. The run was saved before, and resumes
    as if they had not been measured."""
    stage, evaluation = run.stage, run.stage.evaluate
    if run.progress.ended and run.scores.step < run.ctx.step and measures(evaluation):
        run.scores.measure(run.ctx, evaluation, stage.evaluation_rollout, stage.learners, again=True)


def finish(run: Resumable, chance: Callable[[Context, Any, Any], Mapping[str, float]] | None = None) -> None:
    """Write the summary of a complete run, once; with the result of `chance`, if given, for its last evaluation."""
    if run.store is not None and not run.store.get("complete"):
        _measure_end(run)
        found = {"chance": chance(run.ctx, run.stage.evaluate, run.stage.evaluation_rollout)} if chance else {}
        summary = _to_strict({**summarise(run), **found})
        run.store.write_text("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
        run.store.set(complete=True, stopped=run.progress.ended)


def _to_strict(value: Any) -> Any:
    """Replace numbers that JSON does not have by null."""
    if isinstance(value, Mapping):
        return {k: _to_strict(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarise(run: Resumable) -> dict[str, Any]:
    """Return the content of summary.json of a complete run."""
    engines: list[Any] = [stage.engine for stage in run.progress.stages]
    return {
        "recipe": run.recipe.name,
        "seed": run.ctx.seed,
        "steps": run.ctx.step,
        "before": run.before,
        "after": run.scores.values,
        **run.scores.name_measure(scored=True),
        "wall_s": run.progress.seconds(),
        "spent": run.ctx.ledger,
        **({"stopped": run.progress.ended} if run.progress.ended else {}),
        # the real clock is not
        "repeatable": not any(ability(e, "staleness") and not ability(e, "virtual") for e in engines),
    }


def open_store(
    path: Path, recipe: Recipe, *, keep: int, origin: str = "", stages: Sequence[Any] = (), accept: bool = False
) -> Store:
    """Open the store at `path`. The recipe beside it is rewritten if it distributes the work in another way now (event
    `spread`), or gives a complete run a larger budget of its last stage (`extended`). Raises RecipeError if the
    existing run has a recipe that does something else, did not start from the weights of `origin`, if that is given, or
    was made with other data or code of the user, unless `accept` (`changed`)."""
    store: Store = Store.open(path, keep=keep, best="evaluate/greedy")
    try:
        _compare(store, recipe, origin, find_outside(recipe, stages), accept)
    except BaseException as error:
        store.close(error)
        raise
    return store


def _compare(store: Store, recipe: Recipe, origin: str, outside: Mapping[str, Path], accept: bool) -> None:
    path = store.path
    file = path / "recipe.toml"
    stored = store.get("recipe")
    known = stored or (read_file(file).decode() if file.is_file() else "")  # older runs have it in the file alone
    if known:
        recipe, originals = restore_names(recipe, known, path)
        outside = {originals.get(name, name): place for name, place in outside.items()}
    text = dump(recipe)
    if known not in ("", text) and not stored and store.step < 0:
        raise RecipeError("", f"{file} exists, and was not written by a run: move it away, or choose another folder "
                          "with --run")  # fmt: skip
    if not known or store.step < 0:  # a run that never made a step holds no folder
        store.write_text("recipe.toml", text)
        store.set(recipe=text, total=recipe.total, made_with=versions(), init=origin)
        keep_outside(store, outside)
        return
    if origin and (began := store.get("init", "")) != origin:
        message = f"started from the weights of {began}" if began else "started from fresh weights"
        raise RecipeError("", f"{path} holds a run that {message}, not of {origin}: choose another folder with --run")
    changed, complete = find_differences(known, text), bool(store.get("complete"))
    stops = {key: list(values) for key, values in changed.items() if is_stop(key)}
    longer = {key: list(values) for key, values in changed.items() if not (spreads(key) or key in stops)}
    if longer and not (complete and extends(recipe, longer)):
        raise RecipeError("", f"{path} holds a run of another recipe ({_name_differences(recipe, longer)}): "
                              "choose another folder with --run; --init starts from its weights")  # fmt: skip
    if longer or stops or not complete:
        check_outside(store, outside, accept)
    elif message := describe_changed(store.get("outside") or {}, outside):
        logging.getLogger("shuhari").warning("%s is complete, and %s", path, message)
    if longer or stops:
        store.first.append(lambda: store.set(complete=False, stopped="", total=recipe.total))
    spread = {k: [*v] for k, v in changed.items() if k not in longer and k not in stops}
    for kind, found in (("extended", {**longer, **stops}), ("spread", spread)):
        if found:
            store.first.append(partial(store.note, kind, found))
    if changed:
        store.first.append(lambda: store.set(recipe=text))
        store.first.append(lambda: store.write_text("recipe.toml", text))


def _name_differences(recipe: Recipe, changed: Mapping[str, Sequence[Any]]) -> str:
    """List the differences as `key: old there, new here`, first those that a larger budget does not explain; of more
    than four, the number of the rest."""
    ordered = sorted(changed.items(), key=lambda one: extends(recipe, dict([one])))
    told = [f"{key}: {_shorten(old)} there, {_shorten(new)} here" for key, (old, new) in ordered]
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")


def _shorten(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"


def extends(recipe: Recipe, changed: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the changes of a recipe, key -> (before, now), only give its last stage a larger budget."""
    *before, last = recipe.stages
    for key, (old, new) in changed.items():
        *place, unit = split_path(key)
        number = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
        if unit not in BUDGETS or not number or new <= old or "study" in recipe.tree:
            return False
        own = recipe.tree.get("stage", {})
        shared = any(unit not in own.get(stage["name"], {}) for stage in before)
        if (place and place != ["stage", last["name"]]) or (not place and shared):
            return False
    return True
