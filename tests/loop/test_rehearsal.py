"""The rehearsal: it finds a later stage's mistake before the first step, and leaves no trace in a run."""

from __future__ import annotations

import builtins
import logging
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.data import ContractError, StalledError
from shuhari.engines.time_limit import Overdue
from shuhari.loop.rehearsal import PROBLEMS, _check_room, rehearse
from shuhari.loop.study import train
from shuhari.rollouts.single import Single
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.testing.compare import contents, differences
from small_runs import ALL, TEXT, recipe

HERE = __name__
REWARD = '[reward.own]\nuse = "{}"\n'
CALLS: list[int] = []


def lucky(completions: list[str]) -> list[float]:
    """Draws from generators of the whole process, as a user's code may."""
    return [random.random() + float(np.random.rand()) + float(torch.rand(())) for _ in completions]  # noqa: NPY002


def strict(completions: list[str]) -> list[float]:
    """Raises over what is no number, which an answer of three letters mostly is not."""
    CALLS.append(len(completions))
    return [float(int(text, 36) - 10**9 > 0) / 0 for text in completions]


def misspelt(completions: list[str]) -> list[float]:
    return [float(len(txt)) for txt in completion]  # type: ignore[name-defined]  # noqa: F821


def gold(completions: list[str], gold: list[str]) -> list[float]:
    return [1.0 for _ in gold]


def flat(completions: list[str]) -> list[float]:
    return [1.0 for _ in completions]


@dataclass
class Broken:
    """A transform that asks for what no batch has."""

    def __call__(self, batch: Any, ctx: Any) -> Any:
        return batch.put({"advantage": batch["nothing"]})


@dataclass
class Forgetful:
    """A transform that counts its calls in an attribute; `kept`: in its state."""

    kept: bool = False

    def __post_init__(self) -> None:
        self.calls, self.name = 0, "one"
        if self.kept:
            self.state = {"calls": 0}

    def __call__(self, batch: Any, ctx: Any) -> Any:
        self.calls += 1
        return batch


@dataclass
class Played:
    """A rollout that raises what its setting says, of each problem or of `one` in two alone."""

    raises: str = "TypeError"
    says: str = "told twice"
    one: bool = False
    accepts: frozenset[str] = frozenset()

    async def group(self, request: Any, ctx: Any) -> Any:
        CALLS.append(1)
        if self.one and len(CALLS) % 2:
            return await Single().group(request, ctx)
        raise {**vars(builtins), "ContractError": ContractError}[self.raises](self.says)


def changed(folder: Path, old: str, new: str) -> Recipe:
    """Imitation, then GRPO, with another text in the place of `old`."""
    assert old in TEXT
    (folder / "changed.toml").write_text(TEXT.replace(old, new, 1))
    return load(folder / "changed.toml")


def with_reward(name: str, folder: Path) -> Recipe:
    """The same on a reward of this file."""
    return changed(folder, "[[stage]]", REWARD.format(f"{HERE}.{name}") + "[[stage]]")


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_run_is_the_same_bits_with_and_without(name: str, tmp_path: Path) -> None:
    """Weights, ledger, reports, rollouts, memory: all that the store has."""
    found = recipe(name, tmp_path)
    for rehearsal in (True, False):
        random.seed(1)
        for _ in train(found, tmp_path / str(rehearsal), rehearsal=rehearsal):
            pass
    assert not differences(contents(tmp_path / "True"), contents(tmp_path / "False"))


def test_generators_of_the_process_stay_where_they_were(tmp_path: Path) -> None:
    found = with_reward("lucky", tmp_path)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    rehearse(found)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def hangs(completions: list[str]) -> list[float]:
    time.sleep(60)
    return [0.0 for _ in completions]


MISTAKES = {
    "a reward's time": ("[[stage]]", REWARD.format(f"{HERE}.hangs") + "timeout = 0.05\n[[stage]]", Overdue, "hangs"),
    "a transform": ('name = "rl"', f'name = "rl"\ncollect.broken.use = "{HERE}.Broken"', KeyError, "nothing"),
    "a reward's code": ("[[stage]]", REWARD.format(f"{HERE}.misspelt") + "[[stage]]", NameError, "completion"),
    "a reward's column": ("[[stage]]", REWARD.format(f"{HERE}.gold") + "[[stage]]", ContractError, "asks for 'gold'"),
}


