"""Further processes of a run: how long they are waited for. Their other ends are here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shuhari.distributed import processes
from shuhari.distributed.children import kill_session, open_process, read_end, wait_for_end
from shuhari.distributed.processes import DONE, FAILED, Processes, RankError
from shuhari.kernel.abilities import do_nothing
from shuhari.store import codec


def make_team(folder: Path) -> tuple[Processes, Any, Connection]:
    """A team of one that lives and says nothing by itself, that one, and its end of the link."""
    team = Processes("none", 1, {}, "", do_nothing, do_nothing)
    link, there = Pipe()
    alive = SimpleNamespace(poll=lambda: None, wait=lambda _: None, returncode=None)
    other = SimpleNamespace(number=1, asked="", log=folder / "log", link=link, process=alive)
    team.others = [other]  # type: ignore[list-item]
    return team, other, there


@pytest.mark.parametrize("answered", [True, False])
def test_who_was_killed_is_named_and_not_who_failed_for_want_of_it(tmp_path: Path, answered: bool) -> None:
    """Its connections close, and learner 1 fails and says so, before the system says that learner 2 has ended."""
    team, first, there = make_team(tmp_path)
    ends = iter([None, None, None])
    killed = SimpleNamespace(poll=lambda: next(ends, -signal.SIGKILL), wait=lambda _: None, returncode=-signal.SIGKILL)
    link, _there = Pipe()
    team.others.append(
        SimpleNamespace(number=2, asked="step", log=tmp_path / "log", link=link, process=killed),  # type: ignore[arg-type]
    )
    first.process.poll, first.process.returncode = (lambda: 1), 1
    team.ask(first, "step")
    if answered:
        there.send_bytes(FAILED)
    with pytest.raises(RankError, match=r"learner 2 of 1 died while step \(signal SIGKILL\)"):
        team.answer(first)


def test_who_failed_is_named_if_nobody_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOMENT", 0.1)
    team, first, there = make_team(tmp_path)
    team.ask(first, "step")
    there.send_bytes(FAILED)
    with pytest.raises(RankError, match=r"learner 1 of 1 failed while step"):
        team.answer(first)


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


# begins another process, in a group of its own, and ends
BEGINS = """import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0).pid)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sessions are read from /proc")
@pytest.mark.parametrize("noted", [False, True])
def test_what_a_process_had_begun_is_killed_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    (tmp_path / "begins_another.py").write_text(BEGINS)
    monkeypatch.syspath_prepend(tmp_path)
    made, _ = open_process("begins_another", tmp_path / "log", subprocess.DEVNULL)
    wait_for_end(made, 60.0)
    pid = int((tmp_path / "log").read_text())
    try:
        if noted:  # its number may be another's from here on
            assert made.wait() == 0
        kill_session(made)
        assert made.returncode == 0
        stat = Path("/proc", str(pid), "stat")
        assert noted == (stat.is_file() and ") Z " not in stat.read_text())
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_end_of_a_log_is_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{i} {'x' * 999}\n" for i in range(100)))
    assert [line.split()[0] for line in read_end(tmp_path / "log", 3).splitlines()] == ["97", "98", "99"]
    assert {len(line) for line in read_end(tmp_path / "log", 90).splitlines()} == {1002}
    assert read_end(tmp_path / "none", 3) == ""
