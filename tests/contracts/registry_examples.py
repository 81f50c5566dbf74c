"""Every component as a recipe has it: what a check of a whole registry takes, without a list of names.

A component that needs settings, other components or a context is taken out of the smallest recipe that uses it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from buildable import list_buildable
from shuhari.config.build import build_stage
from shuhari.config.recipe import Recipe, load
from shuhari.config.stage import Components, list_roles
from shuhari.data import Sampling
from shuhari.events import Collected
from shuhari.kernel import state
from shuhari.kernel.recall import with_memory
from shuhari.kernel.registry import entries, preset
from shuhari.loop.run import Run, open_run
from shuhari.ports import is_text
from shuhari.testing import ModelCase
from shuhari.testing.models import pick_rows
from shuhari.testing.small import shrink


@dataclass(frozen=True)
class Example:
    """Where a component is used: `recipe`, the number of its `stage`, and its `path` below the stage."""

    recipe: Recipe
    stage: int
    path: str
    presets: tuple[tuple[str, Any], ...] = ()

    @contextmanager
    def begin(self) -> Iterator[tuple[Any, Run]]:
        """A context manager that gives the component, and a run that has begun the stage where it is used."""
        with open_run(self.recipe) as run:
            for stage in run.progress.stages[: self.stage + 1]:
                run.install(stage)
            run.progress.index, run.progress.entered = self.stage, True
            run.ctx.count = run.progress.count()
            run.ctx.serve()
            found = dict(state.walk(run.stage.list_memories()))[self.path]
            yield (replace(found, **dict(self.presets)) if self.presets else found), run


def find_examples(more: Iterable[Recipe] = ()) -> dict[tuple[str, str], Example]:
    """(kind, name) -> the smallest use of that component in the packaged recipes, made small (`shrink`), and in `more`.
    Those that no recipe uses are missing, and so are studies, and what only claims use; of a study it is what one of
    its runs uses."""
    packaged = (load(name) for name in list_buildable())
    recipes = [*more, *(shrink(replace(r, tree={k: v for k, v in r.tree.items() if k != "study"})) for r in packaged)]
    uses: dict[type, Example] = {}
    for recipe in sorted(recipes, key=lambda r: _size(r.tree)):
        shared: dict[str, Any] = {}
        stages: list[Components] = [build_stage(table, shared) for table in recipe.stages]
        for i, stage in enumerate(stages):
            for path, component in state.walk(stage.list_memories()):
                uses.setdefault(type(component), Example(recipe, i, path))
    return {
        (kind, name): replace(uses[cls], presets=tuple(preset(kind, name).items()))
        for (kind, name), cls in sorted(entries().items())
        if cls in uses
    }


def draw_batch(run: Run, learner: str = "main") -> Any:
    """The first batch that a learner of a run that has begun gets, with its transforms applied."""
    run.rounds = 0
    while want := run.wanted():
        with run.ctx.phase("collect", run.rounds):
            run.tell(Collected(run.apply(run.stage.collect, run.collect(want)), tuple(run.ctx.latest)))
    mine = run.stage.learners[learner]
    return next(run.apply(mine.transforms, batch, mine) for batch in run.draws(learner, mine))


class Composed:
    """A model of models with those that it is made of, as one: the suite moves, saves and copies all their weights."""

    def __init__(self, made: Any, **parts: Any) -> None:
        self.made, self.parts = made, parts
        self.kind = made.kind

    def build(self, task: Any) -> None:
        for part in self.parts.values():
            part.build(task)
        self.made.build(task)
        self.made.bind(self.parts)
        self.module = self._join()

    def __deepcopy__(self, memo: Any) -> Any:
        twin = Composed(*copy.deepcopy((self.made,), memo), **copy.deepcopy(self.parts, memo))
        twin.made.bind(twin.parts)
        twin.module = twin._join()
        return twin

    def _join(self) -> Any:
        return torch.nn.ModuleDict({**{n: p.module for n, p in self.parts.items()}, "made": self.made.module})

    def __call__(self, batch: Any) -> Any:
        return self.made(batch)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Any) -> Any:
        return self.made.sample(contexts, sampling, noise=noise)


def make_case(name: str, model: Any, run: Run) -> ModelCase:
    """A policy as the recipe of a run has it, as a case of the model suite: built for the task of the recipe, asked for
    what its rollouts asked for, in what they saw, over and over."""
    roles = run.stage.models

    def find_model(role: str) -> Any:
        found = roles[role]
        return found.model if found.model is not None else find_model(found.same_as or found.init)

    def make(of: Any = model) -> Any:
        parts = {role: make(find_model(role)) for role in list_roles(of)}
        return Composed(replace(of), **parts) if parts else replace(of)

    if is_text(model):
        source = run.ctx.task.problems("train")
        seen: Any = [run.ctx.encode(source[i].prompt) for i in range(16)]
    else:
        with run.ctx.phase("collect", 0):
            batch = run.collect(run.wanted() or 16)
        batch = batch.take(batch["mask"].any(1).nonzero().squeeze(1))
        names = [n for n in batch.names() if n.partition("/")[0] == "context"]
        seen = {n.partition("/")[2]: batch[n] for n in names}
        seen = with_memory(seen.get("", seen), batch["memory"][:, 0] if "memory" in batch else None)
    few = len(seen) if is_text(model) else len(batch)

    def contexts(n: int) -> Any:
        return pick_rows(seen, [i % few for i in range(n)] if is_text(model) else torch.arange(n) % few)

    now: Sampling = run.ctx.now(run.stage.sampling)
    sampling = replace(now, greedy=False, max_new=min(4, now.max_new), epsilon=min(0.5, now.epsilon))
    return ModelCase(
        name, make, run.stage.task, contexts, (sampling,), shake=0.1, nudge=0.003 if is_text(model) else 0.1,
        rows=1_000, crowd=5_000, mixture_kl=False,
    )  # fmt: skip


def _size(tree: Any) -> int:
    """How many settings a recipe has."""
    return sum(_size(x) for x in tree.values()) if isinstance(tree, dict) else 1
