"""The loop. Read `loop` first: every step of every method is there, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from shuhari.batch import Batch
from shuhari.config.recipe import Recipe, RecipeError
from shuhari.config.stage import Components
from shuhari.data import EMPTY, Info
from shuhari.distributed.team import open_team
from shuhari.events import Collected, Committed, Evaluated, Event, InOrder, StageStarted, Updated
from shuhari.kernel import state
from shuhari.kernel.measure import Meter
from shuhari.loop import chance, collect, curve, hiring
from shuhari.loop.checks import check_names, make_stages
from shuhari.loop.context import Context
from shuhari.loop.drift import describe_collected
from shuhari.loop.evaluation import LastScores, measures, watch
from shuhari.loop.fitting import fit_rows
from shuhari.loop.progress import Progress
from shuhari.loop.resume import (
    check_disk,
    commit_measured,
    commit_report,
    commit_step,
    finish,
    halt,
    open_store,
    restore,
)
from shuhari.loop.roles import cast_roles, listens_to, move_followers
from shuhari.loop.stopping import Stop, check_measured
from shuhari.ports import Learner, Transform, ability, is_vector
from shuhari.ports.declares import needs_of
from shuhari.store import Store
from shuhari.transforms import Call, apply, call_transform


def train(recipe: Recipe, path: Path | None = None, **start: Any) -> Iterator[Info]:
    """Run a recipe and yield one report a step. Resumes from `path`; ends at once if that run is complete."""
    yield from loop(open_run(recipe, path, **start))


def loop(run: Run) -> Iterator[Info]:
    """The steps of an opened run, to its end; closing the iterator between two of them saves what was done."""
    with run:
        while not run.done():
            run.enter_stage()
            while want := run.wanted():
                with run.ctx.phase("collect", run.rounds):
                    run.tell(Collected(run.apply(run.stage.collect, run.collect(want)), tuple(run.ctx.latest)))
            for name, learner in run.stage.learners.items():
                for batch in run.draws(name, learner):
                    batch = run.apply(learner.transforms, batch, learner)
                    run.tell(learner.update(batch, run.ctx))
            try:
                yield run.commit()
            except Stop as stop:
                halt(run, stop)
        finish(run, chance.measure_chance if run.curve else None)


def open_run(
    recipe: Recipe, path: Path | None = None, *, init: Mapping[str, Any] = EMPTY, curve: bool = False, **known: Any
) -> Run:
    """Open the run stored at `path`, or a new one; None: stored nowhere. init: role -> weights to start from; curve:
    see the module `curve`; known: arguments of `open_store`."""
    if "study" in recipe.tree:
        raise RecipeError("study", f"{recipe.name} is a study and no run: what it trains are the runs in its children/")
    with ExitStack() as failed:
        failed.push(run := Run(recipe, init, curve))  # what goes wrong here lets go of the store
        hiring.hire(recipe, run.progress.stages, run.ctx)
        if path is not None:
            run.store = open_store(path, recipe, keep=run.stage.store.keep, stages=run.progress.stages, **known)
            if (tree := run.store.load()) is not None:
                restore(run, tree)
            else:
                check_names(run.progress.stages)
        failed.pop_all()
    return run


class Run:
    """Models, components and progress of one recipe. `ctx` is what components see of it."""

    store: Store | None
    def __init__(self, recipe: Recipe, init: Mapping[str, Any] = EMPTY, curve: bool = False) -> None:
        self.recipe, self.init, self.curve, stages = recipe, init, curve, make_stages(recipe)
        self.ctx = Context(recipe.seed, stages[0].task, stages[0].engine, stages[0].tokens, recipe.threads)
        self.ctx.team = open_team(recipe, stages, self.ctx)
        self.tell = self.ctx.tell = InOrder(self.hear)
        self.progress = progress = Progress(stages, self.ctx.ledger)
        self.done, self.store = progress.done, None
        self.saved, self.meter, self.info, self.rounds = True, Meter(), dict[str, Any](), 0  # saved: in a checkpoint
        self.scores, self.before = LastScores(), dict[str, Any]()  # now, and when the stage began
        # shared: roles that play by `same_as` now; starts: of a run that is stored, what roles were loaded from
        self.listeners, self.shared, self.starts = list[Any](), set[str](), dict[str, Any]()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.store is not None:
            if kind in (None, GeneratorExit) and not self.saved:  # stopped between two steps: nothing is lost
                commit_step(self, checkpoint=True)
            self.store.close(error)
        self.ctx.close()

    @property
    def stage(self) -> Components:
        return self.progress.stage

    def enter_stage(self) -> None:
        """Begin a step; at the first of a stage its roles are created and its components get the event."""
        self.ctx.set_threads()
        self.meter, self.rounds, self.ctx.problems, self.ctx.groups, self.ctx.seen = Meter(), 0, [], [], []
        self.ctx.count = self.progress.count()
        if not self.progress.entered:
            lived = dict(self.ctx.models)
            self.ctx.in_flight.drop()  # where a budget in seconds ran out between two steps
            self.install(self.stage)
            check_disk(self)
            self.progress.entered = True
            self.tell(StageStarted(self.stage.name))
            self.ctx.serve()
            moved = any(self.ctx.models[r] is not m for r, m in lived.items())
            self.before = self._evaluate(again=moved or listens_to(self.stage.follows, StageStarted))
            check_measured(self.stage, self.before)
        self.ctx.began = self.ctx.clock()

    def install(self, stage: Components, *, restoring: bool = False) -> None:
        """Make a stage's components the run's own; restoring: a checkpoint's weights follow."""
        ctx = self.ctx
        ctx.play(stage)
        cast_roles(stage.models, ctx.models, stage.task, ctx.seed, self.init, self.shared,
                   sources=not restoring, starts=None if self.store is None else self.starts)  # fmt: skip
        fit_rows(stage, ctx, self.progress.stages, restoring=restoring)
        ctx.open(stage.list_rollouts(), stage.rewards.values())
        for learner in stage.learners.values():
            learner.bind(ctx.models)
        alive = {r: ctx.models[r] for r, role in stage.models.items() if role.model is not None}  # copies hear nothing
        self.listeners = state.listeners({**stage.list_memories(), "models": alive})

    def wanted(self) -> int:
        """Return what the buffers lack after their filters. Raises an error if a filter rejects everything."""
        want = max((learner.buffer.wanted() for learner in self.stage.learners.values()), default=0)
        if want:
            collect.check_rounds(want, self.rounds, self.meter, self.ctx)
        self.rounds += 1
        return want

    def collect(self, want: int) -> Batch:
        """Curriculum -> rollouts -> rewards -> rows, in request order; lanes of environments write rows directly."""
        ctx, stage = self.ctx, self.stage
        if is_vector(stage.rollout):
            return collect.collect_decisions(want, ctx)
        first, left = self.rounds == 1, self.progress.left()
        self.meter.add("rollout/rounds", 1, first)  # how many there are in the step
        batch, requests = ctx.wait(ctx.in_flight.take(want, stage.curriculum.select, first=first, left=left))
        self.meter.update(describe_collected(batch, requests, ctx))
        return batch

    def draws(self, name: str, learner: Learner) -> Iterator[Batch]:
        """Yield what a learner's buffer draws at this step; each draw, with all that is done with it, is a phase."""
        drawn: Iterator[Batch] | None = None
        for i in count():
            with self.ctx.phase(name, i):
                drawn = iter(learner.buffer.draw(self.ctx)) if drawn is None else drawn
                if (batch := next(drawn, None)) is None:
                    return
                yield batch

    def apply(self, transforms: Mapping[str, Transform], batch: Batch, learner: Learner | None = None,
              call: Call = call_transform) -> Batch:  # fmt: skip
        """Return the batch after a recipe's transforms, with the columns that they and the learner's terms need scored.
        """
        return self.ctx.note_batch(apply(transforms.values(), batch, self.ctx, needs_of(learner), call))

    def hear(self, event: Event) -> None:
        """Deliver an event to the active stage's components and to the roles that follow."""
        if isinstance(event, Updated):
            self.meter.update(event.info)
        for listener in self.listeners:
            listener.observe(event)
        move_followers(self.stage.follows, self.ctx.models, event)

    def commit(self) -> Info:
        """End the step, and return its report: followers, weights to the engine, evaluation if due, one transaction."""
        ctx, stage = self.ctx, self.stage
        if not stage.learners:  # it only measures, which it did as it began
            return commit_measured(self)
        ctx.elapse()
        ctx.step, ctx.version = ctx.step + 1, ctx.version + 1
        ctx.charge("steps", 1)
        self.tell(Committed(ctx.step))
        ctx.serve()
        over, every = self.progress.over(), stage.evaluate.every if stage.evaluate else 0
        if over:
            ctx.in_flight.drop()  # nobody will learn from it
        if over or (every and self.progress.steps % every == 0):
            self._evaluate()
        reported: Info = {**ability(stage.curriculum, "report")(), **ability(stage.rollout, "report")()}
        evaluated = {f"evaluate/{k}": v for k, v in self.scores.values.items()} if self.scores.step == ctx.step else {}
        between = curve.score_between(ctx, self.progress) if self.curve and not evaluated else {}
        reported |= evaluated | between | {f"spent/{k}": v for k, v in ctx.ledger.items()}
        self.info = {"step": ctx.step, "stage": stage.name, **self.meter.means(), **reported}
        commit_report(self, over=over, evaluated=bool(evaluated))
        return {**self.info, "seconds": self.progress.seconds(), **stage.notes,
                **self.scores.name_measure(scored=bool(evaluated or between)),
                "problems": tuple(ctx.problems)}  # fmt: skip

    def _evaluate(self, *, again: bool = True) -> Info:
        evaluation, rollout = self.stage.evaluate, self.stage.evaluation_rollout
        if not measures(evaluation):
            return {}
        scores = self.scores.measure(self.ctx, evaluation, rollout, self.stage.learners, again=again)
        self.tell(Evaluated(evaluation.split, watch(self.ctx, evaluation, rollout) if evaluation.watch else scores))
        if self.ctx.in_flight.groups:
            self.ctx.serve()  # they went on: their caches are made anew, as a resumed run makes them
        return dict(scores)
