"""Diseases planted in real runs of a second, of text and of control; and stored numbers of packaged recipes, at seeds
that no threshold was chosen on, in which nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.recipe import load
from shuhari.desk.api import Trained
from shuhari.desk.api import train as train_run
from shuhari.lab.diagnosis import diagnose
from shuhari.store import Run
from small_runs import BANDIT, write_sums

HEALTHY = Path(__file__).parent / "healthy"
TEXT = write_sums(steps=5, size=8)
CONTROL = """
steps = 12
[task]
name = "gym/worlds:Chain-v0"
[models.policy]
use = "categorical"
hidden = [8]
[models.critic]
use = "value"
hidden = [8]
[rollout]
use = "vector"
lanes = 4
[buffer]
size = 64
[transform.gae]
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 1e-2
[part.critic]
terms.value = {}
optimiser.lr = 1e-2
"""
WORLDS = '''
import gymnasium, numpy as np
from gymnasium import spaces

class Chain(gymnasium.Env):
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, pays="action", ends=8, blind=False):
        self.pays, self.ends, self.blind = pays, ends, blind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 1
        reward = float(action) if self.pays == "action" else 0.0
        seen = np.full(1, 0.0 if self.blind else min(self.at / 8, 1.0), np.float32)
        return seen, reward, self.at >= self.ends, False, {}

gymnasium.register("Chain-v0", Chain)
'''
REWARDS = '''
def constant(completions, **columns):
    return [1.0] * len(completions)

def letters(completions, **columns):
    return [float(len(set(c))) for c in completions]

def broken(completions, **columns):
    raise RuntimeError("no judge today")
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for name, text in {"text.toml": TEXT, "control.toml": CONTROL, "worlds.py": WORLDS, "rewards.py": REWARDS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def found(recipe: str, **settings: Any) -> set[str]:
    run: Trained = train_run(recipe, "run", **settings)
    return {f.rule.name for f in diagnose(run.metrics, load("run").tree, Run("run").get("began", {}))}


def test_text_that_never_scores(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The Python interface tells it to a logger, after the first step that shows it."""
    assert "starts-at-zero" in found("text.toml")
    assert [r.name for r in caplog.records].count("shuhari") >= 1 and "starts-at-zero" in caplog.text


def test_answers_that_do_not_fit(place: Path) -> None:
    assert "answers-too-long" in found("text.toml", steps=1, **{"rollout.sampling.max_new": 1})


def test_a_constant_reward_of_text(place: Path) -> None:
    assert "no-group-differs" in found("text.toml", **{"reward.r.use": "rewards.py:constant"})


def test_a_reward_that_varies_is_fine(place: Path) -> None:
    rules = found("text.toml", **{"reward.r.use": "rewards.py:letters"})
    assert not rules & {"no-group-differs", "groups-alike", "starts-at-zero", "reward-constant", "ungraded"}


def test_a_reward_that_raises(place: Path) -> None:
    settings = {"reward.r.use": "rewards.py:broken", "reward.weights": {"score": 1.0}}
    assert "graders-fail" in found("text.toml", steps=1, **settings)


def test_a_learning_rate_of_zero(place: Path) -> None:
    assert "learning-rate-zero" in found("text.toml", **{"part.policy.optimiser.lr": 0.0})


def test_a_control_run_that_is_well(place: Path) -> None:
    assert not found("control.toml")


def test_an_environment_that_pays_the_same_whatever_is_done(place: Path) -> None:
    assert "return-constant" in found("control.toml", **{"task.kwargs": {"pays": "nothing"}})


def test_an_environment_that_never_ends(place: Path) -> None:
    settings = {"task.kwargs": {"ends": 10**9}, "buffer.size": 4096, "steps": 3}
    assert "never-ends" in found("control.toml", **settings)


@pytest.mark.parametrize("rate", [0.02, 300.0])
def test_a_stage_that_breaks_the_policy_by_its_rate(place: Path, rate: float) -> None:
    """It begins at the best arm, whose score is 1; a lucky pull of another one is learnt for good."""
    measured = BANDIT.replace("n = 8\n", 'n = 64\nmeasure = "score"\n')
    stages = '[[stage]]\nname = "learn"\nsteps = 60\n[[stage]]\nname = "break"\nsteps = 15\n'
    (place / "broken.toml").write_text(measured + stages)
    rules = found("broken.toml", seed=1, **{"stage.break.part.policy.optimiser.lr": rate})
    assert ("score-falls" in rules) == (rate > 1)
    began = Run("run").get("began")["break"]
    assert began == {"scores": {"greedy": 1.0}, "problems": {"greedy": 64}}


def test_a_critic_that_sees_nothing(place: Path) -> None:
    assert found("control.toml", **{"task.kwargs": {"blind": True}}) == {"critic-explains-nothing"}


def test_explained_variance_is_that_of_the_values_before_the_update() -> None:
    from shuhari.batch import Batch
    from shuhari.kernel.measure import explain_returns
    from shuhari.testing import transitions

    batch: Batch = transitions([[0.0, 0.0, 0.0]])  # and a closing row, which decides nothing
    target = torch.tensor([[1.0], [2.0], [4.0], [9.0]])
    for value, wanted in ((target, 1.0), (target * 0 + 7, 0.0), (-target, -3.0)):
        said = explain_returns(batch.put({"return": target, "critic/value": value}))
        assert said == {"critic/explained_variance": pytest.approx(wanted)}
    assert explain_returns(batch) == {} == explain_returns(batch.put({"return": target * 0, "critic/value": target}))


@pytest.mark.parametrize("path", sorted(HEALTHY.glob("*.json")), ids=lambda p: p.stem)
def test_nothing_is_found_in_healthy_runs_of_packaged_recipes(path: Path) -> None:
    """The numbers were stored by `shuhari train`; the thresholds were chosen on other recipes, tasks and seeds, but for
    that of critics, which `ppo` has lowered."""
    kept = json.loads(path.read_text())
    assert len(kept["columns"]["step"]) >= 10
    assert not [str(f) for f in diagnose(kept["columns"], load(kept["recipe"]).tree)]
