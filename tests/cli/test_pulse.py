"""A line where no step ends for long, with the user's own file in it."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest

from shuhari.desk.cli.pulse import Pulse, find_own
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
