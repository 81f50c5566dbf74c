"""Every registered component of the library, by the check of its port: out of the smallest recipe that uses it.

A component comes under these tests by standing in a packaged recipe or in a file of `tests/runs`; nothing is listed
here. Transforms, objectives, rewards and metrics are looked at in a run.
"""

from __future__ import annotations

from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registry_examples import Example, draw_batch

from shuhari.kernel.abilities import ability
from shuhari.kernel.registry import entries
from shuhari.loop.run import loop, open_run
from shuhari.ports import is_text, is_vector
from shuhari.testing import (
    check_analysis,
    check_buffer,
    check_curriculum,
    check_engine,
    check_environment,
    check_environments,
    check_learner,
    check_optimiser,
    check_predictor,
    check_recording,
    check_rollout,
    check_rule,
    check_task,
    watch,
)

pytestmark = pytest.mark.timeout(300)  # all recipes are read before the first test
Found = dict[tuple[str, str], Example]
ELSEWHERE = {"vllm", "openai"}  # engines whose model another process serves, which tests/engines has
OPTIONAL = {"reasoning-gym": "reasoning_gym", "minari": "minari"}  # component -> the library that it cannot do without


def of(kind: str) -> list[str]:
    """The registered names of a kind, of those that are installed."""
    ours = (name for (k, name), cls in entries().items() if k == kind and cls.__module__.startswith("shuhari."))
    return sorted(name for name in ours if find_spec(OPTIONAL.get(name, "os")) and name not in ELSEWHERE)


@pytest.mark.parametrize("name", of("optimiser"))
def test_optimiser(name: str, found: Found) -> None:
    with found["optimiser", name].begin() as (component, _):
        check_optimiser(component, terms=[name for name, must in ability(component, "terms").items() if must])


@pytest.mark.parametrize("name", of("follow"))
def test_follow(name: str, found: Found) -> None:
    with found["follow", name].begin() as (component, run):
        check_rule(component)
        check_rule(component, run.ctx.models)


@pytest.mark.parametrize("name", of("curriculum"))
def test_curriculum(name: str, found: Found) -> None:
    with found["curriculum", name].begin() as (component, run):
        check_curriculum(component, run.ctx)


@pytest.mark.parametrize("name", of("predictor"))
def test_predictor(name: str, found: Found) -> None:
    with found["predictor", name].begin() as (component, run):
        check_predictor(component, run.ctx)


SHORT = {"steps": 20, "worlds": 1, "draws": 2}  # settings of analyses that take long by themselves


@pytest.mark.parametrize("name", of("analysis"))
def test_analysis(name: str) -> None:
    cls: Any = entries()["analysis", name]
    check_analysis(cls(**{f.name: SHORT[f.name] for f in fields(cls) if f.name in SHORT}))


@pytest.mark.parametrize("name", of("buffer"))
def test_buffer(name: str, found: Found) -> None:
    with found["buffer", name].begin() as (component, run):
        check_buffer(component, run.ctx, unit="decision" if is_vector(run.stage.rollout) else "group")


@pytest.mark.parametrize("name", of("recording"))
def test_recording(name: str, found: Found) -> None:
    with found["recording", name].begin() as (component, run):
        check_recording(component, run.stage.task)


@pytest.mark.parametrize("name", of("task"))
def test_task(name: str, found: Found) -> None:
    with found["task", name].begin() as (component, run):
        check_task(component, apart=getattr(component, "held_out", 1) != 0, ctx=run.ctx)  # some hold nothing out
        if (make := ability(component, "make")) is not None:
            check_environment(make())


@pytest.mark.parametrize("name", of("environments"))
def test_environments(name: str, found: Found) -> None:
    with found["environments", name].begin() as (component, run):
        check_environments(component, run.ctx)


@pytest.mark.parametrize("name", of("rollout"))
def test_rollout(name: str, found: Found) -> None:
    with found["rollout", name].begin() as (component, run):
        check_rollout(component, run.ctx)


@pytest.mark.parametrize("name", of("engine"))
def test_engine(name: str, found: Found) -> None:
    with found["engine", name].begin() as (component, run):
        source, model = run.ctx.task.problems("train"), run.ctx.models["policy"]
        prompts = [run.ctx.encode(source[i].prompt) for i in range(4)]
        assert is_text(model) or isinstance(prompts[0], int | np.ndarray)
        check_engine(component, run.ctx.models, prompts)


@pytest.mark.parametrize("name", of("learner"))
def test_learner(name: str, found: Found) -> None:
    with found["learner", name].begin() as (component, run):
        check_learner(component, draw_batch(run), run.ctx)


CALLED = [(kind, name) for kind in ("transform", "objective", "reward", "metric") for name in of(kind)]
Called = dict[int, set[type]]


@pytest.fixture(scope="module")
def called() -> Called:
    """The classes that the run of a recipe has called, looked at; each recipe is run once."""
    return {}


@pytest.mark.parametrize(("kind", "name"), CALLED, ids=lambda x: str(x))
def test_calls_in_a_run(kind: str, name: str, found: Found, called: Called, tmp_path: Path) -> None:
    recipe = found[kind, name].recipe
    if id(recipe) not in called:
        run = open_run(recipe, tmp_path)
        with watch(run) as classes:
            for _ in loop(run):
                pass
        called[id(recipe)] = classes
    assert entries()[kind, name] in called[id(recipe)], "the run never called it"


def test_each_kind_is_checked_or_cannot_be() -> None:
    """By hand: a model has its own suite; the others drive runs, are parts of others, or are read by claims alone."""
    tested = {name.removeprefix("test_") for name in globals()}
    kinds = {kind for kind, _ in entries()} - {kind for kind, _ in CALLED}
    assert kinds - tested == {"model", "study", "quantity", "world", "run_analysis"}
