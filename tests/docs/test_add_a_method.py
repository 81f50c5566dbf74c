"""The pages on adding a method, a component and an environment, followed to the letter: their files in an empty folder,
their commands in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shuhari.desk.cli import main

ROOT = Path(__file__).parents[2]
PAGES = ("add-a-method", "add-a-component", "environments")
PAGE = "".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
FILE = re.compile(r"^`(?P<name>[\w.]+)`\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = ["--set", "stage.warm-up.steps=2", "--set", "stage.rl.steps=1", "--set", "evaluate.n=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    files = {m["name"]: m["text"] for m in FILE.finditer(PAGE)}
    assert set(files) == {"topr.py", "topr.toml", "test_topr.py", "counts.py", "counts.toml", "test_counts.py",
                          "ranks.py", "ranks.toml", "test_ranks.py", "corridor.py"}  # fmt: skip
    for name, text in files.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


@pytest.mark.parametrize(
    "command",
    [
        ["train", "topr.toml", "--dry-run"],
        ["train", "topr.toml", "--run", "runs/topr", *SMALL],
        ["claim", "topr.toml", "--smoke"],
        ["train", "counts.toml", "--run", "runs/counts"],
        ["train", "ranks.toml", "--run", "runs/ranks"],
        ["train", "baselines/ppo_cartpole", "--set", "task.name=gym/corridor:Corridor-v0", "--run",
         "runs/corridor", "--set", "steps=1", "--set", "buffer.size=64", "--set", "evaluate.n=2"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_works(folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert " ".join(["shuhari", *command[:2]]) in PAGE  # the page says it
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(command + ["--workers", "1"] * (command[0] == "claim"))
    assert not end.value.code


def test_its_tests_pass(folder: Path) -> None:
    files = ["test_topr.py", "test_counts.py", "test_ranks.py"]
    assert all(f"python -m pytest {name}" in PAGE for name in files)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_files_that_the_page_points_to_are_there() -> None:
    pointed = re.findall(
        r"`((?:recipes|methods|objectives|transforms|rewards|curricula|rollouts|buffers|models|tasks|optimisers|metrics)"
        r"/[\w/.]+)`",
        PAGE,
    )
    missing = [name for name in pointed if not (ROOT / "src" / "shuhari" / name).is_file() and "topr" not in name]
    assert pointed and not missing
