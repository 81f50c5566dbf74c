"""Rows of a file that a model cannot read are found before the first step; where all fit, nothing changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import Recipe, load
from shuhari.loop.fitting import TooLongError
from shuhari.loop.run import open_run
from shuhari.loop.study import train

POLICY = """[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
intermediate = 16
context = 24
"""
SHOWN = """[buffer]
use = "demos"
size = 4
[part.policy]
terms.nll.stream = "ce"
optimiser.lr = 1e-2
"""
PAIRS = """[models.reference]
init = "policy"
[buffer]
use = "preferences"
size = 4
[part.policy]
terms.preference = {}
optimiser.lr = 1e-2
"""
SAMPLED = """[rollout]
n = 2
sampling.max_new = 4
[buffer]
size = 2
[collect.advantage]
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 1e-2
"""


def write(folder: Path, rows: list[Any], learns: str, more: str = "", task: str = "") -> Recipe:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f'steps = 3\n[task]\nname = "file/rows.jsonl"\n{task}\n{POLICY}{learns}{more}'
    (folder / "own.toml").write_text(text)
    return load(str(folder / "own.toml"))


def demonstrations(*sizes: int) -> list[Any]:
    return [{"prompt": f"{i:02}", "completion": "x" * n, "split": "train"} for i, n in enumerate(sizes)]


def read_prompts(recipe: Recipe, split: str = "train") -> list[Any]:
    """What is trained on once the first stage has begun."""
    with open_run(recipe) as run:
        run.enter_stage()
        return [(p.prompt, p.solution) for p in run.stage.task.problems(split).problems]  # type: ignore[attr-defined]


def test_rows_too_long_are_refused_before_the_first_step(tmp_path: Path) -> None:
    recipe = write(tmp_path, demonstrations(5, 60, 5, 22, 21), SHOWN)
    with pytest.raises(TooLongError) as error:
        next(train(recipe, tmp_path / "run"))
    told = str(error.value)
    assert told.startswith("task.too_long: file/") and "rows.jsonl, split 'train': 2 of 5 rows are longer" in told
    assert "than the 24 tokens that the model reads (longest 63: line 2; also line 4)" in told
    assert 'set models.policy.context = 64, or task.too_long = "leave_out" or "cut"' in told
    assert not getattr(error.value, "__notes__", ())


@pytest.mark.parametrize("rehearsal", [True, False])
def test_rows_are_left_out_and_told_once(tmp_path: Path, caplog: Any, rehearsal: bool) -> None:
    recipe = write(tmp_path, demonstrations(5, 60, 5, 22), SHOWN, task='too_long = "leave_out"')
    with caplog.at_level(logging.WARNING, "shuhari"):
        assert len(list(train(recipe, rehearsal=rehearsal))) == 3
    told = [r.getMessage() for r in caplog.records if "longer" in r.getMessage()]
    assert len(told) == 1 and told[0].endswith("(longest 63: line 2; also line 4): left out")
    assert [p for p, _ in read_prompts(recipe)] == ["00", "02"]


def test_rows_are_cut_and_told(tmp_path: Path, caplog: Any) -> None:
    rows = [*demonstrations(5, 60), {"prompt": "p" * 40, "completion": "yz", "split": "train"}]
    recipe = write(tmp_path, rows, SHOWN, task='too_long = "cut"')
    with caplog.at_level(logging.WARNING, "shuhari"):
        assert read_prompts(recipe) == [("00", "xxxxx"), ("01", "x" * 21), ("p" * 21, "yz")]
    assert "2 of 3 rows are longer" in caplog.text and caplog.text.count(": cut") == 1
    assert len(list(train(recipe))) == 3


def test_what_is_left_out_is_left_out_of_a_run_that_goes_on(tmp_path: Path) -> None:
    recipe = write(tmp_path, demonstrations(5, 60, 5, 22, 4), SHOWN, task='too_long = "leave_out"')
    whole = [r["policy/loss/nll"] for r in train(recipe, tmp_path / "whole")]
    steps = train(recipe, tmp_path / "cut")
    begun = [next(steps)["policy/loss/nll"]]
    steps.close()  # type: ignore[attr-defined]
    assert begun + [r["policy/loss/nll"] for r in train(recipe, tmp_path / "cut")] == whole


def test_pairs_are_measured_with_both_answers(tmp_path: Path) -> None:
    def rows(n: int) -> list[Any]:
        return [{"prompt": f"{i}", "chosen": "a", "rejected": "b" * (i * n + 1), "split": "train"} for i in range(4)]

    with pytest.raises(TooLongError, match=r"1 of 4 rows is longer .*longest 30: line 4"):
        next(train(write(tmp_path, rows(9), PAIRS)))
    cut = write(tmp_path, rows(9), PAIRS, task='too_long = "cut"')
    with open_run(cut) as run:
        run.enter_stage()
        last = run.stage.task.problems("train")[3]
    assert last.info == {"chosen": "a", "rejected": "b" * 22}
    assert len(list(train(cut))) == 3


def test_prompts_are_measured_with_the_answers_that_are_asked_for(tmp_path: Path) -> None:
    rows = [{"prompt": "p" * n, "answer": "a", "split": "train"} for n in (4, 20, 21)]
    with pytest.raises(TooLongError, match=r"1 of 3 rows is longer with the 4 of an answer .*longest 25: line 3"):
        next(train(write(tmp_path, rows, SAMPLED)))
    assert [p for p, _ in read_prompts(write(tmp_path, rows, SAMPLED, task='too_long = "cut"'))][2] == "p" * 20


def test_held_out_rows_are_measured_too(tmp_path: Path) -> None:
    rows = [*demonstrations(5, 5), {"prompt": "q", "completion": "x" * 70, "split": "validation"}]
    recipe = write(tmp_path, rows, SHOWN, more="[evaluate]\nevery = 2\n")
    with pytest.raises(TooLongError, match=r"split 'test': 1 of 1 row is longer .*longest 72: line 3"):
        next(train(recipe))
    assert len(list(train(write(tmp_path, rows, SHOWN)))) == 3  # which nobody reads


def test_rows_that_a_buffer_does_not_choose_may_be_long(tmp_path: Path) -> None:
    rows = [{**row, "level": i % 2} for i, row in enumerate(demonstrations(5, 60, 5, 60))]
    recipe = write(tmp_path, rows, SHOWN.replace("size = 4", "size = 4\nwhere = {level = 0}"))
    assert len(list(train(recipe))) == 3


def test_where_nothing_is_left_the_run_ends(tmp_path: Path) -> None:
    recipe = write(tmp_path, demonstrations(60, 70), SHOWN, task='too_long = "leave_out"')
    with pytest.raises(TooLongError, match="left out, and nothing is left of the split"):
        next(train(recipe))


def test_members_of_a_mixture_are_fitted(tmp_path: Path) -> None:
    recipe = write(tmp_path, [{**row, "answer": "x"} for row in demonstrations(5, 60)], SHOWN)
    tree = {**recipe.tree, "task": {"name": "mixture", "tasks": {"mine": dict(recipe.tree["task"])}}}
    with pytest.raises(TooLongError, match=r"task.tasks.mine.too_long: .*line 2") as error:
        next(train(Recipe("own", tree)))
    assert 'task.tasks.mine.too_long = "leave_out"' in str(error.value)
    tree["task"]["tasks"]["mine"]["too_long"] = "leave_out"
    assert len(list(train(Recipe("own", tree)))) == 3


def test_rows_that_fit_cost_nothing_and_change_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = write(tmp_path, demonstrations(5, 6, 7, 8), SHOWN)
    ours = [r["policy/loss/nll"] for r in train(recipe)]
    monkeypatch.setattr("shuhari.loop.run.fit_rows", lambda *_, **__: None)
    assert [r["policy/loss/nll"] for r in train(recipe)] == ours


def test_what_is_odd_about_the_data_is_told_once(tmp_path: Path, caplog: Any) -> None:
    rows = [{"question": f"{i}", "response": "a", "split": s} for i, s in enumerate(("train", "train", "dev", "extra"))]
    recipe = write(tmp_path, rows, SHOWN, more="[evaluate]\nevery = 2\n")
    with caplog.at_level(logging.WARNING, "shuhari"):
        list(train(recipe))
    told = [r.getMessage().partition("rows.jsonl: ")[2] for r in caplog.records]
    assert told == [
        "reads `question` as the prompt and `response` as the demonstration",
        "nothing here reads its split 'extra' (1 row)",
        "it has no split 'test': what is held out is its 'dev'",
    ]
