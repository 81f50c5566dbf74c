"""What a stage imitates is known, and missed, before a run starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.amounts import describe_work


def grpo(path: Path, rows: list[dict[str, str]], *more: str) -> list[str]:
    """What the stages of GRPO on a file of these rows imitate."""
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = load("baselines/grpo", ['remove=["task"]', f'task.name="file/{file}"', *more])
    shared: dict[str, object] = {}
    return [build_stage(table, shared).imitates for table in recipe.stages]


ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1), "split": split} for i in range(4) for split in ("train", "test")]
ROWS = [{**row, "prompt": f"{row['split']} {row['prompt']}"} for row in ROWS]
SHOWN = [{**row, "completion": f"so {row['answer']}"} for row in ROWS]


def test_a_file_without_demonstrations_is_refused_with_the_ways_on(tmp_path: Path) -> None:
    told = r"stage\.warm-up\.buffer: problem '.*has an answer and no demonstration \(column `completion`\)"
    ways = r".*--remove stage\.warm-up.*--set stage\.warm-up\.buffer\.imitate=answer"
    with pytest.raises(RecipeError, match=told + ways):
        grpo(tmp_path, ROWS)
    assert grpo(tmp_path, ROWS, 'remove=["stage.warm-up"]') == [""]
    assert grpo(tmp_path, ROWS, "stage.warm-up.buffer.imitate=answer") == ["column `answer`", ""]


def test_one_row_of_many_without_a_demonstration_is_found(tmp_path: Path) -> None:
    train = [row for row in SHOWN if row["split"] == "train"]
    last = {k: v for k, v in train[-1].items() if k != "completion"}
    assert grpo(tmp_path, SHOWN) == ["column `completion`", ""]
    with pytest.raises(RecipeError, match="no demonstration"):
        grpo(tmp_path, [*(row for row in SHOWN if row is not train[-1]), last])


def test_pairs_are_not_imitated_and_the_recipe_for_them_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"], "chosen": "1", "rejected": "2", "split": row["split"]} for row in SHOWN]
    with pytest.raises(RecipeError, match="a pair of answers, which `shuhari train dpo`"):
        grpo(tmp_path, rows)


@pytest.mark.parametrize("task", ["arithmetic", "chain"])
def test_tasks_that_demonstrate_are_as_before(task: str) -> None:
    table, _ = load("baselines/grpo", ['remove=["task"]', f'task.name="{task}"']).stages
    stage = build_stage(table)
    assert stage.imitates == "demonstrations" and "imitates demonstrations" in describe_work(stage)
