"""Problems from a file: good rows, bad rows named by their line, splits, and the normalised match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Step
from shuhari.tasks.file import File, matches


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows))
        return str(path)

    return to


def both(task: File) -> dict[str, list[Problem]]:
    return {s: list(task.problems(s).problems) for s in ("train", "test")}


def test_rows_become_problems(write: Any) -> None:
    row = {"prompt": "6*7=", "answer": 42, "solution": "6*7 is 42", "id": "q1", "level": 3, "tags": ["a", {"b": None}]}
    chat = {"prompt": [{"role": "user", "content": "hi"}], "answer": "ho", "split": "train"}
    train = File(write({**row, "split": "train"}, b"\n", b"  \n", chat)).problems("train")
    assert train.size() == 2
    first, second = train[0], train[1]
    assert (first.prompt, first.answer, first.solution, first.id) == ("6*7=", 42, "6*7 is 42", "q1")
    assert first.info == {"level": 3, "tags": ("a", {"b": None})}
    assert second.prompt == ({"role": "user", "content": "hi"},)
    assert second.answer == "ho" and second.solution is None


def test_split_by_content(write: Any) -> None:
    rows = [{"prompt": f"question {i % 300}", "answer": str(i)} for i in range(600)]
    path = write(*rows)
    splits = both(File(path, test_fraction=0.3))
    prompts = {s: {p.prompt for p in problems} for s, problems in splits.items()}
    assert not prompts["train"] & prompts["test"]
    assert len(splits["train"]) + len(splits["test"]) == 600
    assert abs(len(prompts["test"]) / 300 - 0.3) < 4 * (0.21 / 300) ** 0.5
    assert len({p.id for problems in splits.values() for p in problems}) == 600
    shuffled = both(File(write(*rows[::-1], name="reversed.jsonl"), test_fraction=0.3))
    assert {p.prompt for p in shuffled["test"]} == prompts["test"]  # the order of rows moves nothing
    wider = {p.prompt for p in both(File(path, test_fraction=0.6))["test"]}
    assert prompts["test"] < wider


def test_the_split_column_is_honoured(write: Any) -> None:
    rows = [{"prompt": f"p{i}", "answer": "a", "split": ("train", "test", "hard")[i % 3]} for i in range(30)]
    rows.append({"prompt": "p2", "answer": "b"})  # goes where its prompt already is
    task = File(write(*rows))
    splits = both(task)
    assert [p.prompt for p in splits["test"]] == [f"p{i}" for i in range(1, 30, 3)]
    hard = task.problems("hard")
    assert [hard[i].prompt for i in range(11)] == [*(f"p{i}" for i in range(2, 30, 3)), "p2"]
    with pytest.raises(ValueError, match="did you mean 'hard'"):
        task.problems("hart")
    with pytest.raises(ValueError, match=r"lines 1 and 2 have one prompt.*'train' and 'test'"):
        File(write({"prompt": "p", "answer": "a", "split": "train"}, {"prompt": "p", "answer": "a", "split": "test"}))


def test_an_empty_split_says_why(write: Any) -> None:
    task = File(write({"prompt": "p", "answer": "a", "split": "train"}))
    with pytest.raises(ValueError, match=r"none of its 1 rows is in the split 'test' \(test_fraction is 0\.1\)"):
        task.problems("test")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{'prompt': 1}\n", "Expecting property name"),
        (b"[1, 2]\n", "found list"),
        ({"answer": "a"}, "no 'prompt'"),
        ({"prompt": "p", "anwser": "a"}, "no 'answer'; did you mean 'anwser'"),
        ({"prompt": "p", "answer": [1]}, r"\[1\]"),
        ({"prompt": "p", "answer": None}, "no 'answer'"),
        ({"prompt": "p", "answer": True}, "True"),
        ({}, "empty"),
        ({"prompt": 3, "answer": "a"}, "expected text, or messages"),
        ({"prompt": "", "answer": "a"}, "expected text"),
        ({"prompt": [{"role": "user"}], "answer": "a"}, "messages"),
        (b'{"prompt": "p", "answer": NaN}\n', "NaN is not JSON"),
        (b'{"prompt": "\xff", "answer": "a"}\n', "utf-8"),
        (b"[" * 100_000 + b"\n", "line 3"),
        (b'{"prompt"\n', "Expecting"),
        ({"prompt": "p", "answer": "a", "split": 1}, "`split` is 1"),
        ({"prompt": "p", "answer": "a", "solution": 1}, "`solution`"),
    ],
)
def test_a_bad_row_is_named_by_its_line(write: Any, bad: Any, message: str) -> None:
    good = {"prompt": "fine", "answer": "a"}
    with pytest.raises(ValueError, match="line 3: ") as caught:
        File(write(good, b"\n", bad, good))
    assert caught.match(message)


def test_files_that_are_not_there_or_empty(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        File(write())
    with pytest.raises(ValueError, match="no rows"):
        File(write(b"\n \n"))
    with pytest.raises(FileNotFoundError, match=r"did you mean 'rows\.jsonl'"):
        File(str(tmp_path / "row.jsonl"))
    with pytest.raises(FileNotFoundError):
        File(str(tmp_path))
    with pytest.raises(ValueError, match="a path is missing"):
        File()
    with pytest.raises(ValueError, match="lines 1 and 2 have one id, 'x'"):
        File(write({"prompt": "p", "answer": "a", "id": "x"}, {"prompt": "q", "answer": "a", "id": "x"}))


def test_a_byte_order_mark_is_no_content(write: Any) -> None:
    row = json.dumps({"prompt": "p", "answer": "a", "split": "train"}).encode() + b"\n"
    assert File(write(b"\xef\xbb\xbf" + row)).problems("train")[0].prompt == "p"


def test_alphabet(write: Any) -> None:
    rows = [{"prompt": "ab", "answer": 12}, {"prompt": [{"role": "u", "content": "c"}], "answer": "d", "solution": "e"}]
    assert File(write(*rows)).alphabet == "12abcdeu"


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("42", "42", True),
        (" Forty  two\n", "forty two", True),
        ("42.0", "42", True),
        ("+42", "42", True),
        ("0.50", "0.5", True),
        ("\uff14\uff12", "42", True),
        ("42", "43", False),
        ("42 apples", "42", False),
        ("4 2", "42", False),
        ("", "42", False),
        ("4e1", "40", False),
        ("STRASSE", "straße", True),
        ("9" * 50, "9" * 49, False),
        ("1/2", "0.5", False),
        ("0." + "3" * 30, "0." + "3" * 31, False),
    ],
)
def test_matches(text: str, answer: str, same: bool) -> None:
    assert matches(text, answer) is same


def test_grading(write: Any) -> None:
    task = File(write({"prompt": "6*7=", "answer": 42, "split": "train"}))
    ids = np.ones(2, np.int32)
    for text, score in (("42\n", 1.0), ("42.00", 1.0), ("41", 0.0), ("", 0.0), ("9" * 10**6, 0.0)):
        assert task.grade(task.problems("train")[0], [Step.of(ids, ids, info={"text": text})]) == {"score": score}
