"""What a run's database and documents name becomes a path only if it is a name that the library gives."""

from __future__ import annotations

import ast
import re
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest
import torch
from older import make_older

from shuhari.store import DamageError, Ring, Run, Store, StoreError, inspect_run, names, repair_run
from shuhari.store.rows import write_rows

ODD = ["/home/me/thesis", "../../thesis", "step-1", "step-00000001/..", "step-00000001\n", "", ".", "..",
       "step-00000001.", "rings", None, 7, "step-" + "9" * 5000]  # fmt: skip


def make(run: Path, until: int = 6) -> Path:
    with Store.open(run, keep=2) as store:
        store.write_text("recipe.toml", "a = 1\n")
        ring = Ring.zeros(8, {"x": torch.zeros(1)}, block=2)
        tree = store.load() or {"ring": ring, "n": 0}
        for step in range(store.step + 1, until):
            tree["ring"].append({"x": torch.tensor([float(step)])})
            store.commit(step, metrics={"n": step}, tree={**tree, "n": step})
    return run


def victim(folder: Path) -> Path:
    (folder / "thesis" / "chapters").mkdir(parents=True)
    (folder / "thesis" / "chapters" / "one.tex").write_text("years of work")
    return folder / "thesis"


@pytest.mark.parametrize("name", ODD)
def test_other_names_are_refused(name: object, tmp_path: Path) -> None:
    for join in (names.join_checkpoint, names.join_block):
        with pytest.raises(DamageError, match="is not the name of a"):
            join(tmp_path, name)
    assert names.read_name("step-00000012.3") == (12, 3)


@pytest.mark.parametrize("name", ["a/b", "../x.safetensors", "/a.safetensors", "a/../x.safetensors", "a//x.safetensors",
                                  "a/.safetensors", "a/b/c.safetensors", "/tmp/x/y.safetensors"])  # fmt: skip
def test_other_blocks_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DamageError, match="is not the name of a block"):
        names.join_block(tmp_path, name)
    good = "model_ring-0a1b2c3d/000001-step-00000012.safetensors"
    assert names.join_block(tmp_path, good) == tmp_path / good


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("how", ["absolute", "relative", "another step"])
def test_a_row_that_names_a_folder_of_the_user_is_damage(tmp_path: Path, how: str, older: bool) -> None:
    run, thesis = make(tmp_path / "run"), victim(tmp_path)
    name = {"absolute": str(thesis), "relative": "../../thesis", "another step": "step-00000004"}[how]
    if older:
        make_older(run)
    with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
        write_rows(db, "checkpoints", [(1, name, 0, None)])  # with a right checksum
    report = inspect_run(run)
    assert any("the entry of the checkpoint of step 1 is damaged" in fault for fault in report.faults)
    with pytest.raises(StoreError, match="entry of the checkpoint of step 1 is damaged"):
        make(run, 12)
    for ask in (Run(run).checkpoints, Run(run).load):
        with pytest.raises(StoreError, match="entry of the checkpoint of step 1"):
            ask()
    repair_run(run)
    assert inspect_run(run).faults == [] and make(run, 12)
    assert (thesis / "chapters" / "one.tex").read_text() == "years of work"


@pytest.mark.parametrize("older", [False, True])
def test_a_document_that_names_a_file_of_the_user_is_damage(tmp_path: Path, older: bool) -> None:
    run, thesis = make(tmp_path / "run"), victim(tmp_path)
    if older:
        make_older(run)
    file, precious = run / "checkpoints" / "step-00000004" / "tree.json", str(thesis / "chapters" / "one.tex").encode()
    found = re.match(rb'({"format":\d.*?"rings":\[)(.*?\]),"crc32":(\d+),"tree":', data := file.read_bytes(), re.DOTALL)
    assert found is not None
    text, head = data[found.end() : -2], found[1] + b'"' + precious + b'",' + found[2]
    crc = zlib.crc32(text, 0 if older else zlib.crc32(head))
    file.write_bytes(head + b',"crc32":%d,"tree":' % crc + text + b"}\n")
    assert any("is not the name of a block" in fault for fault in inspect_run(run).faults)
    make(run, 12)  # an older checkpoint, which nothing is read from; it goes, and nothing else
    assert precious and Path(precious.decode()).read_text() == "years of work"


def test_the_head_of_a_document_is_in_its_checksum(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    file = run / "checkpoints" / "step-00000005" / "tree.json"
    data = file.read_bytes()
    head = data[: data.index(b'"tree":')]
    block = re.search(rb"\d{6}-step", head)
    assert block is not None
    file.write_bytes(data.replace(block[0], b"000009-step", 1))
    assert any("checksum" in fault for fault in inspect_run(run).faults)


def test_folders_behind_links_are_not_swept(tmp_path: Path) -> None:
    run, mine = make(tmp_path / "run"), tmp_path / "models"
    mine.mkdir()
    (mine / "model.safetensors").write_bytes(b"weights")
    (run / "checkpoints" / "rings" / "mine").symlink_to(mine)
    assert any("mine is a link" in fault for fault in inspect_run(run).faults)
    with pytest.raises(DamageError, match="is a link"):
        make(run, 12)
    assert "set aside" in " ".join(repair_run(run)) and inspect_run(run).faults == [] and make(run, 12)
    assert (mine / "model.safetensors").read_bytes() == b"weights"


KNOWN = re.compile(  # what may stand behind a slash in the store: names of the library's own
    r"'[^']*'|f'\.(tmp|mode|old|new)-.*'|f'\{schema\.FILE\}.*'|f'damaged-\{i\}'|[A-Z_]+|\w+\.[A-Z]+|OWNER"
)


def test_no_stored_name_is_joined_to_a_folder_but_by_the_one_function() -> None:
    """Each `folder / x` of the store has an `x` of the library's own; those that have not are listed, with why."""
    known = {
        ("kept.py", "name"),  # made of a step, as a checkpoint is written
        ("ring.py", "folder"), ("ring.py", "file"),  # made of a ring's place, as its blocks are written
        ("checkpoint.py", "name"),  # of `_name_files`
        ("names.py", "str(name)"), ("names.py", "found[1]"), ("names.py", "found[2]"),  # the one function
        ("damage.py", "name"),  # of `list_folders`, and of the library's own files
        ("repair.py", "name"), ("repair.py", "found.name"), ("repair.py", "goal.name"),  # the same, and what is odd
        ("layout.py", "name"), ("listing.py", "name"),  # of `layout`
        ("database.py", "name"), ("database.py", "n"),  # the caller's
        ("files.py", "name"), ("schema.py", "name"),  # of the library's own files
        ("folders.py", "name"),  # of what stands in the folder
        ("directory.py", "path"), ("listing.py", "root.joinpath(*_read_name(name))"),  # the user's
        ("database.py", "row[3]"), ("space.py", "size"),  # a number
    }  # fmt: skip
    found = set()
    for file in sorted(Path(names.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                right = ast.unparse(node.right)
                found |= set() if KNOWN.fullmatch(right) else {(file.name, right)}
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("joinpath"):
                found.add((file.name, ast.unparse(node)))
    assert found - known == set()