@pytest.mark.parametrize("what", sorted(MISTAKES))
def test_a_mistake_of_a_later_stage_is_found_before_the_first_step(what: str, tmp_path: Path) -> None:
    old, new, kind, told = MISTAKES[what]
    found = changed(tmp_path, old, new)
    steps = train(found, tmp_path / "run")
    with pytest.raises(kind, match=told) as caught:
        next(iter(steps))
    assert any("stage 'rl'" in note for note in caught.value.__notes__)
    assert not (tmp_path / "run").exists(), "a run that never made a step holds no folder"


def test_a_further_way_to_play_is_rehearsed_on_problems_of_its_own(tmp_path: Path) -> None:
    """Where evaluation plays nothing itself, in a stage that is measured otherwise than the one before."""
    way = "evaluate = {n = 0, more.wide = {n = 3, samples = 2}}\ntask.seed = 1"
    rehearse(changed(tmp_path, 'name = "rl"', f'name = "rl"\n{way}'))


def test_a_run_that_ends_by_what_is_held_out_is_rehearsed() -> None:
    """It is not measured a second time before the first step, so nothing is missing for want of that."""
    rehearse(load("baselines/bandit", settings={"stop_when": "evaluate/greedy >= 2", "evaluate.every": 1}))


def test_a_run_of_a_study_is_rehearsed(tmp_path: Path) -> None:
    study = '[study]\nuse = "mbtl"\ntrainings = 1\ncontexts = {"task.digits" = [1, 2]}\n'
    found = changed(tmp_path, "[[stage]]", f"{study}{REWARD.format(f'{HERE}.misspelt')}[[stage]]")
    with pytest.raises(NameError, match="completion"):
        next(iter(train(found, tmp_path / "run")))
    assert not [*(tmp_path / "run").glob("children/*/run.sqlite")]
    assert next(iter(train(found, tmp_path / "bold", rehearsal=False)))["step"] == 0, "the study's; its run imitates"


def test_what_may_be_of_a_policy_that_has_not_learnt_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CALLS.clear()
    with caplog.at_level(logging.WARNING, "shuhari"):
        rehearse(with_reward("strict", tmp_path))
    assert len(CALLS) == PROBLEMS
    assert "stage 'rl', rehearsed: failed_graders (reward 'own')" in caplog.text


@pytest.mark.parametrize("kept", [False, True])
def test_memory_that_no_state_holds_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: bool) -> None:
    table = f'[collect.own]\nuse = "{HERE}.Forgetful"\nkept = {str(kept).lower()}\n[[stage]]'
    with caplog.at_level(logging.WARNING, "shuhari"):
        rehearse(changed(tmp_path, "[[stage]]", table))
    told = "Forgetful (collect/own) changes 'calls' as it is used and has no `state`"
    assert (told in caplog.text) == (not kept), caplog.text


def test_a_filter_that_lets_nothing_pass_refuses_nothing(tmp_path: Path) -> None:
    filtered = REWARD.format(f"{HERE}.flat") + "[[stage]]"
    own = {"stage.rl.collect.drop_uniform_groups.use": "drop_uniform_groups"}
    found = changed(tmp_path, "[[stage]]", filtered).with_settings(own)
    rehearse(found)
    with pytest.raises(StalledError):
        for _ in train(found, tmp_path / "run"):
            pass


def test_a_run_that_goes_on_is_not_rehearsed(tmp_path: Path) -> None:
    found = with_reward("strict", tmp_path)
    steps = train(found, tmp_path / "run", rehearsal=False)
    next(iter(steps))
    steps.close()  # type: ignore[attr-defined]
    CALLS.clear()
    steps = train(found, tmp_path / "run")
    next(iter(steps))
    steps.close()  # type: ignore[attr-defined]
    assert not CALLS, "the second step imitates: nobody is graded"


def none(completions: list[str]) -> list[None]:
    CALLS.append(len(completions))
    return [None for _ in completions]


def mistyped(completions: list[str]) -> list[float]:
    return [len(text) - "1" for text in completions]  # type: ignore[operator]


def unfound(completions: list[str]) -> list[float]:
    return [float(re.search("no such answer", text)[0]) for text in completions]  # type: ignore[index]


