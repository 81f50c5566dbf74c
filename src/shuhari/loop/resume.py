"""A run as a tree, and back: all that the store must keep so that a resumed run is bit-equal to one never stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shuhari.config.recipe import Recipe, RecipeError, apart, dump, spreads
from shuhari.config.stage import Components
from shuhari.data import Trajectory
from shuhari.loop import state
from shuhari.loop.context import Context
from shuhari.loop.evaluation import LastScores, basis
from shuhari.loop.machine import versions
from shuhari.loop.progress import Progress
from shuhari.loop.roles import load_weights, weights
from shuhari.ports import ability
from shuhari.profile import spanned
from shuhari.store import Store, pick


class Resumable(Protocol):
    """What of a run is kept: it is what `loop.run` makes of a recipe."""

    recipe: Recipe
    ctx: Context
    progress: Progress
    store: Store | None
    saved: bool  # whether the last step is in a checkpoint
    info: dict[str, Any]  # the last report
    before: dict[str, Any]  # the held-out scores when the stage began
    scores: LastScores

    @property
    def stage(self) -> Components: ...
    def install(self, stage: Components) -> None: ...


def tree_of(run: Resumable) -> dict[str, Any]:
    """Progress, weights by role, and the memory of every component of the stages reached so far."""
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
        "scores": run.scores.values,
        "measured": run.scores.step,
        "rewards": sorted(ctx.reward_names),
        "seconds": at.seconds(),
    }
    parts = {"models": weights(ctx.models), "components": state.memory(memories(run)), "flight": ctx.flight.tree()}
    return {"progress": progress, **parts}


def restore(run: Resumable, tree: Mapping[str, Any]) -> None:
    """Set a freshly made run to where `tree_of` took it."""
    at, ctx = tree["progress"], run.ctx
    ctx.step, ctx.version = at["step"], at["version"]
    ctx.ledger.update(at["ledger"])
    ctx.next_row, ctx.next_ticket = at["row"], at["ticket"]
    progress = run.progress
    progress.index, progress.started, progress.wall = at["stage"], dict(at["started"]), at["seconds"]
    run.before, run.scores = dict(at["before"]), LastScores(dict(at["scores"]), at["measured"])
    ctx.reward_names = set(at["rewards"])
    for stage in _reached(run):  # roles come to life, and optimisers bind, in the order they first did
        run.install(stage)
    progress.entered = True
    run.scores.basis = basis(ctx, run.stage.evaluate, run.stage.evaluation_rollout)
    load_weights(ctx.models, tree["models"])
    state.remember(memories(run), tree["components"])
    ctx.serve()
    ctx.flight.restore(tree["flight"], lambda: _restart(run))


def _restart(run: Resumable) -> None:
    for _, component in state.walk(run.stage.memories()):
        ability(component, "restart")(run.ctx)


def memories(run: Resumable) -> dict[str, Any]:
    """Stage name -> its components; one that stages share is found under the first."""
    return {s.name: s.memories() for s in _reached(run)}


def _reached(run: Resumable) -> Sequence[Components]:
    """The stages up to the one at hand."""
    return run.progress.stages[: run.progress.index + 1]


@spanned("store")
def keep(run: Resumable, *, checkpoint: bool) -> None:
    """Store the step in one transaction; with a checkpoint where told so or due."""
    if run.store is None:
        return
    ctx, again = run.ctx, run.store.step == run.ctx.step  # again: the step is stored and now saved, on leaving
    run.saved = checkpoint = checkpoint or run.store.due(ctx.step, run.stage.store.every)
    run.store.commit(
        ctx.step,
        stage=run.stage.name,
        wall=run.progress.seconds(),
        metrics=run.info,
        tree=tree_of(run) if checkpoint else None,
        problems=(counts := asked(run)),
        rollouts=shown(run, counts),
        events=() if again else [("problem", text) for text in ctx.problems],
    )
    if checkpoint:
        _keep_cards(run)


def _keep_cards(run: Resumable) -> None:
    """What is known of the data sets that the run has loaded, in data.json: place -> card."""
    store, stage = run.store, run.stage
    found = {f"{stage.name}/{at}": card for at, c in state.walk(dict(stage.learners)) if (card := ability(c, "card"))}
    if store is None or not found:
        return
    known = store.get("data", {})
    if {**known, **found} != known:
        store.set(data={**known, **found})
        store.write_text("data.json", json.dumps({**known, **found}, indent=2) + "\n")


def finish(run: Resumable) -> None:
    """Write the summary of a complete run, once."""
    if run.store is not None and not run.store.get("complete"):
        run.store.write_text("summary.json", json.dumps(summary_of(run), indent=2) + "\n")
        run.store.set(complete=True)


def summary_of(run: Resumable) -> dict[str, Any]:
    """What summary.json says of a complete run."""
    engines: list[Any] = [stage.engine for stage in run.progress.stages]
    return {
        "recipe": run.recipe.name,
        "seed": run.ctx.seed,
        "steps": run.ctx.step,
        "before": run.before,
        "after": run.scores.values,
        "wall_s": run.progress.seconds(),
        "spent": run.ctx.ledger,
        # the real clock is not
        "repeatable": not any(ability(e, "staleness") and not ability(e, "virtual") for e in engines),
    }


def open_store(path: Path, recipe: Recipe, *, keep: int, origin: str = "") -> Store:
    """The store at `path`, with the recipe beside it, written anew where it spreads the work otherwise now (event
    `spread`). RecipeError where the run that is there has another recipe in what it does, or did not start from the
    weights of `origin`, if that is given."""
    if not (path / "run.sqlite").exists() and any((path / "checkpoints").glob("step-*")):
        raise RecipeError("", f"{path} has checkpoints but no run.sqlite: move it away, or choose another with --run")
    store: Store = Store.open(path, keep=keep, best="evaluate/greedy")
    text, file = dump(recipe), path / "recipe.toml"
    if not file.exists() or store.step < 0:  # a run that never made a step holds no folder
        store.write_text("recipe.toml", text)
        store.set(total=recipe.total, made_with=versions(), init=origin)
    elif origin and (began := store.get("init", "")) != origin:
        store.close()
        told = f"started from the weights of {began}" if began else "started from fresh weights"
        raise RecipeError("", f"{path} holds a run that {told}, not of {origin}: choose another folder with --run")
    elif changed := apart(file.read_text(), text):
        if other := next((key for key in changed if not spreads(key)), ""):
            store.close()
            theirs, ours = ("not set" if value is None else value for value in changed[other])
            raise RecipeError("", f"{path} holds a run of another recipe ({other}: {theirs} there, {ours} here): "
                                  "choose another folder with --run; --init starts from its weights")  # fmt: skip
        store.note("spread", {key: list(values) for key, values in changed.items()})
        store.write_text("recipe.toml", text)
    return store


def asked(run: Resumable) -> list[tuple[str, str, int, int]]:
    """(task, problem, samples graded, how many were right, as evaluation would say) of the step's problems."""
    evaluation, names = run.stage.evaluate, run.ctx.reward_names
    measure, solved = (evaluation.measure, evaluation.solved) if evaluation else ("", 1.0)
    name = measure or next((n for n in ("score", "task") if n in names), "")
    counts: dict[tuple[str, str], list[int]] = {}
    for t in (t for group in run.ctx.groups for t in group):
        count = counts.setdefault((t.request.problem.task, t.request.problem.id), [0, 0])
        for path in t.paths():
            given = [r for i in path if (r := t.steps[i].reward.get(name)) is not None]
            value = sum(r if type(r) is float else float(np.sum(r)) for r in given) if given else math.nan
            count[0] += value == value
            count[1] += value >= solved
    return [(*key, n, right) for key, (n, right) in counts.items()]


