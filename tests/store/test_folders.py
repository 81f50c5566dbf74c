"""A folder takes the place of an older one of ours, and of nobody else's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shuhari.store.folders import MANIFEST, replace_folder


def make(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name.replace("__", "/")).parent.mkdir(exist_ok=True)
        (path / name.replace("__", "/")).write_text(text)
    return path


def tree(path: Path) -> dict[str, str]:
    found = {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}
    return {name: text for name, text in found.items() if name != MANIFEST}


def test_what_was_written_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("one", "two"):
        replace_folder(target, make(tmp_path / "new", a=text, **{f"base__{text}": text}))
        assert tree(target) == {"a": text, f"base/{text}": text}
        assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("name", ["thesis.tex", "base/notes", "written.txt"])
def test_a_file_of_somebody_else_is_named_and_nothing_goes(name: str, tmp_path: Path) -> None:
    target = tmp_path / "model"
    replace_folder(target, make(tmp_path / "new", a="one", base__b="one"))
    (target / name).write_text("mine")
    with pytest.raises(FileExistsError, match=name):
        replace_folder(target, make(tmp_path / "new", a="two"))
    assert tree(target) == {"a": "one", "base/b": "one", name: "mine"}


def test_without_a_manifest_only_names_that_are_known_go(tmp_path: Path) -> None:
    target, new = make(tmp_path / "state", config="mine"), make(tmp_path / "new", a="two")
    with pytest.raises(FileExistsError, match="'config'"):
        replace_folder(target, new, own=["tree.json"])
    replace_folder(target, new, own=["con*"])
    assert tree(target) == {"a": "two"}


def test_links_are_neither_replaced_nor_followed(tmp_path: Path) -> None:
    mine, target = make(tmp_path / "mine", thesis="mine"), tmp_path / "model"
    replace_folder(target, make(tmp_path / "new", a="one"))
    (target / "out").symlink_to(mine)
    with pytest.raises(FileExistsError, match="'out'"):
        replace_folder(target, make(tmp_path / "new", a="two"))
    (target / MANIFEST).write_text(json.dumps({"written": ["a", "out", "../mine/thesis"]}))
    replace_folder(target, tmp_path / "new")
    assert tree(mine) == {"thesis": "mine"}
    link = tmp_path / "link"
    link.symlink_to(mine)
    with pytest.raises(FileExistsError, match="is a link"):
        replace_folder(link, make(tmp_path / "new", a="two"))
    assert tree(mine) == {"thesis": "mine"}


def test_a_kill_between_the_renames_leaves_one_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    replace_folder(target, make(tmp_path / "new", a="one"))
    rename, left = Path.rename, [1]

    def stop(self: Path, to: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(target, make(tmp_path / "new", a="two"))
    monkeypatch.undo()
    assert tree(tmp_path / ".old-model") == {"a": "one"} and not target.exists()
    replace_folder(target, tmp_path / "new")
    assert tree(target) == {"a": "two"} and os.listdir(tmp_path) == ["model"]
