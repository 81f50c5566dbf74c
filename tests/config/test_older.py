"""A run whose recipe is of format 1, as shuhari wrote it before `remove`: it is read, and goes on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import shuhari
from shuhari.config.older import translate
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.api import read_trained
from shuhari.loop.study import train
from shuhari.store import Run, Store

NOW = """threads = 1
steps = 4
task = {name = "arithmetic", kind = "carry", digits = 1}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2}
models.reference.init = "policy"
rollout = {n = 4, sampling.max_new = 3}
buffer.size = 2
collect.advantage.scale = "batch"
transform.modulate.use = "confident_errors"
part.policy = {terms.clip.high = 0.28, terms.divergence.weight = 0.01, optimiser.lr = 1e-2}
evaluate = {every = 2, n = 4}
store.every = 1
[[stage]]
name = "warm-up"
steps = 2
remove = ["buffer", "collect", "transform.modulate", "models.reference", "evaluate", "part.policy.terms.clip",
          "part.policy.terms.divergence"]
buffer = {use = "demos", size = 4}
part.policy.terms.nll.stream = "ce"
[[stage]]
name = "rl"
"""
THEN = """format = 1
name = "mine"
threads = 1
steps = 4

[task]
name = "arithmetic"
kind = "carry"
digits = 1

[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2

[models.reference]
init = "policy"

[rollout]
n = 4

[rollout.sampling]
max_new = 3

[buffer]
size = 2

[collect.advantage]
scale = "batch"

[transform.modulate]

[part.policy.terms.clip]
high = 0.28

[part.policy.terms.divergence]
weight = 0.01

[part.policy.optimiser]
lr = 0.01

[evaluate]
every = 2
n = 4

[store]
every = 1

[[stage]]
name = "warm-up"
steps = 2
evaluate = false

[stage.buffer]
replace = true
use = "demos"
size = 4

[stage.collect]
replace = true

[stage.transform]
modulate = false

[stage.models]
reference = false

[stage.part.policy.terms]
clip = false
divergence = false

[stage.part.policy.terms.nll]
stream = "ce"

[[stage]]
name = "rl"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after four of its six steps, with the recipe that an earlier version wrote."""
    (tmp_path / "mine.toml").write_text(NOW)
    sitting = train(load(tmp_path / "mine.toml"), tmp_path / "run")
    assert next(r for r in sitting if r["step"] == 4)
    sitting.close()  # type: ignore[attr-defined]
    store: Store = Store.open(tmp_path / "run")
    store.set(recipe=THEN)
    store.write_text("recipe.toml", THEN)
    store.close()
    return tmp_path / "run"


def test_it_does_what_the_language_of_today_says(tmp_path: Path, run: Path) -> None:
    ours, theirs = load(tmp_path / "mine.toml"), load(run)
    assert theirs.stages == ours.stages and theirs.tree["format"] == 2
    assert translate(tomllib.loads(NOW) | {"format": 2}) == tomllib.loads(NOW) | {"format": 2}


def test_it_is_shown_loaded_and_evaluated(run: Path) -> None:
    assert Run(run).recipe["name"] == "mine" and "greedy" in read_trained(run).evaluate(4)
    assert shuhari.load(run)


@pytest.mark.parametrize("by", ["folder", "recipe"])
def test_it_goes_on(tmp_path: Path, run: Path, by: str) -> None:
    recipe = load(run if by == "folder" else tmp_path / "mine.toml")
    assert [r["step"] for r in train(recipe, run)] == [5, 6]


def test_another_recipe_is_another_still(tmp_path: Path, run: Path) -> None:
    other = load(tmp_path / "mine.toml", settings={"remove": ["stage.rl.transform"]})
    with pytest.raises(RecipeError, match=r"another recipe .*stage\.rl\.remove"):
        list(train(other, run))


def test_what_no_run_has_written_is_told_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(THEN.replace("format = 1\n", ""))
    with pytest.raises(RecipeError, match=r'stage\.warm-up\.evaluate: false .*remove = \["evaluate"\]'):
        load(tmp_path / "own.toml")
    (tmp_path / "own.toml").write_text('extends = "baselines/grpo"\ntask.replace = true')
    with pytest.raises(RecipeError, match=r'^task: replace = true .*remove = \["task"\] at the top'):
        load(tmp_path / "own.toml")
