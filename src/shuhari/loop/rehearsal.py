"""The rehearsal: before step 0 every stage of a run is played once, small, and forgotten.

Two problems (of lanes of environments a few decisions) go through a stage's rollout, graders, transforms, buffers and
losses, with models, components and random streams of their own. So a mistake of a user's code or data in a later stage
is found before the first stage has cost anything, and nothing of the run knows that it was rehearsed: neither its
weights, its random streams and its ledger, nor its store. What it calls is called for real: rewards, tools, judges,
environments.

It refuses nothing that may only be its own smallness: numbers that are not finite, filters that let nothing pass, and
what graders and rollouts raise over answers that are short and of a policy that has not learnt yet; of the last a line
in the log tells. Left out: runs of studies and claims; workers; how an episode ends.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.config.recipe import Recipe
from shuhari.config.smaller import cap, cap_buffer
from shuhari.config.stage import Components
from shuhari.data import EMPTY, Sampling, StalledError
from shuhari.events import Collected, Committed
from shuhari.loop.collect import AllFailedError
from shuhari.loop.run import Run, open_run

PROBLEMS = 2
TOKENS = 16  # of an answer, at most; and decisions of a held-out episode
NOTE = "in stage {!r}, as it was rehearsed before the first step (--no-rehearsal leaves that out)"
UNSAID = (NameError, ImportError)  # what code of a user's raises whatever an answer says


def rehearse(recipe: Recipe, init: Mapping[str, Any] = EMPTY) -> None:
    """Play each stage of a recipe once. Raises what its components raise, with a note that names the stage."""
    with _kept_generators(), Run(make_small(recipe), init) as run:
        run.ctx.fatal = UNSAID
        first = _describe_tested(recipe.stages[0])  # the run itself measures that before anything else
        again = [_describe_tested(table) == first for table in recipe.stages]
        run.progress.stages = [_cut(stage, same) for stage, same in zip(run.progress.stages, again, strict=True)]
        for index, stage in enumerate(run.progress.stages):
            run.progress.index, run.progress.entered = index, False
            try:
                _play(run)
            except (AllFailedError, StalledError, FloatingPointError):  # maybe for want of learning
                pass
            except Exception as error:
                error.add_note(NOTE.format(stage.name))
                raise
            for problem in run.ctx.problems:
                logging.getLogger("shuhari").warning("stage %r, rehearsed: %s", stage.name, problem)


def open_rehearsed(recipe: Recipe, path: Path | None = None, *, init: Mapping[str, Any] = EMPTY, **known: Any) -> Run:
    """`open_run`; one that has made no step is rehearsed."""
    run = open_run(recipe, path, init=init, **known)
    with ExitStack() as failed:
        failed.push(run)
        if not run.ctx.step:
            rehearse(recipe, init)
        failed.pop_all()
    return run


def make_small(recipe: Recipe) -> Recipe:
    """The recipe with buffers of a few rows and two lanes in this process. Models and what is asked of a problem stay:
    components may count on them."""
    tree: dict[str, Any] = deepcopy(dict(recipe.tree))
    for table in (tree, *tree.get("stage", {}).values()):
        rollout = table.get("rollout", {})
        for key in ("workers", "ring"):
            rollout.pop(key, None)
        lanes = "lanes" in rollout or rollout.get("use") == "vector" or "lanes" in tree.get("rollout", {})
        for key, most in (("lanes", 2), ("random", 8)):
            cap(rollout, (key,), most)
        for owner in (table, *table.get("learner", {}).values()):
            if isinstance(owner, dict) and isinstance(owner.get("buffer"), dict):
                cap_buffer(owner["buffer"], lanes=lanes, size=PROBLEMS)
    return Recipe(recipe.name, tree, recipe.sources)


def _describe_tested(stage: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a stage's evaluation depends on, but when it is due."""
    return {**stage.get("evaluate", EMPTY), "every": 0}, stage.get("task"), stage.get("rollout"), stage.get("reward")


def _cut(stage: Components, measured: bool) -> Components:
    """With answers of a few tokens, and two held-out problems; none where they are `measured` anyway."""
    evaluate = None if measured else stage.evaluate
    if evaluate is not None:
        ways = {k: replace(way, n=0, samples=0, sampling=_shorten(way.sampling)) for k, way in evaluate.more.items()}
        few = {name: min(getattr(evaluate, name), PROBLEMS) for name in ("n", "samples", "watch")}
        short = {"max_steps": TOKENS} if "max_steps" in stage.evaluation_rollout.accepts else {}
        settings, sampling = {**evaluate.settings, **short}, _shorten(evaluate.sampling)
        evaluate = replace(evaluate, **few, k=(), more=ways, sampling=sampling, settings=settings)
    return replace(stage, sampling=_shorten(stage.sampling), evaluate=evaluate)


def _shorten(sampling: Sampling | None) -> Any:
    return sampling and replace(sampling, max_new=min(sampling.max_new, TOKENS))


def _play(run: Run) -> None:
    """The step of a stage: what `loop` does, once, and without a buffer's going on to be filled."""
    run.enter_stage()
    if want := run.wanted():
        with run.ctx.phase("collect", run.rounds):
            batch = run.collect(want)
            run.tell(Collected(run.apply(run.stage.collect, batch), tuple(run.ctx.latest)))
    for name, learner in run.stage.learners.items():
        for batch in run.draws(name, learner) if not learner.buffer.wanted() else ():
            batch = run.apply(learner.transforms, batch, learner)
            if len(batch):
                run.tell(learner.update(batch, run.ctx))
    run.tell(Committed(1))
    run.ctx.in_flight.drop()


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Leave the generators of the whole process as they were: code of a user's own may draw from them."""
    numbers, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        yield
    np.random.set_state(numbers)  # noqa: NPY002
    random.setstate(plain)
