"""The examples, run as a person runs them: each in a process and a folder of its own, and what it says at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = [  # (file, what it prints: where that has the groups `before` and `after`, the second must be the larger)
    ("own_data.py", r"held-out reward (?P<before>[\d.]+) before, (?P<after>[\d.]+) after"),
    ("own_task.py", r"held-out score (?P<before>[\d.]+) -> (?P<after>[\d.]+)"),
    ("own_env.py", r"held-out score (?P<before>[\d.]+) -> (?P<after>[\d.]+)"),
]


@pytest.mark.parametrize(("name", "says"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_runs(name: str, says: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    told = re.search(says, ran.stdout)
    assert told is not None, ran.stdout
    numbers = {k: float(v) for k, v in told.groupdict().items()}
    assert not numbers or numbers["before"] < numbers["after"], ran.stdout


@pytest.mark.parametrize("name", [name for name, _ in EXAMPLES])
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 70
