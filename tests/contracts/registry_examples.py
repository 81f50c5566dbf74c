"""Every component as a recipe has it: what a check of a whole registry takes, without a list of names.

A component that needs settings, other components or a context is taken out of the smallest recipe that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shuhari.config.build import build_stage
from shuhari.config.library import list_names
from shuhari.config.recipe import Recipe, load
from shuhari.config.stage import Components
from shuhari.events import Collected
from shuhari.loop import state
from shuhari.loop.run import Run, open_run
from shuhari.registry import entries, preset
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
    Those that no recipe uses are missing, and so are studies, and what only claims use."""
    packaged = (load(name) for name in list_names())
    recipes = [*more, *(shrink(r) for r in packaged if "study" not in r.tree)]
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


def _size(tree: Any) -> int:
    """How many settings a recipe has."""
    return sum(_size(x) for x in tree.values()) if isinstance(tree, dict) else 1
