"""The rehearsal: before step 0 every stage of a run is played once, small, and forgotten.

Two problems (a few decisions for lanes of environments) go through a stage's rollout, graders, transforms, buffers and
losses, with models, components and random streams of their own. So a mistake of a user's code or data in a later stage
is found before the first stage has cost anything, and the rehearsal changes nothing in the run: neither its weights,
random streams and ledger, nor its store. Its calls are real: rewards, tools, judges, environments.

It makes the checks that are too expensive for training: columns changed in place, rows in another order, draws from
generators of the whole process, memory of a user's component outside of any `state`. It refuses nothing that may be due
only to its small size: numbers that are not finite, filters that let nothing pass, and errors of graders and rollouts
on short answers of an untrained policy; the log reports the latter. It does refuse a TypeError on every sample, and an
error of the code (`CODE`) in each rollout, or each environment, of a stage. Left out: runs of claims; workers; how an
episode ends.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.config.overlay import USE
from shuhari.config.recipe import Recipe, RecipeError
from shuhari.config.schedules import list_misfits
from shuhari.config.smaller import cap, cap_buffer
from shuhari.config.stage import Components
from shuhari.data import EMPTY, ContractError, Problem, Sampling, StalledError, Status, read_first
from shuhari.engines.time_limit import Overdue
from shuhari.events import Collected, Committed
from shuhari.kernel.registry import declared
from shuhari.loop.breaches import (
    DRAWS,
    IN_PLACE,
    copy_columns,
    find_changed,
    generator_states,
    keep_columns,
    notice_draws,
    notice_memory,
)
from shuhari.loop.collect import AllFailedError
from shuhari.loop.engines import advise_engine
from shuhari.loop.fitting import TooLongError
from shuhari.loop.run import Run, open_run
from shuhari.loop.tuned import list_slow, list_unfit, refuse_inherited_rates
from shuhari.loop.wording import describe_reading
from shuhari.ports import Ctx, Model, Transform, ability, is_text, is_vector
from shuhari.tasks.contract import explain_ids
from shuhari.transforms import call_transform

PROBLEMS = 2
PROMPTS = 32  # whose lengths are looked at
TOKENS = 16  # of an answer, at most; and decisions of a held-out episode
FEW = 4  # tokens of an answer, where a model is one that is loaded, and may be large
NOTE = "in stage {!r}, rehearsed before the first step; --no-rehearsal leaves that out"
UNSAID = (NameError, ImportError, Overdue)  # what code of a user's raises whatever an answer says
CODE = (TypeError, AttributeError, KeyError, IndexError)  # and what it raises of every answer where it is wrong
LIBRARY = Path(__file__).parents[1]


def rehearse(recipe: Recipe, init: Mapping[str, Any] = EMPTY) -> None:
    """Play each stage of a recipe once. Raises what its components raise, with a note that names the stage."""
    with _kept_generators(), Run(make_small(recipe), init) as run:
        failures = run.ctx.failed = _Failures()
        run.ctx.told = None  # the run itself tells of its data
        asked = [stage.sampling.max_new for stage in run.progress.stages]
        first = _describe_tested(recipe.stages[0])  # the run itself measures that before anything else
        given = run.progress.stages
        read: set[str] = set()
        again = [_describe_tested(table) == first for table in recipe.stages]
        run.progress.stages = [_cut(stage, same) for stage, same in zip(run.progress.stages, again, strict=True)]
        for index, stage in enumerate(run.progress.stages):
            run.progress.index, run.progress.entered = index, False
            failures.kept.clear()
            try:
                try:
                    _play(run, asked[index], failures)
                except AllFailedError:
                    failures.judge("rollout")
            except (StalledError, FloatingPointError):  # maybe for want of learning, as what is not judged so
                pass
            except TooLongError:  # which the run would find anyway
                raise
            except Exception as error:
                error.add_note(NOTE.format(stage.name))
                raise
            for problem in run.ctx.problems:
                logging.getLogger("shuhari").warning("stage %r, rehearsed: %s", stage.name, problem)
            for told in _describe_reading(given[index], run.ctx.models):
                if told not in read:
                    read.add(told)
                    logging.getLogger("shuhari").info("%s", told)
            if told := advise_engine(given[index], asked[index], run.ctx.models):
                logging.getLogger("shuhari").info("stage %r: %s", stage.name, told)


def _describe_reading(stage: Components, models: Mapping[str, Model]) -> list[str]:
    """Return how models read the prompts of a stage's task: see `wording.describe_reading`."""
    problems = read_first(stage.task.problems("train"), 1)
    return describe_reading(models, problems[0].prompt) if problems else []


