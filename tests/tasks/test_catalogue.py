"""The listing of tasks: complete, and whole when an extra is missing."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from shuhari.kernel import registry
from shuhari.tasks import catalogue
from shuhari.tasks.arithmetic import Arithmetic


def test_every_task_is_listed() -> None:
    entries = {e["use"]: e for e in catalogue.list_tasks()}
    assert set(entries) == set(registry.names("task"))
    assert {"arithmetic", "countdown", "reasoning-gym", "file", "bandit", "gridworld", "gym"} <= set(entries)
    assert all(e["summary"] and e["problem"] is None for e in entries.values())
    assert entries["arithmetic"]["fields"]["forget"] == 0.0
    assert entries["gym"]["name"] == "gym/<id>" and entries["bandit"]["spaces"] == "Discrete(1) -> Discrete(10)"
    shown = entries["arithmetic"]["example"]
    a, b = map(int, shown["prompt"].removesuffix("=").split("+"))
    assert int(shown["answer"]) == a + b


def test_a_missing_extra_or_a_broken_task_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Broken:
        """Never made."""

        def __post_init__(self) -> None:
            raise OSError("no disk")

    registry.names("task")
    monkeypatch.setitem(registry._ENTRIES, ("task", "broken"), Broken)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    entries = {e["use"]: e for e in catalogue.list_tasks()}
    assert entries["reasoning-gym"]["example"]["answer"] == "-5"
    assert entries["broken"]["problem"] == "OSError: no disk" and entries["broken"]["summary"] == "Never made."


def test_preview() -> None:
    task = Arithmetic(test_size=2)
    assert [p["prompt"] for p in catalogue.preview(task, 3)] == [task.problems("train")[i].prompt for i in range(3)]
    assert len(catalogue.preview(task, 3, "test")) == 2
