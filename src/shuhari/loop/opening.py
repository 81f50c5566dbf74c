"""A run that is on disk, opened as it stood at one of its checkpoints, to be looked at. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shuhari.config.recipe import Recipe, load
from shuhari.loop.resume import restore
from shuhari.loop.run import Run, open_run
from shuhari.store import Run as Stored
from shuhari.store import StoreError


@contextmanager
def open_checkpoint(path: Path, step: int | None = None, recipe: Recipe | None = None) -> Iterator[Run]:
    """The run at `path` as of `step` (None: its last checkpoint), for as long as the context lasts; recipe: its own, if
    it has been read already. It is one process here, whatever workers and learners it was made with. StoreError where
    there is no such checkpoint, CheckpointError where it is damaged."""
    recipe = load(path) if recipe is None else recipe
    recipe = replace(recipe, tree={k: v for k, v in recipe.tree.items() if k != "distributed"})
    tree = Stored(path).load(step)
    if tree is None:
        raise StoreError(f"{path} has no checkpoint yet: train it first")
    with open_run(recipe) as opened:
        restore(opened, tree)
        yield opened
