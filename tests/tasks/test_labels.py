"""Labels of completions and of steps, as rows have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.tasks.file import File
from shuhari.tasks.labels import list_steps, read_label


def read(tmp_path: Path, *rows: Any) -> File:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"split": "train", **row}) + "\n" for row in rows))
    return File(str(file))


@pytest.mark.parametrize(
    ("given", "label"),
    [(True, True), (0, False), ("true", True), (0.25, 0.25), ("0.75", 0.75), (1.0, True), ("0", False)],
)
def test_a_label_is_a_truth_or_a_probability(given: Any, label: Any) -> None:
    found = read_label(given)
    assert found == label and type(found) is type(label)


@pytest.mark.parametrize("given", ["yes", 2, -0.5, None, [1], "nan", float("inf"), {}])
def test_other_labels_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="expected true or false"):
        read_label(given)


@pytest.mark.parametrize("name", ["steps", "completions"])
def test_steps_with_labels_in_either_column(name: str, tmp_path: Path) -> None:
    row = {"prompt": "p", name: ["a", "b", "c", "d"], "labels": [True, None, 0.5, -1]}
    (problem,) = read(tmp_path, row).problems("train").problems
    assert list_steps(problem.info) == (("a", "b", "c", "d"), (True, None, 0.5, None))


def test_lists_of_other_meanings_are_left_alone(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, {"prompt": "p", "answer": "a", "steps": 3, "labels": ["x"]}).problems("train").problems
    assert problem.info["labels"] == ("x",) and list_steps(problem.info) == ((), ())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"steps": ["a", " "], "labels": [1, 0]}, "step 2 of `steps` is ' ': expected text"),
        ({"steps": ["a", 3], "labels": [1, 0]}, "step 2 of `steps` is 3: expected text"),
        ({"completions": ["a"], "labels": [1, 0]}, "1 `completions` and 2 `labels`: expected a label for each"),
        ({"steps": ["a", "b"], "labels": [1]}, "2 `steps` and 1 `labels`"),
        ({"steps": [], "labels": [1]}, "0 `steps` and 1 `labels`"),
        ({"steps": ["a"], "labels": [2]}, "`labels` is 2: expected true or false"),
        ({"steps": ["a", "b"], "labels": [None, -1]}, "no step of `steps` has a label"),
        ({"steps": ["a"]}, "no `labels` of steps, which line 1 has"),
        ({}, "no `labels` of steps, which line 1 has"),
        ({"completion": "a", "label": 1.5}, "`label` is 1.5: expected true or false"),
    ],
)
def test_a_bad_row_is_named_by_its_line(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 2: {message}"):
        read(tmp_path, {"prompt": "p", "steps": ["a"], "labels": [True]}, {"prompt": "q", **row})


def test_letters_and_ids_of_steps(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "steps": ["a", x], "labels": [1, 0]} for x in "bc"]
    task = read(tmp_path, *rows)
    assert set("pabc\n") == set(task.alphabet)
    assert len({p.id.partition("+")[0] for p in task.problems("train").problems}) == 2
