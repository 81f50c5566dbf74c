"""Runs of claims in this process, one after the other, and recipes with parts replaced: for the tests of claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def stay_in_process(patch: pytest.MonkeyPatch, module: Any, begin: Callable[[Any], object] = lambda job: None) -> None:
    """Let the `drive` of a module run its jobs here; and every module is the method's (or bed's) own, so that no
    baseline is built. begin: is called with each job before it runs."""

    def drive(jobs: Any, _workers: Any, _tell: Any, look: Any) -> None:
        for job in jobs:
            begin(job)
            assert job.done or job.make() == ""
            look(job)

    patch.setattr(module, "drive", drive)
    patch.setattr("shuhari.lab.claims.result.list_common", frozenset)


def write_changed(folder: Path, recipe: str, *changes: tuple[str, str]) -> str:
    """The path of a recipe with (old, new) parts; each old one is there."""
    for old, new in changes:
        assert old in recipe
        recipe = recipe.replace(old, new)
    (folder / "own.toml").write_text(recipe)
    return str(folder / "own.toml")
