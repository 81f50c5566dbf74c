"""Budgets: what counts towards them, and how stages follow each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.loop.progress import Progress


def progress(*budgets: dict[str, float]) -> Any:
    stages: Any = [SimpleNamespace(name=str(i), budget=b) for i, b in enumerate(budgets)]
    return Progress(stages, {})


def test_a_budget_counts_probes_and_not_evaluation() -> None:
    at = progress({"tokens": 100})
    at.ledger |= {"tokens": 40, "probe/tokens": 30, "probe/judge/tokens": 20, "prompt_tokens": 500}
    at.ledger |= {"evaluate/tokens": 900, "evaluate/judge/tokens": 900}
    assert at.spent() == {"tokens": (90, 100)}
    assert not at.over()
    at.ledger["probe/tokens"] += 10
    assert at.over() and at.done()


def test_a_stage_pays_for_itself_alone() -> None:
    at = progress({"decisions": 10}, {"decisions": 10, "steps": 3})
    at.ledger |= {"steps": 4, "decisions": 6, "probe/decisions": 5}
    assert not at.done()
    assert at.stage.name == "1" and not at.entered and at.steps == 0
    assert at.spent() == {"decisions": (0, 10), "steps": (0, 3)}
    at.ledger |= {"steps": 6, "probe/decisions": 9}
    assert at.spent() == {"decisions": (4, 10), "steps": (2, 3)}
    at.ledger["steps"] = 7
    assert at.done()


def test_a_budget_that_nothing_spends_is_an_error() -> None:
    at = progress({"tokens": 100})
    at.ledger |= {"steps": 20, "env_steps": 7}
    with pytest.raises(RecipeError, match="tokens: 20 steps of stage '0' spent nothing of it, only env_steps, steps"):
        at.over()
    at.ledger["tokens"] = 1
    assert not at.over()
    slow = progress({"updates": 5})  # learning may begin late
    slow.ledger["steps"] = 1000
    assert not slow.over()


def test_seconds_are_of_all_sittings() -> None:
    at = progress({"seconds": 50})
    at.wall = 60.0
    assert at.over() and at.seconds() >= 60


def test_schedules_stand_where_the_steps_or_the_first_budget_of_a_stage_does() -> None:
    at = progress({"tokens": 100}, {"env_steps": 9, "steps": 4})
    at.ledger |= {"steps": 3, "tokens": 30, "probe/tokens": 20, "evaluate/tokens": 40}
    now = at.count()
    assert (now, now.spent, now.whole, now.in_steps) == (3, 50, 100, False)
    at.ledger |= {"tokens": 90, "steps": 6}
    assert not at.done()  # on to the second stage
    at.ledger |= {"steps": 7, "env_steps": 5}
    now = at.count()
    assert (now, now.spent, now.whole, now.in_steps) == (1, 1, 4, True)
