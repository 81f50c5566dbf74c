"""The examples, each run as a script in a folder of its own, and what it says at the end."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
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


@pytest.mark.parametrize(("command", "says"), EXAMPLES, ids=[c for c, _ in EXAMPLES])
def test_an_example_runs(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.search(says, printed)
    assert found is not None, printed
    numbers = {k: float(v) for k, v in found.groupdict().items()}
    assert not numbers or numbers["before"] < numbers["after"], printed


def test_the_notebook_runs_in_an_event_loop_as_a_kernel_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    assert not any(c.get("outputs") for c in cells)
    source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    short = source.replace("WARM_UP, STEPS = 300, 120", "WARM_UP, STEPS = 3, 2")
    assert short != source
    (tmp_path / "cells.py").write_text(short + "\nprint('mean of the last', float(batch.outcome('reward').mean()))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)

    async def run_cells() -> None:
        runpy.run_path("cells.py")

    asyncio.run(run_cells())
    assert "mean of the last -" in capsys.readouterr().out


@pytest.mark.parametrize("name", [c.split()[0] for c, _ in EXAMPLES])
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 70
