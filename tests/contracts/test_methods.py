"""Every method over every base: it is built, or refused in words; and over a recipe of one's own it trains. A method
comes under these tests by its recipe."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.build import build_stage
from shuhari.config.library import list_names
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, find_usual_base, load, read_method
from shuhari.desk.api import train
from shuhari.loop.checks import check_stages
from shuhari.testing import shrink

METHODS = [name for name in list_names() if find_usual_base(name)]
BASES = [name for name in list_names() if name.startswith("baselines/")]
PAIRS = [
    ("rlvr/kl_cov", "curriculum/mopps"),
    ("rlvr/clip_cov", "curriculum/ghpo"),
    ("rlvr/pacs", "curriculum/dots"),
]
TINY = {"models.policy.hidden": 16, "models.policy.heads": 2, "models.policy.layers": 1, "evaluate.n": 4}


@cache
def base_of(name: str) -> Recipe:
    return load(name)


def built(recipe: Recipe) -> None:
    shared: dict[str, Any] = {}
    check_stages([build_stage(table, shared) for table in recipe.stages])


@pytest.mark.parametrize("name", METHODS)
def test_over_every_baseline_it_is_built_or_refused_in_words(name: str) -> None:
    change, refused = read_method(name), []
    for base in BASES:
        try:
            built(base_of(base).with_methods([change]))
        except RecipeError as error:
            refused.append(error)
    assert all(len(error.problem) > 20 for error in refused) and len(refused) < len(BASES) - 2


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of somebody's own: a file of problems, a small Hugging Face directory, names of their choice."""
    at = tmp_path_factory.mktemp("own")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "solution": str(a + b)} for a in range(10) for b in range(10)]
    (at / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shape = {**TINY, "models.policy.architecture": "llama"}
    train("baselines/sft_arithmetic", at / "start", steps=1, **shape).policy.save(at / "model")
    (at / "own.toml").write_text(f"""steps = 2
task = {{name = "file/{at}/sums.jsonl", test_fraction = 0.2}}
models.policy = {{use = "causal", path = "{at}/model"}}
rollout = {{n = 8, sampling.max_new = 6}}
reward.odd.use = "shuhari.testing.small.oddness"
buffer.size = 4
collect.oreal = {{use = "advantage"}}
evaluate = {{n = 8, every = 1, samples = 2}}
[part.actor]
trains = ["policy"]
minibatches = 2
optimiser.lr = 1e-3
terms.loss = {{use = "clip"}}
""")
    return at / "own.toml"


def shorten(recipe: Recipe) -> Recipe:
    """Where a method brings a stage of its own, which teaches for hundreds of steps, a few show that it trains."""
    return recipe.with_settings({f"stage.{x['name']}.steps": 4 for x in recipe.stages if x.get("steps", 0) > 4})


@pytest.mark.parametrize("base", ["own", "baselines/quickstart", "baselines/ppo_cartpole"])
@pytest.mark.parametrize("name", METHODS)
def test_over_a_recipe_of_ones_own_it_trains_or_is_refused(name: str, base: str, own: Path, tmp_path: Path) -> None:
    try:
        recipe = shorten(load(own, methods=[name])) if base == "own" else shrink(load(base, methods=[name]))
        built(recipe)
    except RecipeError:
        assert base == "baselines/ppo_cartpole" or name == "engine/srl"  # which are not of text alike
        return
    run = train(recipe, tmp_path / "run")
    assert run.metrics["step"][-1] == recipe.total


@pytest.mark.parametrize("name", ["rlvr/remix", "data/a_lol"])
def test_a_whole_recipe_trains_on_problems_and_a_model_of_ones_own(name: str, own: Path, tmp_path: Path) -> None:
    """What cannot be laid over a recipe of one's own is given its task and its model instead."""
    mine = load(own).tree
    settings = {"remove": ["task", "evaluate", "models.policy"], "task": mine["task"], "evaluate": mine["evaluate"]}
    settings |= {"models.policy": mine["models"]["policy"], "rollout.n": 4}
    stages = load(name).tree["stage"]
    settings |= {f"stage.{stage}.steps": 1 for stage in stages}
    settings |= {f"stage.{stage}.part.policy.optimiser.lr": 1e-5 for stage in stages}  # or it is refused
    recipe = load(name, settings=settings)
    assert train(recipe, tmp_path / "run").metrics["step"][-1] == recipe.total == len(recipe.stages)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_train_together_and_go_on_where_they_stopped(pair: tuple[str, str], own: Path, tmp_path: Path) -> None:
    recipe = load(own, methods=pair)
    assert list(recipe.tree["laid"]) == list(pair) and recipe.name == "own+" + "+".join(
        n.rpartition("/")[2] for n in pair
    )
    whole = train(recipe, tmp_path / "a")
    again = load(tmp_path / "a")  # as the run has stored it
    assert again.tree["laid"] == recipe.tree["laid"]
    other = train(again, tmp_path / "b")
    clock = ("seconds", "speed", "wall")
    told = [{k: v for k, v in r.items() if not any(c in k for c in clock)} for r in whole.reports]
    assert told == [{k: r[k] for k in t} for t, r in zip(told, other.reports, strict=True)]


def test_two_of_one_loss_are_refused_together(own: Path) -> None:
    with pytest.raises(RecipeError, match=r"rlvr/kl_cov sets part\.policy\.terms\.loss\.use = 'kl_cov' and rlvr/lp"):
        load(own, methods=["rlvr/kl_cov", "rlvr/lp_reg"])
    decided = load(own, ["part.policy.terms.loss.use=kl_cov"], methods=["rlvr/kl_cov", "rlvr/lp_reg"])
    assert decided.stages[-1]["part"]["actor"]["terms"]["loss"]["use"] == "kl_cov"
