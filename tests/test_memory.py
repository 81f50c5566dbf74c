"""What a killed process of tests has left is swept, and what a living one holds is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from memory import PREFIX, make_held, sweep

HOLD = "import sys, pathlib, memory; print(memory.make_held(pathlib.Path(sys.argv[1])), flush=True); input()"


def test_a_folder_is_swept_once_its_process_has_been_killed(tmp_path: Path) -> None:
    there = Path(__file__).parent
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=there, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:  # fmt: skip
        assert other.stdout is not None
        theirs, mine = Path(other.stdout.readline().strip()), make_held(tmp_path)
        sweep(tmp_path)
        assert {*tmp_path.glob(f"{PREFIX}*")} == {theirs, mine}
        other.kill()
    sweep(tmp_path)
    assert [*tmp_path.iterdir()] == [mine]
