"""What other libraries call a setting leads to what it is called here."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from shuhari.config.build import build_stage
from shuhari.config.recipe import RecipeError, load
from shuhari.config.words import SAME, explain_unknown


@pytest.mark.parametrize(
    ("recipe", "name", "meant"),
    [
        ("baselines/grpo", "lr", "part.policy.optimiser.lr"),
        ("baselines/grpo", "learning_rate", "part.policy.optimiser.lr"),
        ("baselines/grpo", "num_generations", "rollout.n"),
        ("baselines/grpo", "max_completion_length", "rollout.sampling.max_new"),
        ("baselines/grpo", "epsilon_high", "part.policy.terms.loss.high"),
        ("baselines/ppo_cartpole", "total_timesteps", "env_steps"),
        ("baselines/ppo_cartpole", "gae_lambda", "transform.gae.lam"),
        ("baselines/sac_pendulum", "lr", "part.critic.optimiser.lr"),
        ("baselines/dqn_cartpole", "buffer_size", "buffer.capacity"),
        ("baselines/grpo", "reward_funcs", "reward=, a function, a list of such"),
        ("baselines/grpo", "run", "`path`, the second argument of shuhari.train, and --run"),
        ("baselines/grpo", "train_dataset", "dataset="),
        ("baselines/grpo", "args", "settings are arguments of their own"),
        ("baselines/grpo", "callbacks", "observe="),
        ("baselines/grpo", "tensorboard_log", "--log-to"),
        ("baselines/grpo", "bufer", "did you mean 'buffer'"),
        ("baselines/sac_pendulum", "gamma", "it is part.critic.terms.soft_td.gamma here"),
        ("baselines/dr_grpo", "gamma", "it is part.policy.terms.q_learning.gamma and part.critic.terms.soft_td.gamma"),
        ("baselines/grpo", "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n is rollout.n here"),
        ("baselines/grpo", "actor_rollout_ref.model.path", "actor_rollout_ref.model.path is models.policy.path here"),
        ("baselines/grpo", "algo.kl.init_coef", "algo.kl.init_coef is part.policy.terms.divergence.weight here"),
        ("baselines/grpo", "rolout.n", "did you mean 'rollout'"),
        ("baselines/grpo", "peft_config", "models.policy.lora.rank"),
        ("baselines/grpo", "max_seq_length", "models.policy.context"),
        ("baselines/grpo", "warmup_ratio", "warm = 10"),
        ("baselines/grpo", "logging_steps", "each step is reported"),
        ("baselines/grpo", "use_vllm", "engine.use = 'vllm'"),
        ("baselines/grpo", "eval_strategy", "evaluate.every"),
        ("baselines/ppo_cartpole", "n_steps", "it is buffer.size here: it counts the decisions of all lanes"),
        ("baselines/ppo_cartpole", "num_steps", "CleanRL's, of one rollout, is buffer.size"),
        ("baselines/ppo_cartpole", "batch_size", "of PPO's minibatches is here their number"),
        ("baselines/ppo_cartpole", "target_kl", "we have none"),
        ("baselines/ppo_cartpole", "vec_normalize", "collect.scale_rewards.gamma"),
        ("baselines/sac_pendulum", "ent_coef", "the role `temperature`"),
        ("baselines/dqn_cartpole", "exploration_fraction", "it is `over` of a schedule"),
        ("baselines/td3_pendulum", "policy_delay", "part.policy.every"),
        ("baselines/ppo_cartpole", "clip_vloss", "part.policy.terms.value.clip here"),
        ("baselines/dqn_cartpole", "gamma", "it is part.policy.terms.q_learning.gamma here"),
        ("baselines/td3_pendulum", "gamma", "it is part.critic.terms.smoothed_td.gamma here"),
        ("baselines/rainbow_cartpole", "n_steps", "part.policy.terms.q_learning.n"),
        ("baselines/iql_pendulum", "n_steps", "each of which makes buffer.draws updates"),
        ("baselines/iql_pendulum", "actor_learning_rate", "it is part.policy.optimiser.lr here"),
        ("baselines/iql_pendulum", "expectile", "it is part.value.terms.expectile.tau here"),
        ("baselines/sac_pendulum", "q_lr", "it is part.critic.optimiser.lr here"),
        ("baselines/sac_pendulum", "lr", "part.critic.optimiser.lr and part.policy.optimiser.lr and part.temperature"),
        ("baselines/td3_bc_pendulum", "alpha", "it is part.policy.terms.deterministic_bc.alpha here"),
        ("baselines/cql_pendulum", "alpha", "it is part.critic.terms.conservative_sampled.weight here"),
        ("baselines/ppo", "clip_vloss", "part.critic.terms.value.clip here"),
        ("baselines/ppo_pendulum", "cliprange_value", "part.policy.terms.value.clip here"),
    ],
)
def test_the_error_names_what_was_meant(recipe: str, name: str, meant: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(recipe, [f"{name}=1"])
    assert str(error.value).startswith(f"{name.partition('.')[0]}: no such key") and meant in str(error.value)


@pytest.mark.parametrize(
    ("policy", "meant"), [("MlpPolicy", "models.policy.hidden"), ("CnnPolicy", "images"), ("a/model", "policy.path")]
)
def test_a_policy_of_stable_baselines3_is_no_model(policy: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=meant):
        load("baselines/ppo_cartpole", settings={"policy": policy})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rollout.n_samples_per_prompt", "what others call so is rollout.n here"),
        ("rollout.sampling.max_tokens", "what others call so is rollout.sampling.max_new here"),
        ("part.policy.terms.loss.epsilon", "is part.policy.terms.loss.high or part.policy.terms.loss.low here"),
        ("part.policy.epoch", "did you mean 'epochs'"),
        ("buffer.colour", "known: "),
    ],
)
def test_within_a_section_too(name: str, meant: str) -> None:
    stage = load("baselines/grpo", [f"{name}=1"]).stages[-1]
    with pytest.raises(RecipeError) as error:
        build_stage(stage)
    assert str(error.value).startswith(f"{name}: no setting of") and meant in str(error.value)


def test_a_word_has_few_meanings_and_each_is_one_that_recipes_have() -> None:
    names = Counter(name for known in SAME.values() for name in known)
    several = {"gamma", "discount", "discount_factor", "normalize_advantage", "clip_range", "cliprange", "clip_ratio",
               "epsilon", "clip_eps", "eps_clip", "clip_coef", "alpha"}  # fmt: skip
    assert {n for n, many in names.items() if many > 1} == several
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    settings = {*re.findall(r"^\| `\[?([\w.]+)", text, re.MULTILINE)}
    places = {"reward.<name>.use", "reward.weights"}  # tables without a row of their own
    assert not {key for key in SAME if key not in places and key.rpartition(".")[2] not in settings}


def test_a_file_that_does_not_say_what_it_builds_on(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text("")
    with pytest.raises(RecipeError, match="extends ="):
        load(str(tmp_path / "some.toml")).stages  # noqa: B018
    with pytest.raises(RecipeError, match=r"no recipe file .*sone.toml.* did you mean 'some.toml'\?$"):
        load(str(tmp_path / "sone.toml"))
    with pytest.raises(RecipeError) as error:
        load(str(tmp_path / "qux.toml"))
    assert "did you mean" not in str(error.value)


def test_beta_is_that_of_the_preference_loss_if_a_recipe_has_one() -> None:
    tree = {"beta": 0.2, "part": {"policy": {"terms": {"preference": {"beta": 0.1}}}}}
    assert explain_unknown("beta", tree, ()) == "it is part.policy.terms.preference.beta here"
    tree = {"beta": 0.2, "part": {"policy": {"terms": {"loss": {"use": "clip"}}}}}
    assert explain_unknown("beta", tree, ()) == "it is part.policy.terms.divergence.weight here"
