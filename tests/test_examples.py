"""The examples, run as a person runs them: each in a process and a folder of its own, and what it says at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = [  # (command, what it prints: of the groups `before` and `after`, the second must be the larger)
    ("own_data.py", r"held-out reward (?P<before>[\d.]+) before, (?P<after>[\d.]+) after"),
    ("own_task.py", r"held-out score (?P<before>[\d.]+) -> (?P<after>[\d.]+)"),
    ("own_env.py", r"held-out score (?P<before>[\d.]+) -> (?P<after>[\d.]+)"),
    ("own_loop.py 12 2", r"held-out accuracy [\d.]+ after imitation, [\d.]+ after RL"),
]


def run(*command: object, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
    ran = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(("command", "says"), EXAMPLES, ids=[c for c, _ in EXAMPLES])
def test_an_example_runs(command: str, says: str, tmp_path: Path) -> None:
    name, *arguments = command.split()
    said = run(ROOT / "examples" / name, *arguments, folder=tmp_path)
    told = re.search(says, said)
    assert told is not None, said
    numbers = {k: float(v) for k, v in told.groupdict().items()}
    assert not numbers or numbers["before"] < numbers["after"], said


def test_the_notebook_runs_in_an_event_loop_as_a_kernel_has_one(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    assert not any(c.get("outputs") for c in cells)
    source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    short = source.replace("WARM_UP, STEPS = 300, 120", "WARM_UP, STEPS = 3, 2")
    assert short != source
    (tmp_path / "cells.py").write_text(short + "\nprint('mean of the last', float(batch.outcome('reward').mean()))\n")
    kernel = "import asyncio, runpy\nasync def main(): runpy.run_path('cells.py')\nasyncio.run(main())\n"
    (tmp_path / "kernel.py").write_text(kernel)
    assert "mean of the last -" in run("kernel.py", folder=tmp_path)


@pytest.mark.parametrize("name", [c.split()[0] for c, _ in EXAMPLES])
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 70
