"""Checkpoints behind a link: only where the folder is this run's, and nobody else writes there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from older import make_older

from shuhari.store import DamageError, LockedError, Store, inspect_run, repair_run
from shuhari.store.linked import OWNER


def go(run: Path, until: int) -> Path:
    with Store.open(run, keep=2) as store:
        if store.cursor is None:
            store.write_text("recipe.toml", "")
        for step in range(store.step + 1, until):
            store.commit(step, metrics={"n": step}, tree={"n": step})
    return run


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("step"))


def link(run: Path, folder: Path) -> None:
    """Move the checkpoints of a run, and link them."""
    shutil.move(run / "checkpoints", folder)
    (run / "checkpoints").symlink_to(folder)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_the_checkpoints_of_another_run_are_left_alone(tmp_path: Path, copied: bool, older: bool) -> None:
    """Also where it is the same recipe, and so checkpoints of the same names."""
    victim = go(tmp_path / "v", 4)
    run = Path(shutil.copytree(victim, tmp_path / "s")) if copied else go(tmp_path / "s", 4)
    if older:
        make_older(victim), make_older(run)
    before = listing(victim / "checkpoints")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(victim / "checkpoints")
    assert any("is a link to" in fault and "of the run" in fault for fault in inspect_run(run).faults)
    with pytest.raises(DamageError, match="are the checkpoints of the run"):
        go(run, 9)
    with pytest.raises(DamageError):
        repair_run(run)  # it has no checkpoint of its own to go on from
    assert listing(victim / "checkpoints") == before and (run / "checkpoints").is_symlink()
    assert inspect_run(victim).faults == [] and go(victim, 9)


@pytest.mark.parametrize("older", [False, True])
def test_a_run_goes_on_behind_a_link_of_its_own(tmp_path: Path, older: bool) -> None:
    run, disk = go(tmp_path / "run", 4), tmp_path / "disk"
    link(make_older(run) if older else run, disk)
    assert inspect_run(run).faults == []
    go(run, 6)
    assert listing(disk) == ["step-00000004", "step-00000005"] and inspect_run(run).faults == []
    with Store.open(run) as store:
        store.set(total=9)
        twin = Path(shutil.copytree(run, tmp_path / "twin", symlinks=True))
        with pytest.raises(DamageError, match="which this one is a copy of"):
            go(twin, 9)
    other = go(tmp_path / "other", 4)
    shutil.rmtree(other / "checkpoints")
    (other / "checkpoints").symlink_to(disk)
    with pytest.raises(DamageError, match=f"is, by its {OWNER}, of another run"):
        go(other, 9)
    run.rename(tmp_path / "renamed")
    go(tmp_path / "renamed", 8)
    assert listing(disk) == ["step-00000006", "step-00000007"]


def test_a_new_run_may_begin_behind_a_link_and_locks_what_is_there(tmp_path: Path) -> None:
    disk, run = tmp_path / "disk", tmp_path / "run"
    disk.mkdir(), run.mkdir()
    (run / "checkpoints").symlink_to(disk)
    go(run, 3)
    assert listing(disk) == ["step-00000001", "step-00000002"] and inspect_run(run).faults == []
    with Store.open(run) as store:
        store.set(total=5)
        moved = Path(shutil.copytree(run, tmp_path / "moved", symlinks=True))
        run.rename(tmp_path / "away")  # so that the copy seems to be what was moved
        with pytest.raises(LockedError):
            go(moved, 6)
    assert listing(disk) == ["step-00000001", "step-00000002"]


def test_a_folder_with_checkpoints_that_the_run_does_not_name_is_refused(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    link(go(tmp_path / "gone", 4), disk)
    shutil.rmtree(tmp_path / "gone")
    run = go(tmp_path / "run", 2)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(disk)
    with pytest.raises(DamageError, match="checkpoints that the run does not name"):
        go(run, 9)
    assert len(listing(disk)) == 2
