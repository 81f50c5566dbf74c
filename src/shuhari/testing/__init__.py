"""Fakes and checks for tests of your own components: a run's context, an engine with scripted answers, batches, and the
suite that every component of this library passes.

    from shuhari.testing import check_recipe, context, groups

    def test_my_transform():
        batch = groups([[1.0, 0.0], [1.0, 1.0]])          # two groups of two answers, with their rewards
        out = MyTransform()(batch, context())
        ...

    def test_my_transform_in_a_run(tmp_path):
        check_recipe("my_recipe.toml", tmp_path)          # a few steps, with every call of every component looked at

Besides `check_recipe` each port has a check of its own, for a component that you have made: its results repeat, come
from named random streams, resume from its `state`, use only the columns that it declares, and have the types of its
port.

    check_transform  check_objective  check_optimiser  check_rule  check_learner           what learns
    check_buffer  check_recording                                                          what is learnt from
    check_task  check_environment  check_environments  check_rollout  check_window         how episodes come about
    check_curriculum  check_engine
    check_reward  check_metric  check_predictor  check_model  check_study  check_analysis  what they are worth, and more

`open_run(recipe)` gives the run of a recipe, `run_of(*stages)` that of components made by hand (`Components`, `Role`),
and `loop(run)` trains it and yields its reports; `check_resumed` stops such a run and resumes it.
"""

from shuhari.config.stage import Components, Role
from shuhari.loop.run import Run, loop, open_run
from shuhari.testing.acting import check_environment, check_environments
from shuhari.testing.batches import groups, transitions
from shuhari.testing.conformance import check_analysis, check_recipe, check_study, watch
from shuhari.testing.context import ScriptedEngine, context
from shuhari.testing.learning import check_learner, check_objective, check_optimiser, check_rule, check_transform
from shuhari.testing.looking import ConformanceError
from shuhari.testing.made import check_resumed, run_of
from shuhari.testing.models import ModelCase, check_model
from shuhari.testing.playing import (
    check_curriculum,
    check_engine,
    check_metric,
    check_predictor,
    check_reward,
    check_rollout,
    check_window,
)
from shuhari.testing.small import shrink
from shuhari.testing.solving import check_task
from shuhari.testing.stored import check_buffer, check_recording

__all__ = [
    "Components", "ConformanceError", "ModelCase", "Role", "Run", "ScriptedEngine", "check_analysis",
    "check_buffer", "check_curriculum", "check_engine", "check_environment", "check_environments", "check_learner",
    "check_metric", "check_model", "check_objective", "check_optimiser", "check_predictor", "check_recipe",
    "check_recording", "check_resumed", "check_reward", "check_rollout", "check_rule", "check_study", "check_task",
    "check_transform", "check_window", "context", "groups", "loop", "open_run", "run_of", "shrink", "transitions",
    "watch",
]  # fmt: skip
