"""Every task that lists answers: what its grade says of each of them is the score that is listed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Step
from shuhari.kernel.abilities import ability
from shuhari.kernel.registry import entries

BUILT: dict[str, dict[str, Any]] = {}  # settings of tasks that need some
LISTING = sorted(name for (kind, name), cls in entries().items()
                 if kind == "task" and hasattr(cls, "answers") and cls.__module__.startswith("shuhari.")
                 and name != "mixture")  # fmt: skip


def steps(problem: Problem, said: Any) -> list[Step]:
    if isinstance(said, str):
        return [Step.of(np.zeros(1, np.int32), np.zeros(1, np.int32), info={"text": said})]
    return [Step.of(problem.prompt, said)]


@pytest.mark.parametrize("name", LISTING)
@pytest.mark.parametrize("split", ["train", "test"])
def test_grades_agree_with_what_is_listed(name: str, split: str) -> None:
    task = entries()["task", name](**BUILT.get(name, {}))
    source = task.problems(split)
    for i in range(8):
        problem = source[i]
        answers = ability(task, "answers")(problem)
        assert answers is not None and len(set(answers.texts)) == len(answers.texts)
        for text, score in zip(answers.texts, answers.scores, strict=True):
            assert task.grade(problem, steps(problem, text))["score"] == pytest.approx(score, abs=1e-12)
        assert answers.complete or min(answers.scores, default=1.0) > 0


def test_several_tasks_list() -> None:
    assert {"arithmetic", "bandit"} <= set(LISTING)