def test_a_reward_that_fails_of_its_types_on_every_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"no sample was graded: failed_graders \(reward 'own'\): TypeError"):
        rehearse(with_reward("mistyped", tmp_path))
    rehearse(with_reward("unfound", tmp_path))  # a better answer may have it


def test_a_reward_that_grades_nothing_is_told_of_before_and_ends_the_run_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four groups a step three rounds are collected, not twenty."""
    found = with_reward("none", tmp_path).with_settings({"stage.warm-up.steps": 1, "evaluate.n": 0})
    with caplog.at_level(logging.WARNING, "shuhari"):
        rehearse(found)
    assert "stage 'rl', rehearsed: no sample was graded" in caplog.text
    CALLS.clear()
    with pytest.raises(StalledError, match="after 3 rounds"):
        for _ in train(found, tmp_path / "run", rehearsal=False):
            pass
    assert len(CALLS) == 3 * 4


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (6, r"max_new: 3 in stage 'rl': the shortest of the first 32 prompts has 4 tokens.* at most 2"),
        (4, r"it reads 4 tokens, in stage 'rl': the shortest of the first 32 prompts has 4 tokens"),
        (7, ""),
    ],
)
def test_an_answer_that_fits_into_no_context_is_refused(tmp_path: Path, context: int, told: str) -> None:
    """A sum of two digits has four tokens with its start, and answers three."""
    found = changed(tmp_path, "hidden = 16", f"context = {context}\nhidden = 16")
    found = found.with_settings({"remove": ["stage.warm-up"]})
    if told:
        with pytest.raises(RecipeError, match=told):
            rehearse(found)
    else:
        rehearse(found)


def test_a_policy_of_text_may_have_no_limit() -> None:
    """`TextModel.limit` may be None, and is optional."""
    stage = SimpleNamespace(task=Arithmetic(), rollout=object(), name="rl", defaults={})
    for policy in (SimpleNamespace(encode=str.split, limit=None), SimpleNamespace(encode=str.split)):
        _check_room(SimpleNamespace(ctx=SimpleNamespace(models={"policy": policy}), stage=stage), 10**9)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raises", ["TypeError", "AttributeError", "NameError", "ContractError", "KeyError", "IndexError"]
)
def test_a_rollout_that_fails_of_its_code_every_time_is_refused(tmp_path: Path, raises: str) -> None:
    table = f'name = "rl"\nrollout = {{use = "{HERE}.Played", raises = "{raises}"}}'
    steps = train(changed(tmp_path, 'name = "rl"', table), tmp_path / "run")
    with pytest.raises((ContractError, NameError), match="told twice") as caught:
        next(iter(steps))
    assert any("stage 'rl'" in note for note in caught.value.__notes__)
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise {**vars" in text)
    if raises in ("TypeError", "AttributeError", "KeyError", "IndexError"):
        assert f"{raises}: " in str(caught.value) and f"{Path(__file__).name}, line {line})" in str(caught.value)


class Odd(gymnasium.Env[Any, Any]):
    """An environment whose 300th step, which no trial makes, asks its action for what no number has."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), float(action.worth if self.steps == 300 else 0), False, False, {}


gymnasium.register("Odd-v0", Odd)


def test_an_environment_that_fails_of_its_code_every_time_is_refused(tmp_path: Path) -> None:
    found = recipe("bandit", tmp_path, task={"name": f"gym/{HERE}:Odd-v0"}, rollout__use="episode", evaluate__n=0)
    found = found.with_settings({"models.policy.use": "categorical"})
    told = r"every environment failed .*no attribute 'worth' \(.*test_rehearsal.py, line"
    with pytest.raises(ContractError, match=told):
        rehearse(found)


@pytest.mark.parametrize(
    "settings",
    [
        'raises = "ValueError"',  # maybe of an answer that is none yet
        'raises = "AttributeError", says = "\'NoneType\' object has no attribute \'group\'"',
        'raises = "TypeError", one = true',  # others came about
    ],
)
def test_rollouts_that_fail_otherwise_or_in_part_are_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: str
) -> None:
    CALLS.clear()
    table = f'name = "rl"\nrollout = {{use = "{HERE}.Played", {settings}}}\nevaluate.n = 0'
    with caplog.at_level(logging.WARNING, "shuhari"):
        rehearse(changed(tmp_path, 'name = "rl"', table))
    assert "stage 'rl', rehearsed: failed_rollouts: " in caplog.text
