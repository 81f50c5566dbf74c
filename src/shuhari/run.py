"""The loop. Read `train` first: every step of every method is there, from top to bottom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shuhari import collect, state
from shuhari.batch import Batch
from shuhari.build import Components, stage_components
from shuhari.context import Context
from shuhari.data import EMPTY, Info
from shuhari.evaluation import evaluate
from shuhari.measure import Meter, collected_info
from shuhari.needs import Need, gather
from shuhari.ports import Collected, Committed, Evaluated, Event, StageStarted, Transform, Updated
from shuhari.progress import Progress
from shuhari.recipe import Recipe
from shuhari.resume import open_store, restore, shown, summary_of, tree_of
from shuhari.roles import cast_roles
from shuhari.store import Store

FOLLOWED = {"update": Updated, "step": Committed, "stage": StageStarted, "plateau": Evaluated}
ROUNDS = 20  # of collection in one step, before a filter that rejects nearly everything is an error


def train(recipe: Recipe, path: Path | None = None, *, init: Mapping[str, Any] = EMPTY) -> Iterator[Info]:
    """Run a recipe and yield one report a step. Resumes from `path`; ends at once if that run is complete.
    `init`: role -> weights to start from."""
    with open_run(recipe, path, init=init) as run:
        while not run.done():
            run.enter_stage()
            while want := run.short():
                batch = run.collect(want)
                run.tell(Collected(run.apply(run.stage.collect, batch)))
            for learner in run.stage.learners.values():
                for batch in learner.buffer.draw(run.ctx):
                    batch = run.apply(learner.transforms, batch, learner.needs)
                    run.tell(learner.update(batch, run.ctx))
            yield run.commit()
        run.finish()


def open_run(recipe: Recipe, path: Path | None = None, *, init: Mapping[str, Any] = EMPTY) -> Run:
    """A run as it stands at `path`, or at its start; kept nowhere where there is no path."""
    run = Run(recipe, init)
    with ExitStack() as failed:
        failed.push(run)  # what goes wrong here lets go of the store
        if path is not None:
            run.store = open_store(path, recipe, keep=run.stage.store.keep)
            if (tree := run.store.load()) is not None:
                restore(run, tree)
        failed.pop_all()
    return run


class Run:
    """Models, components and progress of one recipe. `ctx` is what components see of it."""

    def __init__(self, recipe: Recipe, init: Mapping[str, Any] = EMPTY) -> None:
        self.recipe, self.init = recipe, init
        shared: dict[str, Any] = {}
        stages = [stage_components(table, shared) for table in recipe.stages]
        self.ctx = Context(recipe.seed, stages[0].task, stages[0].engine, stages[0].tokens, recipe.threads)
        self.ctx.tell = self.tell
        self.progress = Progress(stages, self.ctx.ledger)
        self.done = self.progress.done
        self.store: Store | None = None
        self.saved = True  # whether the last step is in a checkpoint
        self.meter, self.info, self.rounds = Meter(), dict[str, Any](), 0
        self.scores: Info = {}  # of the last evaluation, made at step `measured`
        self.measured = -1
        self.before: Info = {}  # the scores when the stage began
        self.listeners: list[Any] = []
        self.prepared: set[int] = set()  # learners bound and lanes opened, once each

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.store is not None:
            if kind in (None, GeneratorExit) and not self.saved:  # stopped between two steps: nothing is lost
                self._keep(checkpoint=True)
            self.store.close()
        self.ctx.close()

    @property
    def stage(self) -> Components:
        return self.progress.stage

    def enter_stage(self) -> None:
        """Begin a step; at the first of a stage its roles come to life and its components are told."""
        self.meter, self.rounds, self.ctx.problems = Meter(), 0, []
        self.ctx.count = float(self.progress.steps)
        if not self.progress.entered:
            self.install(self.stage)
            self.progress.entered = True
            self.tell(StageStarted(self.stage.name))
            self.ctx.serve()
            self.before = self._evaluate()

    def install(self, stage: Components) -> None:
        """Make a stage's components the run's own."""
        ctx = self.ctx
        for name in ("task", "engine", "rollout", "rewards", "weights", "n", "sampling", "tokens"):
            setattr(ctx, name, getattr(stage, name))
        cast_roles(stage.models, ctx.models, stage.task, ctx.seed, self.init)
        for part in (stage.rollout, *stage.learners.values()):
            if id(part) not in self.prepared:
                self.prepared.add(id(part))
                if hasattr(part, "open"):
                    part.open(stage.task, ctx.key("rollout", stage.name))
                if hasattr(part, "bind"):
                    part.bind(ctx.models)
        self.listeners = [c for _, c in state.walk(stage.memories()) if hasattr(c, "observe")]

    def short(self) -> int:
        """What the buffers lack after their filters; a filter that rejects everything ends in an error."""
        want = max((learner.buffer.short() for learner in self.stage.learners.values()), default=0)
        if want and self.rounds >= ROUNDS:
            why = (
                "; ".join(self.ctx.problems) or "a filter rejects nearly everything (are a group's outcomes all equal?)"
            )
            raise RuntimeError(f"step {self.ctx.step}: {want} still wanted after {ROUNDS} rounds of collection: {why}")
        self.rounds += 1
        return want

    def collect(self, want: int) -> Batch:
        """Curriculum -> rollouts -> rewards -> rows, in request order; lanes of environments write rows directly."""
        ctx, stage = self.ctx, self.stage
        if hasattr(stage.rollout, "collect"):
            batch = collect.rewarded(stage.rollout.collect(want, ctx), stage.weights)
        else:
            batch = ctx.wait(collect.groups(ctx.wait(stage.curriculum.select(want, ctx)), ctx))
            self.meter.update(collected_info(batch, stage.weights))
        ctx.charge("decisions", int(batch["mask"].sum()))
        return batch

    def apply(self, transforms: Mapping[str, Transform], batch: Batch, needs: Sequence[Need] = ()) -> Batch:
        """Score once what the transforms and the learner's terms want, then transform in the recipe's order."""
        wanted = [n for t in transforms.values() for n in t.needs]
        batch = gather(batch, [*wanted, *needs], self.ctx.models, self.stage.tokens)
        for transform in transforms.values():
            batch = transform(batch, self.ctx)
        return batch

    def tell(self, event: Event) -> None:
        """An event, to the active stage's components and to the roles that follow."""
        if isinstance(event, Updated):
            self.meter.update(event.info)
        for listener in self.listeners:
            listener.observe(event)
        for follow in self.stage.follows.values():
            if isinstance(event, FOLLOWED[follow.on]):
                follow(self.ctx.models, event)

    def commit(self) -> Info:
        """End the step: followers, weights to the engine, evaluation if due, one transaction. Its report."""
        ctx, stage = self.ctx, self.stage
        ctx.step, ctx.version = ctx.step + 1, ctx.version + 1
        ctx.charge("steps", 1)
        self.tell(Committed(ctx.step))
        ctx.serve()
        over, every = self.progress.over(), stage.evaluate.every if stage.evaluate else 0
        if over or (every and self.progress.steps % every == 0):
            self._evaluate()
        lanes: Info = getattr(stage.rollout, "report", dict)()
        evaluated = {f"evaluate/{k}": v for k, v in self.scores.items()} if self.measured == ctx.step else {}
        spent = {f"spent/{k}": v for k, v in ctx.ledger.items()}
        self.info = {"step": ctx.step, "stage": stage.name, **self.meter.means(), **lanes, **evaluated, **spent}
        self._keep(checkpoint=over or bool(evaluated))
        return {**self.info, "seconds": self.progress.seconds(), "problems": tuple(ctx.problems)}

    def _evaluate(self) -> Info:
        evaluation = self.stage.evaluate
        if evaluation is None or not evaluation.n:
            return {}
        self.scores = evaluate(self.ctx, evaluation, self.stage.measured).scores(evaluation)
        self.measured = self.ctx.step
        self.tell(Evaluated(evaluation.split, self.scores))
        return dict(self.scores)

    def _keep(self, *, checkpoint: bool) -> None:
        if self.store is not None:
            self.saved = checkpoint = checkpoint or self.store.due(self.ctx.step, self.stage.store.every)
            facts: dict[str, Any] = {"stage": self.stage.name, "wall": self.progress.seconds(), "metrics": self.info}
            rollouts = shown(self.ctx, self.stage.store.rollouts)
            self.store.commit(self.ctx.step, **facts, tree=tree_of(self) if checkpoint else None, rollouts=rollouts)

    def finish(self) -> None:
        """Write the summary of a complete run, once."""
        if self.store is not None and not self.store.get("complete"):
            self.store.write_text("summary.json", json.dumps(summary_of(self), indent=2) + "\n")
            self.store.set(complete=True)
