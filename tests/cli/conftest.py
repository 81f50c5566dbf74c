"""A small run on disk, made once by the command line itself, and a way to call commands in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from shuhari.desk.cli import main
from small_runs import write_sums

RECIPE = f"""
summary = "two-digit sums"
{write_sums(steps=4, size=4)}[evaluate]
every = 2
n = 8
[store]
keep = 3
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def shuhari(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*argv: object) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in argv])
        out, err = capfd.readouterr()
        return Done(int(end.value.code or 0), out, err)

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.toml and the complete runs s0 and s1 of it under runs/."""
    home = tmp_path_factory.mktemp("cli")
    (home / "tiny.toml").write_text(RECIPE)
    for seed in (0, 1):
        with pytest.raises(SystemExit) as end:
            main(["train", str(home / "tiny.toml"), "--seed", str(seed), "--run", str(home / "runs" / f"s{seed}")])
        assert end.value.code in (0, None)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `made` to work in."""
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"
