"""What other libraries call a setting leads to what it is called here."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuhari.config.recipe import RecipeError, load
from shuhari.config.words import SAME


@pytest.mark.parametrize(
    ("recipe", "name", "meant"),
    [
        ("baselines/grpo", "lr", "part.policy.optimiser.lr"),
        ("baselines/grpo", "learning_rate", "part.policy.optimiser.lr"),
        ("baselines/grpo", "num_generations", "rollout.n"),
        ("baselines/grpo", "max_completion_length", "rollout.sampling.max_new"),
        ("baselines/grpo", "epsilon_high", "part.policy.terms.clip.high"),
        ("baselines/ppo_cartpole", "total_timesteps", "env_steps"),
        ("baselines/ppo_cartpole", "gae_lambda", "transform.gae.lam"),
        ("baselines/sac_pendulum", "lr", "part.critic.optimiser.lr"),
        ("baselines/dqn_cartpole", "buffer_size", "buffer.capacity"),
        ("baselines/grpo", "reward_funcs", "reward.<name>.use"),
        ("baselines/grpo", "bufer", "did you mean 'buffer'"),
    ],
)
def test_the_error_names_what_was_meant(recipe: str, name: str, meant: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(recipe, [f"{name}=1"])
    assert str(error.value).startswith(f"{name}: no such key") and meant in str(error.value)


def test_every_word_is_foreign_and_has_one_meaning() -> None:
    names = [name for known in SAME.values() for name in known]
    assert len(names) == len(set(names))


def test_a_file_that_does_not_say_what_it_builds_on(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text("")
    with pytest.raises(RecipeError, match="extends ="):
        load(str(tmp_path / "some.toml")).stages  # noqa: B018
    with pytest.raises(RecipeError, match=r"no recipe file .*sone.toml.* did you mean 'some.toml'\?$"):
        load(str(tmp_path / "sone.toml"))
    with pytest.raises(RecipeError) as error:
        load(str(tmp_path / "qux.toml"))
    assert "did you mean" not in str(error.value)
