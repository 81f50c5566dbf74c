"""Nothing outside of a run is written or removed, whatever links and names its folder holds; what was there before a
run that cannot begin stays."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import shuhari
from shuhari.config.overlay import RecipeError
from shuhari.store import DamageError, Store, inspect_run, repair_run
from shuhari.store.files import Trail
from shuhari.store.names import is_block, is_checkpoint

FILES = ("thesis.tex", "step-1.md", "step-by-step/one.tex", ".tmp-notes/two.tex", "rings/mine/model.safetensors")


def go(run: Path, until: int) -> Path:
    with Store.open(run, keep=2) as store:
        if store.cursor is None:
            store.write_text("recipe.toml", "")
        for step in range(store.step + 1, until):
            store.commit(step, metrics={"n": step}, tree={"n": step})
    return run


def fill(folder: Path) -> Path:
    """A folder of the user."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    return folder


def look(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(("-shm", "run.lock"))]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal"])
def test_the_database_of_another_run_is_not_written_behind_a_link(tmp_path: Path, name: str) -> None:
    victim, run = go(tmp_path / "victim", 4), go(tmp_path / "run", 4)
    (victim / "run.sqlite-wal").touch()
    before = look(victim)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim / name)
    assert any(f"{name} is a link" in fault for fault in inspect_run(run).faults)
    with pytest.raises(DamageError, match="is a link"):
        go(run, 9)
    assert "set aside" in " ".join(repair_run(run)) and go(run, 9)
    assert look(victim) == before and inspect_run(run).faults == []


@pytest.mark.parametrize("name", ["needs", "needs/modules", "children", "children/a", "shared"])
@pytest.mark.parametrize("new", [False, True])
def test_folders_that_are_written_are_no_links(tmp_path: Path, name: str, new: bool) -> None:
    mine, run = fill(tmp_path / "mine"), tmp_path / "run"
    if not new:
        go(run, 2)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(mine)
    before = look(mine)
    with pytest.raises(DamageError, match="is a link"):
        go(run, 4)
    if not new:
        assert any("is a link" in fault for fault in inspect_run(run).faults)
        assert repair_run(run) and inspect_run(run).faults == [] and go(run, 4)
    assert look(mine) == before


def test_of_a_folder_behind_a_link_only_checkpoints_are_removed(tmp_path: Path) -> None:
    mine, run = fill(tmp_path / "mine"), go(tmp_path / "run", 4)
    before = look(mine)
    for path in (run / "checkpoints").iterdir():
        shutil.move(path, mine)
    (mine / ".tmp-step-00000009").mkdir()
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to(mine)
    go(run, 9)
    found = look(mine)
    assert {name: found.get(name) for name in before} == before
    assert sorted(p.name for p in mine.iterdir() if p.name.startswith((".tmp-s", "step-0"))) == [
        "step-00000007", "step-00000008"]  # fmt: skip


def test_one_checkpoint_that_a_run_does_not_name_is_another_s(tmp_path: Path) -> None:
    other, run = go(tmp_path / "other", 1), go(tmp_path / "run", 4)
    shutil.move(other / "checkpoints", tmp_path / "kept")
    before = look(tmp_path / "kept")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(tmp_path / "kept")
    with pytest.raises(DamageError, match="holds checkpoints that the run does not name"):
        go(run, 9)
    assert before and look(tmp_path / "kept") == before


@pytest.mark.parametrize("name", ["step-1", "step-by-step", ".tmp-x", "step-0000001", "step-00000001x", ".tmp-step-1",
                                  "step-00000001/..", ".tmp-.tmp-step-00000001", "step-０００００００１"])  # fmt: skip
def test_what_is_called_otherwise_is_no_checkpoint(name: str) -> None:
    assert not is_checkpoint(name)


def test_names_of_blocks_are_those_that_are_given_here() -> None:
    block = "000001-step-00000012.safetensors"
    assert is_block("buffer_rows-0a1b2c3d", block) and is_block("a-0a1b2c3d", f".tmp-{block}")
    assert not is_block("mine", block) and not is_block("a-0a1b2c3d", "model.safetensors")
    assert is_checkpoint("step-00000012.1") and is_checkpoint(".tmp-step-00000012")


def test_what_was_there_before_a_run_that_cannot_begin_stays(tmp_path: Path) -> None:
    """With its own names too, in which all it made would be removed."""
    run = tmp_path / "run"
    for name in ("needs/mine/notes.txt", "needs/list.txt", "recipe.toml", "data.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("years of work")
    before = look(run)
    with pytest.raises(KeyboardInterrupt), Store.open(run):
        raise KeyboardInterrupt
    assert look(run) == before
    trail = Trail(run)
    (run / "made").touch()
    trail.remove([run / "needs" / "list.txt", run / "needs", run / "made"])
    assert look(run) == before and not (run / "made").exists()


def test_a_recipe_of_no_run_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "run" / "recipe.toml"
    file.parent.mkdir()
    file.write_text('extends = "baselines/bandit"  # years of work\nsteps = 1\n')
    with pytest.raises(RecipeError, match=r"recipe\.toml exists, and was not written by a run: move it away"):
        shuhari.train(file, tmp_path / "run")
    assert [p.name for p in file.parent.iterdir()] == ["recipe.toml"] and "years of work" in file.read_text()
