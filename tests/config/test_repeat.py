"""`[[stage]] repeat`: which stages run, in what order, under which names; they go on with what they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, dump, load
from shuhari.config.repeats import expand_repeats, is_left
from shuhari.loop.run import train
from shuhari.testing.compare import contents, differences
from small_runs import BANDIT


def names(**stages: dict[str, Any]) -> list[str]:
    return [name for name, _ in expand_repeats(stages)]


def recipe(folder: Path, stages: str) -> Recipe:
    file = folder / "own.toml"
    file.write_text(BANDIT.replace("steps = 12", "") + stages)
    return load(file)


def test_a_stage_runs_n_times_and_those_of_a_block_in_turn() -> None:
    assert names(a={"repeat": 3}, b={}) == ["a", "a 2", "a 3", "b"]
    block = {"x": {"block": "round", "repeat": 2}, "y": {"block": "round"}}
    assert names(**block) == ["x", "y", "x 2", "y 2"]
    assert names(w={}, **block, z={"block": "other", "repeat": 2}) == ["w", "x", "y", "x 2", "y 2", "z", "z 2"]
    assert list(expand_repeats({"a": {"repeat": 2, "steps": 3}})) == [("a", "a"), ("a 2", "a")]


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ({"x": {"block": "r", "repeat": 2}, "y": {"block": "r", "repeat": 3}}, r"stage\.y\.repeat: 2 and 3 in one"),
        ({"a": {"repeat": 2}, "a 2": {}}, "two stages would be called 'a 2'"),
    ],
)
def test_stages_that_cannot_be_told_apart_are_refused(stages: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        list(expand_repeats(stages))


@pytest.mark.parametrize("value", ["0", "-1", "true", "1.5", '"two"'])
def test_a_number_of_times_is_a_whole_one(tmp_path: Path, value: str) -> None:
    with pytest.raises(RecipeError, match=r"stage\.a\.repeat: .*expected a (whole )?number"):
        recipe(tmp_path, f'[[stage]]\nname = "a"\nsteps = 1\nrepeat = {value}\n')


def test_a_setting_of_a_stage_reaches_all_its_times_and_a_dump_keeps_them(tmp_path: Path) -> None:
    own = recipe(tmp_path, '[[stage]]\nname = "a"\nsteps = 2\nrepeat = 3\n').with_settings({"stage.a.steps": 4})
    assert [s["steps"] for s in own.stages] == [4, 4, 4]
    assert own.total == 12
    (tmp_path / "again.toml").write_text(dump(own))
    again = load(tmp_path / "again.toml")
    assert again.stages == own.stages


def test_stages_in_turn_resume_to_the_same_bits(tmp_path: Path) -> None:
    stages = '[[stage]]\nname = "x"\nsteps = 2\nblock = "round"\nrepeat = 2\n'
    stages += '[[stage]]\nname = "y"\nsteps = 1\nblock = "round"\n'
    own = recipe(tmp_path, stages + "part.policy.optimiser.lr = 0.05\n")
    whole = list(train(own, tmp_path / "whole"))
    assert [r["stage"] for r in whole] == ["x", "x", "y", "x 2", "x 2", "y 2"]
    for stop in (2, 4):
        sitting = train(own, tmp_path / "parts")
        assert next(r for r in sitting if r["step"] == stop)
        sitting.close()  # type: ignore[attr-defined]
    list(train(own, tmp_path / "parts"))
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_a_stage_is_left_where_another_follows_and_no_repetition_of_it() -> None:
    """a, b c b c, d: after the second b comes another c, and yet b is left."""
    stages = {"a": {}, "b": {"block": "x", "repeat": 2}, "c": {"block": "x"}, "d": {}}
    assert [name for name, _ in expand_repeats(stages)] == ["a", "b", "c", "b 2", "c 2", "d"]
    assert [is_left(stages, i) for i in range(6)] == [True, False, False, True, True, False]
    assert not is_left({}, 0)
