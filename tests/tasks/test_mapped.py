"""Columns under other names, and answers in the format of GSM8K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.data import Step
from shuhari.tasks.file import File
from shuhari.tasks.mapped import Mapped, cut_answer

GSM = {"question": "Natalia sold 48 clips, and half as many.", "answer": "48/2 = 24.\n48+24 = 72.\n#### 1,072"}


def make(tmp_path: Path, *rows: Any, **settings: Any) -> File:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "split": "train"}) + "\n" for row in rows))
    return File(str(path), **settings)


def test_columns_of_other_names(tmp_path: Path) -> None:
    row = {"question": "1+1=", "target": 2, "prompt": "not this", "level": 3}
    task = make(tmp_path, row, columns={"prompt": "question", "answer": "target"})
    (problem,) = task.problems("train").problems
    assert (problem.prompt, problem.answer, dict(problem.info)) == ("1+1=", 2, {"level": 3})
    assert task.read_from == {"prompt": "question", "answer": "target", "solution": "completion"}


def test_what_maps_nothing_changes_nothing() -> None:
    assert Mapped()(GSM) is GSM
    assert Mapped({"prompt": "question"})([1]) == [1]  # no row: refused where rows are read


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        ([GSM], {"columns": {"promt": "question"}}, "columns.promt: a row has no such field; did you mean 'prompt'"),
        ([GSM], {"columns": {"prompt": "questions"}}, "line 1: no column 'questions', which columns.prompt names; did"),
        ([{"task": "a"}], {}, r"line 1: no 'prompt' and no 'messages'; .*task.columns.prompt=<name>"),
        ([GSM], {}, "every `answer` is worked out and ends in `#### <number>`: say how .*task.format = 'gsm8k'"),
        ([{"prompt": "a", "answer": "72"}], {"format": "gsm8k"}, "line 1: `answer` is '72': expected `#### <number>`"),
        ([{"prompt": "a", "answer": 72}], {"format": "gsm8k"}, "line 1: `answer` is 72: expected `#### <number>`"),
        ([GSM], {"format": "gms8k"}, "gms8k"),
    ],
)
def test_mistakes_are_named(rows: list[Any], settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        make(tmp_path, *rows, **settings)


@pytest.mark.parametrize(
    ("said", "score"),
    [("#### 1072", 1.0), ("so it is\n#### 1,072", 1.0), ("1072.0", 1.0), ("#### 72", 0.0), ("#### 1072\n#### 5", 0.0),
     ("it is 1072", 1.0)],
)  # fmt: skip
def test_gsm8k(said: str, score: float, tmp_path: Path) -> None:
    task = make(tmp_path, GSM, columns={"prompt": "question"}, format="gsm8k")
    (problem,) = task.problems("train").problems
    assert problem.answer == "1072" and problem.solution == GSM["answer"]
    assert task.read_from == {"prompt": "question", "answer": "answer", "solution": "answer"}
    assert task.grade(problem, [Step("", "", None, 0, info={"text": said})]) == {"score": score}
    own = make(tmp_path, {**GSM, "completion": "x"}, columns={"prompt": "question"}, format="gsm8k")
    assert own.problems("train")[0].solution == "x"


def test_the_answer_of_a_text() -> None:
    assert cut_answer(" a #### 1,5 ", "whole") == " a #### 1,5 "
    assert [cut_answer(t, "gsm8k") for t in ("a #### b #### 1,500 ", "no mark, 2")] == ["1500", "no mark, 2"]
