"""A process that answers over pipes, and one that does not read what is asked."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from shuhari.engines import process
from shuhari.engines.process import DiedError, Process

ECHO = """
import json, sys
sys.stdin.readline()
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], "length": len(asked["text"])}), flush=True)
"""
DEAF = """
import json, sys, time
sys.stdin.readline()
print(json.dumps({"ready": True}), flush=True)
time.sleep(300)
"""
LONG = "x" * (1 << 20)  # more than a pipe holds


def start(program: str, folder: Path) -> Process:
    (folder / "its").mkdir()
    return Process([sys.executable, "-I", "-c", program], os.environ, folder / "its", folder / "log", {}, 60)


def test_what_is_longer_than_a_pipe_is_answered_in_full_and_it_goes_by_itself(tmp_path: Path) -> None:
    made = start(ECHO, tmp_path)

    async def ask() -> list[int]:
        replies = await asyncio.gather(*(made.ask({"text": LONG[i:]}, 60) for i in range(3)))
        return [r["length"] for r in replies]

    assert asyncio.run(ask()) == [len(LONG) - i for i in range(3)]
    made.close()
    assert made.process.returncode == 0 and not (tmp_path / "its").exists()
    with pytest.raises(DiedError, match="gone"):
        made.call({"do": "x", "text": ""}, 1)


@pytest.mark.timeout(60)
def test_one_that_reads_nothing_is_ended_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is full after 64 KiB: whoever wrote into it himself would wait for as long as it sleeps."""
    monkeypatch.setattr(process, "LEAVE", 0.2)
    made = start(DEAF, tmp_path)

    async def ask() -> None:
        with pytest.raises(DiedError, match="said nothing for 1 s"):
            await made.ask({"text": LONG}, 1.0)

    asyncio.run(ask())
    assert made.process.poll() is not None and not (tmp_path / "its").exists()
