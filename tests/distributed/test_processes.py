"""Further processes of a run: how long they are waited for. Their other ends are here."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shuhari.abilities import do_nothing
from shuhari.distributed import processes
from shuhari.distributed.processes import DONE, Processes, RankError
from shuhari.store import codec


def make_team(folder: Path) -> tuple[Processes, Any, Connection]:
    """A team of one that lives and says nothing by itself, that one, and its end of the link."""
    team = Processes("none", 1, {}, "", do_nothing, do_nothing)
    link, there = Pipe()
    alive = SimpleNamespace(poll=lambda: None, wait=lambda _: None, returncode=None)
    other = SimpleNamespace(number=1, asked="", log=folder / "log", link=link, process=alive)
    team.others = [other]  # type: ignore[list-item]
    return team, other, there


def test_a_step_is_waited_for_and_a_start_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TIMEOUT", 0.05)
    monkeypatch.setattr(processes, "GLANCE", 0.01)
    team, other, there = make_team(tmp_path)
    team.ask(other, "step")
    late = threading.Timer(0.5, lambda: there.send_bytes(DONE + codec.dumps({"lr": 1.0})))
    late.start()
    assert team.answer(other) == {"lr": 1.0}
    other.asked = "starting"
    with pytest.raises(RankError, match=r"learner 1 of 1 has not answered for 0 s, while starting"):
        team.answer(other)
