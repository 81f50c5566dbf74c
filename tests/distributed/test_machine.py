"""How many processes a machine has room for: by its cores and its memory, worked out by hand."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import shuhari
from shuhari.config.distributed import Distributed
from shuhari.config.overlay import RecipeError
from shuhari.distributed import machine


def test_more_processes_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(machine, "measure_memory", lambda: 2**34)
    machine.check_machine(Distributed(workers=32, learners=32))
    machine.check_machine(Distributed(workers=1000, address="auto"))  # they are elsewhere
    with pytest.raises(RecipeError, match=r"distributed\.workers: each of 33 .* 2 cores and 17 GB .* most 32, or"):
        machine.check_machine(Distributed(workers=33))
    monkeypatch.setattr(machine, "measure_memory", lambda: 2**31)
    with pytest.raises(RecipeError, match=r"distributed\.learners: each of 9 .* expected at most 8$"):
        machine.check_machine(Distributed(learners=9))


def test_an_error_comes_before_what_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is left on disk. The learning rate's schedule does not fit two steps, which a run is warned of."""
    with caplog.at_level(logging.INFO, "shuhari"), pytest.raises(RecipeError, match=r"workers: each of 999"):
        shuhari.train("baselines/grpo", tmp_path / "run", **{"stage.rl.steps": 2, "distributed.workers": 999})
    assert not caplog.records and not (tmp_path / "run").exists()
