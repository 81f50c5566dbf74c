"""The Python of the README and of docs/python.md, block by block as it stands there, in an empty folder: it learns."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import shuhari

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REWARD = re.compile(r"^step \d+: reward ([\d.]+)$", re.MULTILINE)


def follow(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the blocks of a page leave behind, run as one script."""
    blocks = BLOCK.findall(text)
    assert blocks
    monkeypatch.chdir(folder)
    (folder / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    return runpy.run_path("page.py", run_name="__main__")


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = follow((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), tmp_path, monkeypatch)
    assert list((tmp_path / "logs" / "one").iterdir()) and len(made["run"].metrics["step"]) == 20
    assert made["after"] > 2 * made["before"] > 0
    assert made["walked"].summary["after"]["greedy"] > made["walked"].summary["before"]["greedy"]
    assert shuhari.load(made["run"].path).generate("1 a: ") == made["policy"].generate("1 a: ")


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## From Python\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    made = follow(section[1], tmp_path, monkeypatch)
    first, *_, last = map(float, REWARD.findall(capsys.readouterr().out))
    assert last > first + 0.2
    assert made["run"].metrics["reward/mean"][-1] > made["run"].metrics["reward/mean"][0]
    text = shuhari.load("runs/mine").generate("47+85=")
    assert sum(c.isdigit() for c in text) / 8 > first
