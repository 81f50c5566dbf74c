"""`shuhari analyze` on the command line: what the pages show is taken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shuhari.desk.analyzing import running
from shuhari.desk.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / "src/shuhari/methods").glob("*/*/README.md"), ROOT / "docs/analyses.md"]


def list_commands() -> list[list[str]]:
    """The arguments of each `shuhari analyze` of the pages."""
    lines = [
        line.partition(" #")[0]
        for page in PAGES
        for line in re.findall(r"^shuhari (analyze \w.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return [shlex.split(line) for line in dict.fromkeys(map(str.strip, lines))]


ALONE = [words for words in list_commands() if len(words) == 2 or words[2].startswith("--")]


@pytest.mark.parametrize("words", [w for w in ALONE if "--packaged" not in w and "--show" not in w], ids=" ".join)
def test_what_pages_ask_without_a_run_is_taken(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    build, asked = running.make_analysis, list[int]()

    def stop(name: str, settings: Any) -> Any:
        kind, _ = build(name, settings)
        return kind, lambda seed: asked.append(seed) or {"x": 1.0}

    monkeypatch.setattr(running, "make_analysis", stop)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert asked == [int(words[words.index("--seed") + 1]) if "--seed" in words else 0]


def test_pages_show_commands() -> None:
    assert len(ALONE) > 10
