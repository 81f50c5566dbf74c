"""The page on recipes, followed to the letter: its files in an empty folder, its commands, none of which trains."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from shuhari.config.recipe import load
from shuhari.desk.cli import main
from shuhari.desk.explaining import explain

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`(?P<name>[\w.]+)`\n\n```toml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line, comments=True)[1:] for text in BLOCK.findall(PAGE) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for found in FILE.finditer(PAGE):
        (tmp_path / found["name"]).write_text(found["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("argv", COMMANDS, ids=shlex.join)
def test_a_command_works(argv: list[str], folder: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([*argv, *(["--dry-run"] if argv[0] == "train" and "--dry-run" not in argv else [])])
    assert not end.value.code


def test_the_files_say_what_the_page_says_of_them(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"mine.toml", "staged.toml", "guided.toml"}
    (main_stage,) = load("mine.toml").stages
    assert main_stage["rollout"]["n"] == 8 and main_stage["part"]["policy"]["terms"]["loss"]["reduce"] == "row"
    copy, rl = load("staged.toml").stages
    assert (copy["name"], rl["name"]) == ("copy", "rl") and "collect" not in copy and "collect" in rl
    assert [stage.name for stage in explain("guided.toml").stages] == ["warm-up", "teach", "rl"]
