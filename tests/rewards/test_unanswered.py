"""A grader that compares with answers, on rows that have none: refused before any model is read, with the setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.data import report
from shuhari.desk.evaluating import Asked, make_graders, make_task, open_bare
from shuhari.tasks.file import File

REPLY = {"prompt": "2 + 3?", "completion": "5"}
PAIR = {"prompt": "2 + 3?", "chosen": "5", "rejected": "6"}
CHAT = {"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}
RECIPE = """
steps = 1
task.name = "file/{path}"
models.policy = {{use = "causal", hidden = 8, layers = 1, heads = 1, intermediate = 8}}
part.policy = {{terms.loss = {{use = "clip"}}, optimiser.lr = 1e-2}}
reward.maths = {{}}
reward.weights.maths = {weight}
{more}
"""


def write(folder: Path, row: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 3)
    return path


def build(folder: Path, row: dict[str, Any], more: str = "[collect.advantage]", weight: float = 1.0) -> Any:
    (folder / "r.toml").write_text(RECIPE.format(path=write(folder, row), more=more, weight=weight))
    return build_stage(load(folder / "r.toml").stages[0])


@pytest.mark.parametrize(
    ("row", "helps"),
    [
        (REPLY, "task.columns.answer = 'completion'"),
        ({"question": "2 + 3?", "response": "5"}, "task.columns.answer = 'response'"),
        ({"prompt": "2 + 3?", "solution": "5"}, "task.columns.answer = 'solution'"),
        (PAIR, "pretrained/dpo"),
        (CHAT, "a column `answer`"),
        ({"prompt": "2 + 3?"}, "a column `answer`"),
    ],
)
def test_it_is_refused_with_what_helps(tmp_path: Path, row: dict[str, Any], helps: str) -> None:
    with pytest.raises(RecipeError, match="'maths' compares with the `answer` of a problem, and no problem") as refused:
        build(tmp_path, row)
    assert helps in str(refused.value)


@pytest.mark.parametrize("row", [REPLY, {"question": "2 + 3?", "response": "5"}, {"prompt": "a", "solution": "5"}])
def test_the_setting_that_is_named_gives_answers(tmp_path: Path, row: dict[str, Any]) -> None:
    named = File(str(write(tmp_path, row))).unanswered
    column = next(name for name in row if f"task.columns.answer = {name!r}" in named)
    more = f'[collect.advantage]\n[task.columns]\nanswer = "{column}"\n'
    built = build(tmp_path, row, more)
    assert {p.answer for p in built.task.problems("train").problems} == {"5"} and not built.task.unanswered


def test_nothing_is_refused_that_reads_no_such_grade(tmp_path: Path) -> None:
    assert build(tmp_path, {**REPLY, "answer": "5"}).weights == {"maths": 1}
    assert build(tmp_path, REPLY, more="").rewards  # no transform reads a reward
    assert build(tmp_path, REPLY, weight=0.0).rewards  # it is only measured


def test_an_evaluation_is_refused_before_a_model_is_read(tmp_path: Path) -> None:
    asked = Asked(make_task({"name": f"file/{write(tmp_path, REPLY)}"}), make_graders("maths"))
    with pytest.raises(RecipeError, match=r"task\.columns\.answer = 'completion'"), open_bare(asked):
        pass


def test_data_hints_at_replies_that_may_be_answers_and_at_no_others(tmp_path: Path) -> None:
    def hints(row: dict[str, Any]) -> list[str]:
        return [note for note in report(File(str(write(tmp_path, row))))["notes"] if "pretrained/grpo" in note]

    assert len(hints(REPLY)) == 1 and "task.columns.answer = 'completion'" in hints(REPLY)[0]
    assert not any(map(hints, (PAIR, CHAT, {"text": "two and three are five"}, {**REPLY, "answer": "5"})))
