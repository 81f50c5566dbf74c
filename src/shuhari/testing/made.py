"""A run of components that were made by hand, without a recipe: to train with a class of one's own in a test.

    from shuhari.config.stage import Components, Role
    from shuhari.loop.run import loop
    from shuhari.testing import run_of

    run = run_of(Components(name="mine", budget={"steps": 2}, task=..., models={"policy": Role(model)}, ...))
    reports = list(loop(run))
"""

from __future__ import annotations

from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.loop.run import Run


def run_of(*stages: Components, seed: int = 0, name: str = "made") -> Run:
    """The run of these stages, in order; `loop` trains it. It is checked before it begins as a recipe's is."""
    recipe = Recipe(name, {"seed": seed})
    vars(recipe)["stages"] = list(stages)  # what the recipe would make of its tree
    return Run(recipe)
