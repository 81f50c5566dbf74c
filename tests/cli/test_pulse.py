"""A line where no step ends for long, with the user's own file in it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from shuhari.cli.pulse import Pulse, find_own


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


def test_the_innermost_file_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\ndef slow():\n    return sys._getframe()\nframe = slow()"
    code = compile(text, str(tmp_path / "mine.py"), "exec")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102
    monkeypatch.chdir(tmp_path)
    assert find_own(names["frame"]) == "slow, mine.py:3"  # type: ignore[arg-type]
    assert find_own(sys._getframe()) == "" == find_own(None)
