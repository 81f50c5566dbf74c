"""Set-up of a run's workers, and the data that they are built from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuhari.config.overlay import RecipeError, format_path, walk_leaves
from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.distributed.crew import Crew
from shuhari.distributed.hands import LOG
from shuhari.kernel import registry
from shuhari.kernel.begin import list_places
from shuhari.loop.outside import compute_digests, find_outside
from shuhari.ports.hooks import ability

if TYPE_CHECKING:
    from shuhari.distributed.hands import Yard
    from shuhari.loop.context import Context


def hire(recipe: Recipe, stages: Sequence[Components], ctx: Context, yard: Yard | None = None) -> None:
    """Give a run the workers of its recipe (`[distributed] workers`), as `ctx.crew`; they are closed with it. `yard`:
    their source, by default Ray. Raises RecipeError for what no other process can know."""
    given = stages[0].distributed
    if not given.workers:
        return
    if any(ability(stage.engine, "virtual") for stage in stages):
        LOG.warning("[distributed] workers = %d: time is virtual, so the run plays its groups itself", given.workers)
        return
    if not given.address and given.workers > (cores := os.cpu_count() or 1):
        LOG.warning("[distributed] workers = %d on %d cores: each is a process with all models", given.workers, cores)
    begin = describe_run(recipe, stages, ctx, given.workers)
    if yard is None:
        from shuhari.distributed.rays_apart import open_yard

        yard = open_yard(given.workers, given.address)
    ctx.crew = Crew(yard, given.workers, stages, begin)
    ctx.opened.hold(ctx.crew)


def describe_run(recipe: Recipe, stages: Sequence[Components], ctx: Context, workers: int) -> dict[str, Any]:
    """Return everything that a worker needs to build the components of a run, as plain data."""
    held: dict[str, str] = {}
    for path, value in walk_leaves(recipe.tree):
        for text in value if isinstance(value, list) else [value]:
            thing = registry.held(text) if isinstance(text, str) else None
            if isinstance(thing, str | Path):
                held[text] = str(thing)
            elif thing is not None and text.startswith(registry.GIVEN):
                how = "put it into a file and name it as file.py:name, or leave workers at 0"
                message = f"{format_path(path)} = {text!r} is an object of this process, which no worker can import"
                raise RecipeError("distributed.workers", f"{message}: {how}")
    outside = find_outside(recipe, stages)
    digests = compute_digests(outside)
    threads = min(ctx.threads, max(1, (os.cpu_count() or 1) // workers))
    tree = {k: v for k, v in recipe.tree.items() if k not in ("distributed", "claim", "paper")}
    return {"name": recipe.name, "tree": tree, "held": held, "threads": threads, "folder": os.getcwd(),
            "places": list_places(),
            "outside": {name: (str(path.resolve()), digests[name]) for name, path in outside.items()}}  # fmt: skip
