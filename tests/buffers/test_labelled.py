"""Recorded answers with labels: where labels are, what weighs, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.buffers.labelled import Labelled
from shuhari.data import Problem
from shuhari.models.text.made_tokenizers import character_tokenizer

LETTERS = character_tokenizer("abc\n")
NAN = float("nan")


def context(*infos: dict[str, Any], model: Any = LETTERS) -> Any:
    problems = [Problem("t", str(i), "a", None, info.pop("solution", None), info) for i, info in enumerate(infos)]

    class Source:
        def size(self) -> int:
            return len(problems)

        def __getitem__(self, i: int) -> Problem:
            return problems[i]

    task = SimpleNamespace(problems=lambda split: Source(), environment=lambda problem: None)
    return testing.context(task=task, models={"reward": model})


def draw(ctx: Any, n: int, **settings: Any) -> Any:
    (batch,) = Labelled(size=n, shuffle=False, **settings).draw(ctx)
    return batch


def test_a_label_of_the_whole_is_on_the_end_token() -> None:
    batch = draw(context({"solution": "bc", "label": True}, {"solution": "b", "label": 0.25}), 2)
    assert batch["label"].nan_to_num(-1).tolist() == [[-1, -1, 1], [-1, 0.25, -1]]
    assert batch.weight("rl").tolist() == [[0, 0, 1], [0, 1, 0]]
    assert batch.steps[0].action.tolist()[-1] == LETTERS.end and bool(batch["logp"][batch["mask"]].isnan().all())


def test_labels_of_steps_are_where_their_steps_end() -> None:
    """"a\\nbc\\nb" and the end token: steps end at characters 2, 5 and 6."""
    row = {"steps": (" a", "bc\n", "b"), "labels": (True, None, 0.5), "weight": 2}
    batch = draw(context(row), 1)
    assert LETTERS.decode(batch.steps[0].action) == "a\nbc\nb"
    assert batch["label"].nan_to_num(-1).tolist() == [[-1, 1, -1, -1, -1, 0.5, -1]]
    assert batch.weight("rl").tolist() == [[0, 2, 0, 0, 0, 2, 0]]


def test_labels_on_one_token_are_averaged() -> None:
    pieces = ["b\nc\n", "a", ""]
    model = SimpleNamespace(
        encode=lambda text: np.array([0, 1] if len(text) > 1 else [1], np.int32), end=2,
        decode=lambda ids: "".join(pieces[i] for i in ids),
    )  # fmt: skip
    batch = draw(context({"steps": ("b", "c", "a"), "labels": (True, False, True)}, model=model), 1)
    assert batch["label"].nan_to_num(-1).tolist() == [[0.5, 1, -1]]


def test_what_a_task_cut_keeps_the_labels_of_whole_steps() -> None:
    row = {"steps": ("a", "bc", "b"), "labels": (True, False, True)}
    half = draw(context({**row, "solution": "a\nb"}), 1)
    assert half["label"].nan_to_num(-1).tolist() == [[-1, 1, -1, -1]]
    whole = draw(context({**row, "solution": "a\nbc\n"}), 1)
    assert whole["label"].nan_to_num(-1).tolist() == [[-1, 1, -1, -1, 0, -1]]
    other = draw(context({**row, "solution": "ccc"}), 1)
    assert LETTERS.decode(other.steps[0].action) == "a\nbc\nb"


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, "has no label: expected a `completion`"),
        ({"solution": "a"}, "has no label"),
        ({"label": True}, "has no label"),
        ({"solution": "a", "label": "x"}, "problem '0' of t: `label` is 'x'"),
        ({"steps": ("a", ""), "labels": (1, 0)}, "step 2 is '': expected text"),
        ({"steps": ("a", "b\nc"), "labels": (1, 0)}, r"step 2 contains '\\n', the separator"),
        ({"steps": ("a", "b"), "labels": (1,)}, "2 steps and 1 labels: expected a label for each"),
        ({"solution": "a", "label": True, "weight": -1.0}, "a weight is -1: expected 0 or more"),
    ],
)
def test_what_cannot_be_learnt_from_is_named(info: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(context(info), 1)
    with pytest.raises(ValueError, match="separator is ''"):
        Labelled(separator="")


def test_held_out_rows_do_not_move_it() -> None:
    ctx = context(*({"solution": x, "label": x == "b"} for x in "abc"))
    buffer = Labelled(size=2)
    (batch,) = buffer.held_out("test", 10, ctx)
    assert len(batch) == 3 and buffer.state == {"at": 0}
    assert torch.nansum(batch["label"]) == 1 and buffer.shows(ctx.task.problems("test")[0]) == ("a",)