def shown(run: Resumable, counts: Sequence[tuple[str, str, int, int]]) -> list[dict[str, Any]]:
    """The groups of the step that the store keeps, by the rules of [store]; `counts`: what `asked` says of them."""
    ctx, keep = run.ctx, run.stage.store
    groups, ctx.groups = ctx.groups, []
    if not groups or not (keep.rollouts or "all" in keep.groups):
        return []
    problems = [g[0].request.problem for g in groups]
    changes: list[float] = []
    if "changed" in keep.groups and run.store is not None:
        now = {(task, name): right / n if n else math.nan for task, name, n, right in counts}
        changes = [abs(now[p.task, p.id] - run.store.rate(p.task, p.id)) for p in problems]
    scores = [_score(g, ctx) for g in groups]
    chosen = pick(scores, keep.rollouts, ctx.key("shown", ctx.step) % 2**32, keep.groups, changes)
    return [
        {"group": groups[i][0].request.key, "task": problems[i].task, "problem": problems[i].id, "why": why,
         "score": scores[i], "trajectories": tuple(groups[i])}
        for i, why in chosen
    ]  # fmt: skip


def _score(group: list[Trajectory], ctx: Context) -> float:
    """The mean trained reward of a group's leaves, NaN where nothing was graded."""
    graded = []
    for t in group:
        total = 0.0
        for step in t.steps:
            for name, weight in ctx.weights.items():
                value = step.reward.get(name, 0.0)
                total += float(value.sum() if hasattr(value, "sum") else value) * ctx.at(weight)
        if not math.isnan(total):
            graded.append(total)
    return sum(graded) / len(graded) if graded else math.nan
