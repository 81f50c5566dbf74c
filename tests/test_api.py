"""From Python: train, read the metrics, load the policy and act; a method of a user's own, from its example file."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import shuhari
from shuhari.api import default_path
from shuhari.config import recipe
from shuhari.config.overlay import RecipeError
from shuhari.loop.context import Context
from shuhari.models.text.causal import Causal
from shuhari.noise import CounterNoise, keys
from shuhari.store import Run, StoreError

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {"buffer.size": 64, "rollout.lanes": 2, "part.policy.minibatches": 2, "evaluate.n": 2}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_then_load_and_act() -> None:
    seen = []
    run = shuhari.train("baselines/ppo_cartpole", steps=2, progress=seen.append, **TINY)
    assert run.metrics["step"] == [1, 2]
    assert len(seen) == len(run.reports) == 2
    assert run.metrics["policy/loss/clip"][1] == pytest.approx(seen[1]["policy/loss/clip"])
    assert run.summary["after"]["greedy"] > 0
    policy = shuhari.load(run.path)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy.act(observation))
    assert policy.act(np.stack([observation] * 3)).shape == (3,)
    assert policy.act(observation) == run.policy.act(observation)


def test_the_same_call_finds_the_complete_run() -> None:
    first = shuhari.train("baselines/bandit", steps=2)
    again = shuhari.train("baselines/bandit", steps=2)
    assert again.path == first.path
    assert again.metrics == first.metrics


def test_another_recipe_in_the_same_folder_is_refused() -> None:
    shuhari.train("baselines/bandit", "here", steps=2)
    with pytest.raises(RecipeError, match="another recipe"):
        shuhari.train("baselines/bandit", "here", steps=3)


def test_default_folders_tell_settings_and_seeds_apart() -> None:
    plain = recipe.load("baselines/bandit")
    assert default_path(plain) == Path("runs/bandit-s0")
    assert default_path(plain.with_settings({"seed": 3})) == Path("runs/bandit-s3")
    other = default_path(plain.with_settings({"steps": 7}))
    assert other.name.startswith("bandit-s0-")
    assert other == default_path(plain.with_settings({"steps": 7}))


def test_a_run_starts_from_anothers_weights() -> None:
    first = shuhari.train("baselines/bandit", "first", steps=3)
    second = shuhari.train("baselines/bandit", "second", init="first@3", steps=1, **{"part.policy.optimiser.lr": 1e-12})
    np.testing.assert_allclose(*(r.policy.model.module.state_dict()["logits"] for r in (first, second)), atol=1e-6)


def test_where_a_run_started_belongs_to_it() -> None:
    """Given again it goes on; another origin is refused, and has a default folder of its own."""
    for name, seed in (("first", 0), ("other", 1)):
        shuhari.train("baselines/bandit", name, seed=seed, steps=2)
    begun = shuhari.train("baselines/bandit", "run", init="first@2", steps=3)
    assert Run("run").get("init") == "first@2"
    for same in ("first@2", ""):
        assert shuhari.train("baselines/bandit", "run", init=same, steps=3).metrics == begun.metrics
    with pytest.raises(RecipeError, match="started from the weights of first@2, not of other@2"):
        shuhari.train("baselines/bandit", "run", init="other@2", steps=3)
    with pytest.raises(RecipeError, match="first holds a run that started from fresh weights, not of other"):
        shuhari.train("baselines/bandit", "first", init="other", seed=0, steps=2)
    plain = recipe.load("baselines/bandit")
    folders = {default_path(plain, init=i) for i in ("", "first", "other")}
    assert len(folders) == 3 and default_path(plain) in folders
    assert (
        shuhari.train("baselines/bandit", init="other", steps=2).path != shuhari.train("baselines/bandit", steps=2).path
    )


def test_loading_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    path = shuhari.train("baselines/bandit", steps=1, threads=2).path
    assert torch.get_num_threads() == 1
    contexts = []
    made = Context.__init__

    def watched(self: Context, *args: Any, **more: Any) -> None:
        contexts.append(self)
        made(self, *args, **more)

    monkeypatch.setattr(Context, "__init__", watched)
    shuhari.load(path)
    with pytest.raises(StoreError):
        shuhari.load(path, step=99)
    assert torch.get_num_threads() == 1
    assert len(contexts) == 2
    assert all(c._loop is None or c._loop.is_closed() for c in contexts)


def test_a_language_model_generates() -> None:
    tiny = {"models.policy.hidden": 12, "models.policy.layers": 1, "buffer.size": 8, "evaluate.n": 2}
    run = shuhari.train("baselines/sft_arithmetic", steps=1, **tiny)
    policy = run.policy
    assert isinstance(policy.generate("12+34="), str)
    assert len(policy.generate(["12+34=", "1+1="], max_new=2)) == 2
    drawn = [shuhari.load(run.path, seed=s).generate("12+34=", greedy=False) for s in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    again = Causal(path=str(policy.save(Path("exported"))))
    again.build(None)
    (row,) = again.sample(
        [again.encode("12+34=")], replace(policy.sampling, greedy=True), noise=CounterNoise(keys(0, n=1))
    )
    assert again.decode(row.action) == policy.generate("12+34=")


def test_a_controller_has_no_format_of_its_own() -> None:
    run = shuhari.train("baselines/bandit", steps=1)
    with pytest.raises(TypeError, match="no format outside of its run"):
        run.policy.save("exported")


def test_the_example_of_a_method_of_ones_own() -> None:
    example = runpy.run_path(str(EXAMPLES / "own_method.py"))
    run = example["main"](steps=2, **TINY)
    assert "policy/loss/spo" in run.metrics
    assert "policy/loss/clip" not in run.metrics
    assert shuhari.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)
