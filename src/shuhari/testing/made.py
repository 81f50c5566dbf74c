"""A run of components that were made by hand, without a recipe: to train with a class of one's own in a test.

    from shuhari.testing import Components, Role, loop, run_of

    run = run_of(Components(name="mine", budget={"steps": 2}, task=..., models={"policy": Role(model)}, ...))
    reports = list(loop(run))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.data import Info
from shuhari.kernel import state
from shuhari.loop.resume import memories, restore, tree_of
from shuhari.loop.roles import weights
from shuhari.loop.run import Run, loop
from shuhari.store.codec import dumps, loads
from shuhari.testing.compare import differences, to_plain
from shuhari.testing.looking import ConformanceError


def run_of(*stages: Components, seed: int = 0, name: str = "made") -> Run:
    """The run of these stages, in order; `loop` trains it. It is checked before it begins as a recipe's is."""
    recipe = Recipe(name, {"seed": seed})
    vars(recipe)["stages"] = list(stages)  # what the recipe would make of its tree
    return Run(recipe)


def check_resumed(make: Callable[[], Run], at: int = 1) -> None:
    """Train the run that `make` gives to its end, and another from what was kept of the first after step `at`: weights,
    memories of components and the last report must be the same bits. Raises ConformanceError, which names what is not.
    """
    run, again = make(), make()
    reports = loop(run)
    for _ in range(at):
        next(reports)
    restore(again, loads(dumps(tree_of(run))))
    ends = [_describe_end(run, list(reports)), _describe_end(again, list(loop(again)))]
    if found := differences(*ends):
        listed = "\n  ".join(found[:10])
        raise ConformanceError(f"the run that was resumed after step {at} ended otherwise:\n  {listed}")


def _describe_end(run: Run, reports: list[Info]) -> Any:
    last = {k: v for k, v in reports[-1].items() if k != "seconds"}
    return to_plain({"weights": weights(run.ctx.models), "memories": state.memory(memories(run)), "report": last})