class _Failures:
    """Errors of user code in a rehearsal: errors in `UNSAID` are raised; errors of rollouts and environments of a stage
    are kept."""

    def __init__(self) -> None:
        self.kept: list[BaseException] = []

    def __call__(self, what: str, error: BaseException) -> None:
        if isinstance(error, UNSAID):
            raise error
        if what in ("failed_rollouts", "errors"):
            self.kept.append(error)

    def judge(self, who: str) -> None:
        """Raise ContractError if each failure in a stage in which all have failed is an error of the code. An error
        about None may come from something missing in an answer, and does not count."""
        if self.kept and all(isinstance(e, CODE) and "NoneType" not in str(e) for e in self.kept):
            told = dict.fromkeys(f"{type(e).__name__}: {e} ({_find_place(e)})" for e in self.kept)
            raise ContractError(f"every {who} failed by an error of the code: {'; '.join(told)}") from self.kept[0]


def _find_place(error: BaseException) -> str:
    """Return the place at which an error was raised: the innermost line outside of the library, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if not Path(f.filename).is_relative_to(LIBRARY)), frames[-1])
    return f"{last.filename}, line {last.lineno}"


def open_rehearsed(
    recipe: Recipe,
    path: Path | None = None,
    *,
    init: Mapping[str, Any] = EMPTY,
    rehearsal: bool = True,
    warn: bool = True,
    **known: Any,
) -> Run:
    """Open a run as `open_run` does, and rehearse it if it has made no step, unless `rehearsal` is false. warn: whether
    to log schedules that do not fit their budget, and values that do not fit a trained model; they are logged once the
    recipe is known to have no mistake."""
    run = open_run(recipe, path, init=init, **known)
    with ExitStack() as failed:
        failed.push(run)
        for problem in list_misfits(recipe) if warn else ():
            logging.getLogger("shuhari").warning("%s", problem)
        new = not (run.ctx.step or run.progress.entered)
        if new:
            refuse_inherited_rates(recipe, run.progress.stages)
        for problem in (*list_unfit(recipe, run.progress.stages), *list_slow(recipe)) if warn and new else ():
            logging.getLogger("shuhari").warning("%s", problem)
        if rehearsal and new:
            rehearse(recipe, init)
        failed.pop_all()
    return run


def make_small(recipe: Recipe) -> Recipe:
    """Return the recipe with buffers of a few rows and two lanes in this process. Models and samples per problem stay,
    as components may depend on them."""
    tree: dict[str, Any] = deepcopy(dict(recipe.tree))
    for table in (tree, *tree.get("stage", {}).values()):
        rollout = table.get("rollout", {})
        for key in ("workers", "ring"):
            rollout.pop(key, None)
        use = rollout.get("use", tree.get("rollout", {}).get("use", USE["rollout"]))
        lanes = declared("rollout", use, "unit") == "decision"
        for key, most in (("lanes", 2), ("random", 8)):
            cap(rollout, (key,), most)
        for owner in (table, *table.get("learner", {}).values()):
            if isinstance(owner, dict) and isinstance(owner.get("buffer"), dict):
                cap_buffer(owner["buffer"], lanes=lanes, size=PROBLEMS)
    return Recipe(recipe.name, tree, recipe.sources)


def _describe_tested(stage: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a stage's evaluation depends on, apart from when it is due."""
    return {**stage.get("evaluate", EMPTY), "every": 0}, stage.get("task"), stage.get("rollout"), stage.get("reward")


def _cut(stage: Components, measured: bool) -> Components:
    """Return the stage with answers of a few tokens, and two held-out problems; none if they are `measured` anyway, and
    then no `stop_when`, which the run itself checks by what it measures. Fewer still for a loaded model, which may be
    large."""
    evaluate = None if measured else stage.evaluate
    loaded = any(role.model is not None and ability(role.model, "path") for role in stage.models.values())
    most, problems = (FEW, 1) if loaded else (TOKENS, PROBLEMS)
    if evaluate is not None:
        ways = {k: replace(way, n=min(way.n, problems), samples=min(way.samples, problems),
                           sampling=_shorten(way.sampling, most)) for k, way in evaluate.more.items()}  # fmt: skip
        few = {name: min(getattr(evaluate, name), problems) for name in ("n", "samples", "watch")}
        short = {"max_steps": TOKENS} if "max_steps" in stage.evaluation_rollout.accepts else {}
        settings, sampling = {**evaluate.settings, **short}, _shorten(evaluate.sampling, most)
        evaluate = replace(evaluate, **few, k=(), more=ways, sampling=sampling, settings=settings)
    stand_in = ability(stage.engine, "stand_in")
    engine = stage.engine if stand_in is None else stand_in()
    stop = None if measured else stage.stop
    return replace(stage, sampling=_shorten(stage.sampling, most), evaluate=evaluate, engine=engine, stop=stop)


def _shorten(sampling: Sampling | None, most: int) -> Any:
    return sampling and replace(sampling, max_new=min(sampling.max_new, most))


