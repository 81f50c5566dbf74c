"""For tests of your own components: a run's context, an engine that gives scripted answers, batches, and the suite that
every component of this library passes.

    from shuhari.testing import check_recipe, context, groups

    def test_my_transform():
        batch = groups([[1.0, 0.0], [1.0, 1.0]])          # two groups of two answers, with their rewards
        out = MyTransform()(batch, context())
        ...

    def test_my_transform_in_a_run(tmp_path):
        check_recipe("my_recipe.toml", tmp_path)          # a few steps, with every call of every component looked at

`check_model` is the suite of models.
"""

from shuhari.testing.batches import groups, transitions
from shuhari.testing.conformance import (
    check_metric,
    check_objective,
    check_recipe,
    check_reward,
    check_transform,
    watched,
)
from shuhari.testing.context import ScriptedEngine, context
from shuhari.testing.made import run_of
from shuhari.testing.models import ModelCase, check_model
from shuhari.testing.small import shrink

__all__ = [
    "ModelCase", "ScriptedEngine", "check_metric", "check_model", "check_objective", "check_recipe", "check_reward",
    "check_transform", "context", "groups", "run_of", "shrink", "transitions", "watched",
]  # fmt: skip
