"""A line where no step ends for long, with the user's own file in it."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from pathlib import Path

import pytest

from shuhari.desk.cli import pulse
from shuhari.desk.cli.pulse import DOING, Pulse, describe_load, find_doing, find_own
from shuhari.distributed.starting import find_start, starting


def test_it_speaks_where_no_step_ends_and_is_silent_otherwise(capfd: pytest.CaptureFixture[str]) -> None:
    with Pulse(0.05) as pulse:
        for step in range(1, 6):
            pulse.beat(step)
        time.sleep(0.13)
    said = capfd.readouterr().err.splitlines()
    assert said and all(line.startswith("step 6 has taken 0 s so far") for line in said) and len(said) <= 2
    with Pulse(30.0):
        pass
    assert not capfd.readouterr().err


def test_what_is_started_beside_a_run_is_no_slow_step(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shuhari")
    with Pulse(0.5), starting("starting all of it"):
        time.sleep(0.8)
        assert find_start()[0] == "starting all of it"
    said = capfd.readouterr().err.splitlines()
    assert said and all(line.startswith("starting all of it has taken") for line in said)
    with Pulse(0.5):
        with starting("starting it again"):
            time.sleep(0.4)
        time.sleep(0.2)  # 0.6 s without a step, of which 0.4 were none of it
    assert not capfd.readouterr().err and find_start()[0] == ""
    assert [r.getMessage() for r in caplog.records] == ["starting all of it", "starting it again"]


def test_the_innermost_file_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\ndef slow():\n    return sys._getframe()\nframe = slow()"
    code = compile(text, str(tmp_path / "mine.py"), "exec")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102
    monkeypatch.chdir(tmp_path)
    assert find_own(names["frame"]) == "slow, mine.py:3"  # type: ignore[arg-type]
    assert find_own(sys._getframe()) == "" == find_own(None)


def test_what_it_names_is_there() -> None:
    for module, function in DOING:
        found = vars(importlib.import_module(f"shuhari.{module}"))
        classes = [vars(x) for x in found.values() if isinstance(x, type)]
        assert any(function in names for names in (found, *classes)), (module, function)


def test_the_outermost_work_is_told() -> None:
    def make(module: str, function: str) -> object:
        names: dict[str, object] = {"__name__": f"shuhari.{module}", "sys": sys}
        exec(f"def {function}(inner=None):\n    return inner() if inner else sys._getframe()", names)  # noqa: S102
        return names[function]

    collect, rehearse = make("loop.run", "collect"), make("loop.rehearsal", "rehearse")
    assert find_doing(collect()) == "sampling and grading"  # type: ignore[operator]
    assert find_doing(rehearse(collect)) == "trying each stage on a few problems"  # type: ignore[operator]
    assert find_doing(None) == "" == find_doing(sys._getframe())


def test_other_programs_are_named_if_they_leave_little(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulse.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(pulse.os, "getloadavg", lambda: (9.5, 0.0, 0.0))
    assert describe_load(0.14) == "this process gets 0.14 of 2 cores, and the machine has a load of 9.5"
    assert describe_load(0.5) == ""
    with Pulse(0.1, "the evaluation"):
        time.sleep(0.15)  # without work
    said = capfd.readouterr().err
    assert said.startswith("the evaluation has taken 0 s so far") and "; this process gets 0.0" in said
    monkeypatch.setattr(pulse.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    assert describe_load(0.14) == ""  # no more than itself and one other
