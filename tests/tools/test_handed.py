"""Rows, rewards and environments handed to `train`: what of them a recipe records, and what is refused."""

from __future__ import annotations

import datetime
import functools
import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.handed import hold, hold_environment, take
from shuhari.kernel import registry

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]


def graded(completions: list[str], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


class Hall(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


class Stage(Hall):
    def __deepcopy__(self, memory: Any) -> Any:
        raise TypeError("it holds a socket")


def rows_of(dataset: Any) -> list[Any]:
    (text,) = take(dataset).files.values()
    return [json.loads(line) for line in text.splitlines()]


def test_rows_become_a_file_named_by_what_it_holds() -> None:
    handed, again, other = take(ROWS), take(list(map(dict, ROWS))), take(ROWS[:1])
    (name,) = handed.files
    assert handed.settings == {"task": {"name": f"file/{name}"}} == again.settings != other.settings
    assert rows_of(ROWS) == ROWS


def test_values_are_as_json_has_them() -> None:
    row = {"prompt": "a", "n": np.int64(3), "x": np.array([0.5, 1.5]), "on": datetime.date(2026, 1, 2), "nan": math.nan,
           "inner": {"deep": (1, np.float32(0.25))}}  # fmt: skip
    assert rows_of([row]) == [{"prompt": "a", "n": 3, "x": [0.5, 1.5], "on": "2026-01-02", "nan": None,
                               "inner": {"deep": [1, 0.25]}}]  # fmt: skip


def test_data_sets_by_split() -> None:
    assert rows_of({"train": ROWS[:1], "test": ROWS[1:]}) == [
        {"split": "train", **ROWS[0]}, {"split": "test", **ROWS[1]}
    ]  # fmt: skip


def test_a_data_set_of_the_library_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    assert rows_of(datasets.Dataset.from_list(ROWS)) == ROWS


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ([], "it has no rows: expected a list of them, each a mapping with `prompt`"),
        (["1+1="], r"row 1 is '1\+1=' \(str\): expected a mapping"),
        (3, r"3 \(int\): expected a list of rows"),
        ({"prompt": "1+1="}, "'prompt' is '1\\+1=' \\(str\\): expected a list of rows"),
        ([ROWS[0], {"prompt": "a", "x": math.inf}], "row 2: `x` is inf: expected a finite number"),
        ([{"prompt": "a", "x": b"\0"}], "row 1: `x` is of type bytes: .* leave the column out"),
        ([{"prompt": "a", "x": object()}], "row 1: `x` is of type object"),
    ],
)
def test_bad_rows_are_refused_in_words(dataset: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        take(dataset)


def test_what_can_be_imported_is_recorded_by_its_place() -> None:
    assert hold(graded) == f"{__name__}.graded"
    assert hold_environment(Hall) == f"{__name__}.Hall"
    assert registry.find("world", f"{__name__}.Hall") is Hall


@pytest.mark.parametrize("folder", [".", "..", "other"])
def test_a_script_is_recorded_by_its_file(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "other").mkdir(parents=True)
    script = home / "own.py"
    script.write_text("from shuhari.desk.handed import hold\ndef f(completions): ...\nname = hold(f)\n")
    monkeypatch.chdir(home / folder)
    name = runpy.run_path(str(script), run_name="__main__")["name"]
    assert name == {".": "own.py:f", "..": "home/own.py:f", "other": f"{script}:f"}[folder]


def closing(over: Any) -> Callable[..., Any]:
    return lambda completions: [over] * len(completions)


class Called:
    def __init__(self, over: Any) -> None:
        self.over = over

    def __call__(self, completions: list[str]) -> list[float]:
        return [float(self.over)] * len(completions)


@pytest.mark.parametrize("make", [closing, Called, lambda over: functools.partial(closing, over)])
def test_what_cannot_be_imported_is_named_by_its_code(make: Callable[[Any], Any]) -> None:
    one, same, other = (hold(make(x)) for x in (0.5, 0.5, 0.25))
    assert one == same != other
    assert one.startswith(registry.GIVEN)
    assert registry.find("reward", one) is registry.held(one)


def test_other_code_has_another_name() -> None:
    assert hold(lambda completions: [len(c) for c in completions]) != hold(lambda completions: [1 for _ in completions])


def test_what_is_not_held_says_what_to_do() -> None:
    with pytest.raises(LookupError, match=r"the reward 'lambda-12' was handed to shuhari\.train .* with it as before"):
        registry.find("reward", "given/lambda-12")


def test_rewards_by_name() -> None:
    assert set(take(reward=[graded, lambda completions: [1]]).settings["reward"]) == {"graded", "own"}
    table = {"graded": graded, "length": {"use": "length"}, "weights": {"graded": 2.0}}
    found = take(reward=table).settings["reward"]
    assert found == {**table, "graded": {"use": f"{__name__}.graded"}}


def test_an_id_of_gymnasium_and_a_file_are_taken_by_name() -> None:
    assert take(env="CartPole-v1").settings == take(env="gym/CartPole-v1").settings == {"task.name": "gym/CartPole-v1"}
    assert take("rows.jsonl").settings == take(Path("rows.jsonl")).settings == {"task.name": "file/rows.jsonl"}
    assert load("ppo", settings=take(env="Acrobot-v1").settings).name == "baselines/ppo_cartpole"


@pytest.mark.parametrize(
    ("handed", "told"),
    [
        ({"reward": 3}, r"reward: 3 \(int\): expected a function f\(completions, \*\*columns\)"),
        ({"reward": [graded, graded]}, "reward: two are called 'graded': name them"),
        ({"env": "CartPole-v1", "beside": ["task.name"]}, "task.name: given together with env"),
        ({"env": dict}, r"env: the class dict is not a gymnasium.Env"),
        ({"env": 3}, r"env: 3 \(int\): expected a gymnasium.Env, its class"),
        ({"env": Stage()}, "env: Stage cannot be copied .it holds a socket.: hand over its class"),
        ({"env": Hall, "dataset": ROWS}, "env: given beside dataset"),
        ({"env": Hall, "reward": graded}, "reward: given beside env, whose own reward is trained"),
        ({"env": Hall, "beside": ["task.name"]}, "task.name: given together with env"),
        ({"dataset": ROWS, "beside": ["steps", "task"]}, "task: given together with dataset"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_words(handed: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        take(**handed)


def test_files_of_a_run_that_does_not_begin_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    handed = take(ROWS)
    (name,) = handed.files
    with handed.placed(folder):
        assert (folder / name).is_file()
    assert not folder.parent.exists()
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(f"task.name = 'file/{name}'\n")
    with handed.placed(folder):
        pass
    assert (folder / name).read_text() == handed.files[name]
    with take(ROWS[:1]).placed(folder):  # another run's
        pass
    assert sorted(p.name for p in folder.iterdir()) == [name, "recipe.toml"]
    (folder / name).write_text("{}\n")
    with pytest.raises(RecipeError, match="was changed after it was written"), handed.placed(folder):
        pass
