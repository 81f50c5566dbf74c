"""What was about to be made is taken back, and no more than that; nothing is written through links."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from shuhari.store.files import Lock, LockedError, StoreError, Trail, replace_file, write_file


def test_folders_on_the_way_are_removed_where_the_path_itself_was_never_made(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "a" / "b" / "run")
    (tmp_path / "a" / "b").mkdir(parents=True)
    trail.remove([tmp_path / "a" / "b" / "run" / "file"])
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_is_removed_and_what_stood_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    trail = Trail(tmp_path / "a" / "run")
    (tmp_path / "a" / "run").mkdir()
    own = tmp_path / "a" / "run" / "file"
    own.touch()
    trail.remove([own])
    assert list(tmp_path.iterdir()) == [tmp_path / "a"] and not list((tmp_path / "a").iterdir())


def test_all_of_it_stays_where_more_has_been_made(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "run")
    (tmp_path / "run").mkdir()
    for name in ("own", "other"):
        (tmp_path / "run" / name).touch()
    trail.remove([tmp_path / "run" / "own"])
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"own", "other"}


@pytest.mark.parametrize("name", ["run.lock", ".tmp-summary.json"])
def test_no_file_elsewhere_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (run := tmp_path / "run").mkdir()
    (victim := tmp_path / "victim").write_text("precious")
    (run / name).symlink_to(victim)
    if name == "run.lock":
        with pytest.raises(StoreError, match=r"run\.lock is no plain file"):
            Lock(run)
    else:
        replace_file(run / "summary.json", [b"{}"])
        assert (run / "summary.json").read_text() == "{}"
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_file(tmp_path / "link", [b""])
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_who_waited_for_a_lock_that_is_gone_locks_what_stands_there_now(tmp_path: Path, how: str) -> None:
    first, got = Lock(tmp_path), list[Lock]()
    waiting = threading.Thread(target=lambda: got.append(Lock(tmp_path, patience=20)))
    waiting.start()
    time.sleep(0.1)  # it has opened the file, and waits
    first.path.unlink() if how == "removed" else first.path.rename(tmp_path / "elsewhere")
    second = Lock(tmp_path)  # another writer, of a new file
    first.release()
    waiting.join(0.2)
    assert waiting.is_alive() and not got
    second.release()
    waiting.join(20)
    with pytest.raises(LockedError):
        Lock(tmp_path, patience=0)
    got[0].release()