def _play(run: Run, max_new: int, failures: _Failures) -> None:
    """Play the step of a stage as `loop` does, once, without filling its buffers any further."""
    run.enter_stage()
    with notice_memory(run.ctx, run.stage.list_memories()):
        _learn(run, max_new, failures)
    run.ctx.in_flight.drop()


def _learn(run: Run, max_new: int, failures: _Failures) -> None:
    if want := run.wanted():
        _check_room(run, max_new)
        with run.ctx.phase("collect", run.rounds):
            with notice_draws(run.ctx, "what collects (curriculum, rollout, environment, reward)"):
                batch = run.collect(want)
            if all(
                t.status is Status.ERROR
                for group in run.ctx.latest
                for t in group
            ):
                failures.judge("environment")
            batch = run.apply(run.stage.collect, batch, call=_call_watched)
            with keep_columns(batch, "a component that observes what was collected"):
                run.tell(Collected(batch, tuple(run.ctx.latest)))
        if run.meter.means().get("rollout/ungraded") == 1.0:
            _check_failures(run.ctx.problems)
            run.ctx.problems.append("no sample was graded: every reward was None or NaN")
    for name, learner in run.stage.learners.items():
        for batch in run.draws(name, learner) if not learner.buffer.wanted() else ():
            batch = run.apply(learner.transforms, batch, learner, call=_call_watched)
            who = f"the update of {name} (its objectives, models, optimisers)"
            with keep_columns(batch, who), notice_draws(run.ctx, who):
                report = learner.update(batch, run.ctx) if len(batch) else None
            if report is not None:
                run.tell(report)
    run.tell(Committed(1))


def _check_failures(problems: list[str]) -> None:
    """Raise ContractError if no sample was graded and all errors of rewards are of types that no better answer changes.
    An error about None may come from something missing in an answer, and does not count."""
    failed = [text for text in problems if text.startswith("failed_graders (reward ")]
    if failed and all(": TypeError: " in text and "NoneType" not in text for text in failed):
        raise ContractError(f"no sample was graded: {'; '.join(failed)}")


def _call_watched(transform: Transform, batch: Batch, ctx: Ctx) -> Batch:
    """Call a transform. Raises ContractError if it draws from a global generator, changes a column of the batch that it
    was given, or the order of the rows."""
    before, generators = copy_columns(batch), generator_states()
    out = call_transform(transform, batch, ctx)
    who = type(transform).__name__
    if generator_states() != generators:
        raise ContractError(f"{who} {DRAWS}")
    if (name := find_changed(batch, before)) is not None:
        raise ContractError(f"{who} changed the column {name!r} of the batch that it was given, {IN_PLACE}")
    if not torch.equal(out["id"].unique_consecutive(), batch["id"].unique_consecutive()):  # repeated ones side by side
        raise ContractError(f"{who} changed the order of the rows: expected them as they came")
    return out


def _check_room(run: Run, max_new: int) -> None:
    """Raise RecipeError if the policy, as loaded, cannot read the first prompts, or not with an answer as long as the
    recipe allows: that length could be reached for none of them."""
    policy, stage = run.ctx.models.get("policy"), run.stage
    if policy is None or not is_text(policy) or is_vector(stage.rollout):
        return
    problems: list[Any] = read_first(stage.task.problems("train"), PROMPTS)
    _check_problems(stage.task, problems)
    prompts = [p.prompt for p in problems]
    texts = [p for p in prompts if isinstance(p, str) or (isinstance(p, tuple) and p and isinstance(p[0], Mapping))]
    if not texts:
        return
    if (limit := ability(policy, "limit")) is None:
        return
    length = min(len(policy.encode(p)) for p in texts)
    at = "rollout.sampling.max_new"
    told = f"in stage {stage.name!r}: the shortest of the first {len(texts)} prompts has {length} tokens"
    if length >= limit:
        raise RecipeError("models.policy", f"it reads {limit} tokens, {told}")
    if length + max_new > limit and at not in stage.defaults:
        most = f"and the policy reads {limit}: expected at most {limit - length}"
        raise RecipeError(at, f"{max_new} {told}, {most}")


def _check_problems(task: Any, problems: list[Any]) -> None:
    """Raise ContractError for what is no problem, and if two problems share an id: they would be counted as one."""
    for i, p in enumerate(problems):
        if not isinstance(p, Problem):
            at = f"{type(task).__name__}: problem {i} of the split 'train'"
            raise ContractError(f"{at} is {p!r:.60}: expected a Problem")
    if wrong := explain_ids(problems, "train"):
        raise ContractError(f"{type(task).__name__}: {wrong}")


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Restore the generators of the whole process afterwards, as user code may draw from them."""
    numbers, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        yield
    np.random.set_state(numbers)  # noqa: NPY002
    random.setstate(plain)
