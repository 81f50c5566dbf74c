"""What a dry run, and a run before its first step, finds in data, files and environments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import shuhari as shuhari_package
from chat_models import save_chat
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.foreseen import foresee as foreseen
from shuhari.desk.foreseen import list_advice, list_refusals
from shuhari.desk.handed import take
from shuhari.loop.checks import make_stages
from shuhari.loop.fitting import list_repeated

ENDLESS = """
import gymnasium
import numpy as np

class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    last = 10**9

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.now += 1
        return np.zeros(2, np.float32), 1.0, self.now >= self.last, False, {}

class Ends(Endless):
    last = 50
"""
PAIRS = [{"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": str(i)} for i in range(8)]
PLAIN = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worlds.py").write_text(ENDLESS)
    for name, rows in (("pairs", PAIRS), ("plain", PLAIN)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def foresee(recipe: str, *sets: str) -> tuple[list[str], list[str]]:
    found = load(recipe, sets, {}, [], ["stage.warm-up"] if recipe == "baselines/dpo" else [])
    stages = make_stages(found)
    return list_refusals(found, stages), list_advice(found, stages)


@pytest.mark.parametrize(
    ("name", "more", "named"),
    [
        ("gym/worlds.py:Endless", (), True),
        ("gym/worlds.py:Ends", (), False),
        ("gym/worlds.py:Endless", ("task.kwargs.max_episode_steps=30",), False),
        ("gym/worlds.py:Endless", ("evaluate.n=0",), False),  # nothing is played to its end
        ("gym/CartPole-v1", (), False),
    ],
)
def test_an_environment_without_an_end_is_named(name: str, more: tuple[str, ...], named: bool) -> None:
    refused, advice = foresee("baselines/ppo_cartpole", f"task.name={name}", *more)
    assert not refused and len(advice) == named
    for text in advice:
        assert re.search(r"after [1-9][\d,]* steps", text) and "task.kwargs.max_episode_steps=1000" in text


def test_the_setting_that_the_advice_names_ends_the_episodes(shuhari) -> None:
    sets = ["task.name=gym/worlds.py:Endless", "env_steps=1024", "evaluate.n=1", "task.kwargs.max_episode_steps=20"]
    done = shuhari("train", "ppo", "--run", "runs/a", *(f"--set={text}" for text in sets))
    assert done.code == 0 and "has not ended" not in done.err


def test_a_recipe_tuned_for_the_environment_is_named() -> None:
    """`reproduce/ppo_acrobot` is what has settings for Acrobot; for CartPole the recipe itself has."""
    assert foresee("baselines/ppo_cartpole")[1] == []
    (advice,) = foresee("baselines/ppo_cartpole", "task.name=gym/Acrobot-v1")[1]
    assert "reproduce/ppo_acrobot has settings for Acrobot-v1" in advice
    (advice,) = foresee("baselines/dqn_cartpole", "task.name=gym/Acrobot-v1")[1]
    assert "reproduce/dqn_acrobot" in advice and "ppo" not in advice


@pytest.mark.parametrize(
    ("recipe", "env", "kept"),
    [
        ("baselines/ppo_pendulum", "MountainCarContinuous-v0", "transform.gae.gamma=0.9"),
        ("baselines/rainbow_cartpole", "Acrobot-v1", "models.policy.bins.low=-0.5, models.policy.bins.high=50.5, "),
        ("baselines/sac_pendulum", "MountainCarContinuous-v0", ""),
        ("baselines/ppo_pendulum", "Pendulum-v1", ""),
    ],
)
def test_what_a_recipe_has_for_its_own_environment_is_named(recipe: str, env: str, kept: str) -> None:
    told = [text for text in foresee(recipe, f"task.name=gym/{env}")[1] if "is made for" in text]
    assert len(told) == bool(kept) and all(kept in text and env in text for text in told)


def test_a_replay_that_learns_nothing_or_is_too_small_is_told_before() -> None:
    (told,) = foresee("baselines/sac_pendulum", "env_steps=200")[1]
    assert "buffer.warmup is 1,000" in told and "env_steps 200: nothing is learned" in told
    refused, advice = foresee("baselines/sac_pendulum", "buffer.capacity=10")
    assert any("buffer.capacity is 10 and buffer.warmup 1,000" in text for text in refused) and not advice
    assert foresee("baselines/sac_pendulum", "env_steps=1_001") == ([], [])


def test_an_environment_that_a_program_passes_is_another_one() -> None:
    class Mine(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (1,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

        def step(self, action: Any) -> Any:
            return self.np_random.uniform(-1, 1, 3).astype(np.float32), 0.0, True, False, {}

    for env in (Mine, lambda: Mine()):
        recipe = load("baselines/ppo_pendulum", settings=take(None, None, env, {}, ()).settings)
        (advice,) = foreseen(recipe, Path("nowhere"))
        assert "the environment that was passed" in advice and advice.endswith("transform.gae.gamma=0.9")


def test_settings_of_the_task_that_another_one_begins_without_are_named() -> None:
    """With the words that keep them."""
    told = foresee("baselines/ppo_hidden_cartpole", "task.name=gym/Acrobot-v1")[1]
    (advice,) = [text for text in told if "begins without" in text]
    assert "--set 'task.keep=[0, 2]' --set task.stack=4 keeps them" in advice
    kept = ("task.keep=[0, 2]", "task.stack=4")
    told = foresee("baselines/ppo_hidden_cartpole", "task.name=gym/Acrobot-v1", *kept)[1]
    assert not [text for text in told if "begins without" in text]


def test_what_is_set_for_the_environment_is_not_named() -> None:
    sets = ("task.name=gym/MountainCarContinuous-v0", "transform.gae.gamma=0.98")
    assert not [text for text in foresee("baselines/ppo_pendulum", *sets)[1] if "gamma" in text]


@pytest.mark.parametrize("recipe", ["pretrained/grpo", "pretrained/sft", "pretrained/dpo"])
def test_a_rate_of_adapters_for_all_weights_is_named(recipe: str, folder: Path) -> None:
    data = "pairs" if recipe.endswith("dpo") else "plain"
    more = ("buffer.imitate=answer",) if recipe.endswith("sft") else ()
    (folder / "model").mkdir()
    sets = ("models.policy.path=model", f"task.name=file/{data}.jsonl", *more)
    assert foresee(recipe, *sets) == ([], [])
    refused, (advice,) = foresee(recipe, *sets, "models.policy.lora=none")
    rate = load(recipe, sets).tree["part"]["policy"]["optimiser"]["lr"]["from"]
    assert not refused and f"up to {rate:g}" in advice and f"part.policy.optimiser.lr={rate / 10:g}" in advice
    own = f"part.policy.optimiser.lr={rate / 10:g}"
    assert foresee(recipe, *sets, "models.policy.lora=none", own) == ([], [])


def test_pairs_are_asked_for_before_a_model_is_read(shuhari, folder: Path) -> None:
    assert foresee("baselines/dpo", "buffer.use=preferences", "task.name=file/pairs.jsonl") == ([], [])
    words = ["baselines/dpo", "--remove=stage.warm-up", "--set=buffer.use=preferences"]
    for more in ([], ["--dry-run"]):
        done = shuhari("train", *words, "--set=task.name=file/plain.jsonl", "--run=runs/a", *more)
        assert done.code == 2 and "file/plain.jsonl, line 1" in done.err and "`chosen` and `rejected`" in done.err
    assert not (folder / "runs").exists()
    rows, more = {"train": PLAIN[:4], "test": PLAIN[4:]}, {"buffer.use": "preferences"}
    with pytest.raises(RecipeError, match="expected `chosen` and `rejected`"):
        shuhari_package.train("baselines/dpo", dataset=rows, remove=["stage.warm-up"], progress=False, **more)


def test_a_dry_run_looks_for_the_model_and_the_device(shuhari, folder: Path) -> None:
    (folder / "models/small").mkdir(parents=True)
    sets = ["--set=task.name=file/plain.jsonl", "--set=models.policy.device=cuda:77"]
    done = shuhari("train", "grpo", "--set=models.policy.path=./models/smal", *sets, "--dry-run")
    assert done.code == 2 and "did you mean 'small'?" in done.err and "models.policy.device" in done.err
    assert done.err.strip().splitlines()[-1].startswith("the run would be refused")  # not above a hundred settings
    elsewhere = shuhari("train", "grpo", "--set=models.policy.path=models/small", *sets, "--dry-run")
    assert elsewhere.code == 0 and "models.policy.device" in elsewhere.err  # for a machine that has it
    there = shuhari("train", "grpo", "--set=models.policy.path=owner/name", sets[0], "--dry-run")
    assert there.code == 0  # a model of the hub


def test_a_dry_run_measures_rows(shuhari, folder: Path) -> None:
    rows = [{"prompt": "1" * n, "completion": "1"} for n in (3, 300)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({**row, "split": "train"}) + "\n" for row in rows))
    words = ["train", "baselines/sft_arithmetic", "--set=task.name=file/rows.jsonl", "--set=evaluate.n=0", "--dry-run"]
    done = shuhari(*words)
    assert done.code == 2 and "1 of 2 rows is longer than the 256 tokens" in done.err and "context = 512" in done.err
    assert shuhari(*words, "--set=models.policy.context=512").code == 0


def test_a_recipe_for_random_weights_points_to_that_for_trained_ones(shuhari, folder: Path) -> None:
    """Also where the first mistake is another: rows without demonstrations for the warm-up."""
    (folder / "model").mkdir()
    words = ["--set=models.policy.path=model", "--set=task.name=file/plain.jsonl"]
    for more in ([], ["--dry-run"]):
        done = shuhari("train", "baselines/grpo", *words, *more)
        assert done.code == 2 and "demonstration" in done.err and "pretrained/grpo" in done.err
    assert "pretrained" not in shuhari("train", "baselines/grpo", words[1], "--dry-run").err


def test_a_dry_run_measures_the_rows_by_a_model_that_is_quickly_read(shuhari, folder: Path) -> None:
    """One row of 70 sentences; 64 tokens are read."""
    save_chat(folder / "small")
    rows = [{"prompt": "What is 3?", "completion": "It is 3. " * (70 if i == 2 else 1)} for i in range(6)]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ("--set=models.policy.path=small", "--set=models.policy.context=64", "--set=task.name=file/long.jsonl",
            "--set=rollout.sampling.max_new=8")  # fmt: skip
    done = shuhari("train", "pretrained/sft", *sets, "--dry-run")
    assert done.code == 2 and "1 of 6 rows is longer" in done.err and "line 3" in done.err
    assert shuhari("train", "pretrained/sft", *sets, "--set=task.too_long=leave_out", "--dry-run").code == 0


def test_a_reward_without_a_weight_and_too_many_problems_are_named(shuhari, folder: Path) -> None:
    (folder / "mine.py").write_text("def brief(completions, **columns):\n    return [-len(x) for x in completions]\n")
    sets = ["task.name=file/plain.jsonl", "reward.brief.use=mine.py:brief", "models.policy.path="]
    weighed = [*sets, "reward.weights.score=1", "buffer.size=32"]
    _, advice = foresee("baselines/grpo", *weighed, 'remove=["stage.warm-up"]')
    assert any("reward.brief is reported and not trained" in x and "reward.weights.brief=1" in x for x in advice)
    *_, stage = make_stages(load("baselines/grpo", weighed, {}, [], ["stage.warm-up"]))
    (repeated,) = list_repeated(stage)
    assert "32 problems a step, and the file has" in repeated
    for weight in (0, 1):
        _, advice = foresee("baselines/grpo", *weighed, f"reward.weights.brief={weight}", 'remove=["stage.warm-up"]')
        assert not any("reported and not trained" in x for x in advice)


def test_a_reward_that_is_not_there_is_named_with_what_helps(shuhari, folder: Path) -> None:
    save_chat(folder / "small")
    (folder / "mine.py").write_text("def brief(completions, **columns):\n    return [-len(x) for x in completions]\n")
    words = ["pretrained/grpo", "--set=models.policy.path=small", "--set=task.name=file/plain.jsonl",
             "--set=reward.brief.use=mine.py:brief", "--remove=reward.maths", "--dry-run"]  # fmt: skip
    done = shuhari("train", *words)
    assert done.code == 2 and "--remove reward.weights.maths --set reward.weights.brief=1" in done.err
    assert shuhari("train", *words, "--remove=reward.weights.maths", "--set=reward.weights.brief=1").code == 0


def test_conversations_for_a_model_without_a_template_are_named(shuhari, folder: Path) -> None:
    save_chat(folder / "base", template=None)
    rows = [{"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": "3"}]}
            for i in range(6)]  # fmt: skip
    rows = [{**row, "split": "test" if i < 2 else "train"} for i, row in enumerate(rows)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ("--set=models.policy.path=base", "--set=task.name=file/chats.jsonl", "--set=rollout.sampling.max_new=8",
            "--set=steps=1", "--set=buffer.size=2", "--set=evaluate.n=2", "--run=runs/chats")  # fmt: skip
    done = shuhari("train", "pretrained/sft", *sets)
    assert done.code == 0 and "models.policy has no chat template" in done.err, done.err
