"""Short names of algorithms: which recipe one means by what else is set, and that all that are named are there."""

from __future__ import annotations

import gymnasium
import pytest

from shuhari.config.library import find_recipe
from shuhari.config.named import ALSO, LAID, NAMES, WORDS
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load, read_method, resolve_name

MODEL = "models.policy.path=a_model"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_means_is_there(name: str) -> None:
    assert NAMES[name] and NAMES[name].keys() <= WORDS.keys()
    for text in NAMES[name].values():
        assert all(find_recipe(one) is not None for one in text.split(LAID))
    assert set(ALSO.values()) <= NAMES.keys()


@pytest.mark.parametrize(
    ("name", "setting", "recipe", "methods"),
    [
        ("grpo", MODEL, "pretrained/grpo", []),
        ("SFT", MODEL, "pretrained/sft", []),
        ("Dr-GRPO", MODEL, "pretrained/grpo", ["rlvr/dr_grpo"]),
        ("rloo", "models.policy.use=causal", "baselines/rloo", []),
        ("grpo", "models.policy.path=''", "baselines/grpo", []),  # no model after all
        ("ppo", "task.name=gym/CartPole-v1", "baselines/ppo_cartpole", []),
        ("ppo", "task.name=gym/Pendulum-v1", "baselines/ppo_pendulum", []),
        ("cql", "task.name=gym/Pendulum-v1", "baselines/cql_pendulum", []),
        ("sac", "steps=3", "baselines/sac_pendulum", []),  # one alone
        ("QR-DQN", "steps=3", "baselines/qr_dqn_cartpole", []),
        ("RecurrentPPO", "steps=3", "baselines/recurrent_ppo_cartpole", []),
        ("awac", "steps=3", "baselines/awac_pendulum", []),
        ("baselines/grpo", MODEL, "baselines/grpo", []),
        ("mine.toml", MODEL, "mine.toml", []),
    ],
)
def test_what_is_set_tells_which(name: str, setting: str, recipe: str, methods: list[str]) -> None:
    assert resolve_name(name, [setting]) == (recipe, methods)


def test_of_images_is_a_recipe_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from shuhari.config import named

    image = gymnasium.spaces.Box(0, 255, (8, 8, 3), "uint8")
    box = gymnasium.spaces.Box(-1, 1, (1,))
    for acts, ppo, a2c in ((gymnasium.spaces.Discrete(2), "minigrid", "a2c"), (box, "pendulum", "sac")):
        monkeypatch.setattr(named, "_find_spaces", lambda task, acts=acts: (image, acts))
        assert resolve_name("ppo", ["task.name=gym/Any-v1"])[0] == f"baselines/ppo_{ppo}"
        assert resolve_name(a2c, ["task.name=gym/Any-v1"])[0].startswith(f"baselines/{a2c}_")


def test_what_tells_nothing_is_answered_with_all() -> None:
    with pytest.raises(RecipeError) as error:
        load("grpo")
    assert all(f"`{recipe}`" in error.value.problem for recipe in NAMES["grpo"].values())
    with pytest.raises(RecipeError, match="no recipe of 'ppo' is for a trained model"):
        load("ppo", [MODEL])
    with pytest.raises(RecipeError, match="Gymnasium knows no such id"):
        load("ppo", ["task.name=gym/NotThere-v1"])


def test_a_short_name_is_the_recipe_from_python_too() -> None:
    assert load("ppo", settings={"task.name": "gym/CartPole-v1"}).name == "baselines/ppo_cartpole"
    laid = load("dapo", settings={"models": {"policy": {"path": "x"}}, "task.name": "file/x"})
    assert laid.name == "pretrained/grpo+dapo" and list(laid.tree["laid"]) == ["rlvr/dapo"]


FOUND = [("dapo", "rlvr/dapo"), ("Clip-Cov", "rlvr/clip_cov"), ("ghpo", "curriculum/ghpo")]


@pytest.mark.parametrize(("name", "method"), FOUND)
def test_a_method_is_found_by_its_last_name(name: str, method: str) -> None:
    assert read_method(name).name == method
    assert load("baselines/grpo", methods=[name]).tree["laid"].keys() == {method}


def test_a_name_of_no_method_is_told_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="clip_cof"):
        read_method("clip_cof")
