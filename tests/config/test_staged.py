"""What a file says of stages, over one that has some: by hand-worked lists of names and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load

BASE = """steps = 10
task.name = "arithmetic"
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2}
buffer.size = 2
collect.advantage = {}
part.policy.terms.loss.use = "clip"
"""
STAGES = '[[stage]]\nname = "warm-up"\nsteps = 3\n[[stage]]\nname = "rl"\n'
WARM, RL = ("warm-up", 3), ("rl", 10)


@pytest.fixture
def stages(tmp_path: Path) -> Any:
    """(name, steps) of each stage of a file that extends one with the stages `warm-up` and `rl`."""
    (tmp_path / "base.toml").write_text(BASE + STAGES)
    (tmp_path / "flat.toml").write_text(BASE)

    def listed(text: str, on: str = "base") -> list[tuple[str, int]]:
        (tmp_path / "mine.toml").write_text(f'extends = "{on}.toml"\n{text}')
        return [(str(s["name"]), s["steps"]) for s in load(tmp_path / "mine.toml").stages]

    return listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[stage]]\nname = "more"\nsteps = 2', [WARM, RL, ("more", 2)]),
        ('[[stage]]\nname = "more"\nsteps = 2\nbefore = "rl"', [WARM, ("more", 2), RL]),
        ("[[stage]]\nsteps = 2", [WARM, RL, ("3", 2)]),  # one without a name has the next number
        ('[[stage]]\nsteps = 2\nbefore = "rl"', [WARM, ("3", 2), RL]),
        ('[[stage]]\nsteps = 2\n[[stage]]\nname = "3"\nsteps = 4', [WARM, RL, ("4", 2), ("3", 4)]),
        ("[stage.rl]\nsteps = 5", [WARM, ("rl", 5)]),
        ('[stage.rl]\nbefore = "warm-up"', [RL, WARM]),
        ("[stage.rl]\nsteps = 5\n[stage.more]\nnew = true\nsteps = 2", [WARM, ("rl", 5), ("more", 2)]),
        ('[stage.more]\nnew = true\nsteps = 2\nbefore = "rl"', [WARM, ("more", 2), RL]),
        ('remove = ["stage"]\n[[stage]]\nname = "rl"\nsteps = 2', [("rl", 2)]),
        ('remove = ["stage"]\n[stage.only]\nsteps = 2', [("only", 2)]),
        ('remove = ["stage.rl"]\n[[stage]]\nname = "rl"\nsteps = 2', [WARM, ("rl", 2)]),
        ('remove = ["stage.rl"]\n[stage.rl]\nsteps = 2', [WARM, ("rl", 2)]),
        ('remove = ["stage.warm-up"]', [RL]),
    ],
)
def test_a_stage_is_added_changed_or_removed(stages: Any, text: str, expected: list[tuple[str, int]]) -> None:
    assert stages(text) == expected


def test_over_a_recipe_without_stages_those_that_are_said_are_all(stages: Any) -> None:
    assert stages('[[stage]]\nname = "a"\nsteps = 2\n[[stage]]', "flat") == [("a", 2), ("2", 10)]
    assert stages("[stage.a]\nsteps = 2\n[stage.b]", "flat") == [("a", 2), ("b", 10)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[stage.warm_up]\nsteps = 5", r"^stage\.warm_up: no such stage below mine; did you mean 'warm-up'\? .*\[\["),
        ("[stage.later]\nsteps = 5", r"^stage\.later: no such stage below mine; known: rl, warm-up .*new = true"),
        ('[[stage]]\nname = "rl"', r"^stage\.rl: \[\[stage\]\] in mine is a new stage, and there is .* \[stage\.rl\]"),
        ("[stage.rl]\nnew = true", r"^stage\.rl: .* there is one of that name: write \[stage\.rl\]"),
        ('[[stage]]\nsteps = 2\nbefore = "rll"', r"^stage\.3\.before: 'rll' is no other stage; did you mean 'rl'"),
        ('remove = ["stage.rl"]\n[stage.lr]\nsteps = 2', r"^stage\.lr: no such stage below mine; known: rl, warm-up"),
        ("[stage.rl]\nnew = 3", r"^stage\.rl\.new: no such key"),
    ],
)
def test_what_is_no_stage_there_is_refused(stages: Any, text: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        stages(text)


def test_there_is_nothing_to_stand_before_over_a_recipe_without_stages(stages: Any) -> None:
    with pytest.raises(RecipeError, match=r"^stage\.a\.before: 'rl': nothing below mine has stages, so"):
        stages('[[stage]]\nname = "a"\nbefore = "rl"', "flat")
