"""Copies that a run keeps may be anybody's: what could be none is told before it is read."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from shuhari.config.digests import SOURCE, compute_digest, explain_copy
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load

DATA = '{"prompt": "1+1=", "answer": "2"}\n'


def make(run: Path, text: str, copy: str) -> Path:
    """A run whose recipe names a file that is not there; where its copy lies."""
    (run / "needs").mkdir(parents=True)
    (run / "run.sqlite").touch()
    (run / "recipe.toml").write_text(f'extends = "baselines/grpo"\nsteps = 1\n[task]\nname = "{text}"\n')
    digest = compute_digest(run / "needs")
    (run / "needs" / "needs.json").write_text(json.dumps({text: {"digest": digest, "copy": copy}}))
    return run / "needs" / copy


def test_a_copy_is_no_link_and_holds_none(tmp_path: Path) -> None:
    place = make(tmp_path / "run", "file/gone.jsonl", "ab-gone.jsonl")
    place.symlink_to("/usr")  # a whole tree would be read
    began = time.monotonic()
    with pytest.raises(RecipeError, match=r"is not what was kept \(there is a link\)"):
        load(tmp_path / "run")
    assert time.monotonic() - began < 5
    place.unlink()
    place.mkdir()
    (place / "all").symlink_to("/usr")
    with pytest.raises(RecipeError, match="there is a link"):
        load(tmp_path / "run")


def test_folders_above_a_copy_are_no_links(tmp_path: Path) -> None:
    place = make(tmp_path / "run", "file/gone.jsonl", "ab-gone.jsonl")
    place.write_text(DATA)
    (tmp_path / "run" / "needs").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "needs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecipeError, match="there is a link"):
        load(tmp_path / "run")


def test_a_large_program_is_not_parsed(tmp_path: Path) -> None:
    place = make(tmp_path / "run", "gym/gone.py:Env", "ab-gone.py")
    place.write_text("x = [" + "[]," * SOURCE + "]\n")
    began = time.monotonic()
    with pytest.raises(RecipeError, match=f"it is larger than {SOURCE} bytes"):
        load(tmp_path / "run")
    assert time.monotonic() - began < 5
    place.write_text("x = 1\n")
    assert explain_copy(place.resolve()) == ""


def test_the_folder_above_is_no_copy(tmp_path: Path) -> None:
    make(tmp_path / "run", "file/gone.jsonl", "..")
    assert load(tmp_path / "run").tree["task"]["name"] == "file/gone.jsonl"
