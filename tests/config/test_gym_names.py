"""Modules of Gymnasium environments: found in the current folder and beside the recipe, and how they are named."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from shuhari.config.files import read_chain
from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings
from shuhari.tasks.gym import Gym

WORLD = """import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
class Corridor(CartPoleEnv):
    pass
gymnasium.register("{0}-v0", entry_point=Corridor)
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # as the installed command has it


def test_module_of_the_current_folder_is_found(path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text(WORLD.format("Here"))
    monkeypatch.chdir(tmp_path)
    assert Gym("found_here:Here-v0").spaces()[0].shape == (4,)
    del gymnasium.registry["Here-v0"]


def test_module_beside_the_recipe_is_found(path: None, tmp_path: Path) -> None:
    (tmp_path / "found_beside.py").write_text(WORLD.format("Beside"))
    (tmp_path / "mine.toml").write_text('[task]\nname = "gym/found_beside:Beside-v0"\n')
    list(read_chain(str(tmp_path / "mine.toml")))
    assert Gym("found_beside:Beside-v0").spaces()[0].shape == (4,)
    del gymnasium.registry["Beside-v0"]


@pytest.mark.parametrize("name", ["gym/worlds.py:Corridor-v0", "worlds.py:Corridor-v0", "worlds:Corridor-v0"])
def test_id_of_a_file_is_told_as_that_of_a_module(name: str) -> None:
    with pytest.raises(RecipeError, match="did you mean 'gym/worlds:Corridor-v0'"):
        Settings().make_task({"name": name})


def test_class_of_an_environment_is_told_how_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "worlds.py").write_text(WORLD.format("Told"))
    with pytest.raises(RecipeError, match=r"is a Gymnasium environment: expected it as 'gym/.*worlds.py:Corridor'"):
        Settings().make_task({"name": f"{tmp_path}/worlds.py:Corridor"})
    del gymnasium.registry["Told-v0"]
