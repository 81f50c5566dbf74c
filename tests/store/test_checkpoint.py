"""A checkpoint is there whole or not at all, and any damage to it is told by file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from shuhari.store import checkpoint, files
from shuhari.store.files import CheckpointError
from shuhari.store.names import BASED
from shuhari.store.ring import Ring, RingFiles

W = torch.arange(600.0).reshape(20, 30)
TREE = {"model": {"w": W}, "count": 3, "rng": (np.uint64(7), None), "obs": np.ones(300)}


def test_round_trip(tmp_path: Path) -> None:
    assert checkpoint.write(tmp_path / "c", TREE) == set()
    back = checkpoint.read(tmp_path / "c")
    assert torch.equal(back["model"]["w"], W)
    assert back["count"] == 3 and back["rng"] == (np.uint64(7), None) and np.array_equal(back["obs"], np.ones(300))
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["tensors.safetensors", "tree.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_other_tools_can_read_the_tensors(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "c", TREE)
    found = safetensors.torch.load_file(tmp_path / "c" / "tensors.safetensors")
    assert torch.equal(found["model/w"], W)


SHARDS = [f"tensors-{i:05d}-of-00004.safetensors" for i in (1, 2, 3, 4)]
MANY = {"a": torch.arange(50.0), "b": torch.arange(40.0), "c": W, "d": torch.ones(3), "e": torch.zeros(60), "n": 3}


def test_many_bytes_are_cut_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 200 + 160 bytes pass 360, 2,400 bytes are more than one file may have, then 12 + 240."""
    monkeypatch.setattr(checkpoint, "LIMIT", 360)
    checkpoint.write(tmp_path / "c", {**MANY, "f": torch.ones(80)})
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [*SHARDS, "tree.json"]
    found = [set(safetensors.torch.load_file(tmp_path / "c" / name)) for name in SHARDS]
    assert found == [{"a", "b"}, {"c"}, {"d", "e"}, {"f"}]
    monkeypatch.undo()  # reading asks for no limit
    back = checkpoint.read(tmp_path / "c")
    assert back["n"] == 3 and all(torch.equal(back[k], v) for k, v in MANY.items() if k != "n")
    assert all(back[k].data_ptr() % 64 == 0 for k in "abcdef")


def test_tied_weights_share_memory_again_after_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LIMIT", 300)
    w = torch.arange(50.0)
    checkpoint.write(tmp_path / "c", {"x": torch.ones(60), "w": w, "tied": w})
    back = checkpoint.read(tmp_path / "c")
    assert back["w"].data_ptr() == back["tied"].data_ptr() and torch.equal(back["w"], w)


def test_a_tree_without_tensors(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "c", {"n": 1})
    assert checkpoint.read(tmp_path / "c") == {"n": 1}


def test_restored_memory_is_aligned_like_fresh_memory(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "c", {"odd": torch.ones(3, dtype=torch.bool), "x": [torch.randn(7) for _ in range(9)]})
    assert all(x.data_ptr() % 64 == 0 for x in checkpoint.read(tmp_path / "c")["x"])


def test_rings_are_stored_beside_and_listed(tmp_path: Path) -> None:
    rings, ring = RingFiles(tmp_path / "rings"), Ring.zeros(8, {"x": torch.zeros(1)}, block=2)
    ring.append({"x": torch.arange(5.0)})
    blocks = checkpoint.write(tmp_path / "c", {"buffer": {"ring": ring}}, rings)
    assert len(blocks) == 3 and checkpoint.list_blocks(tmp_path / "c") == blocks
    back = checkpoint.read(tmp_path / "c", RingFiles(tmp_path / "rings"))["buffer"]["ring"]
    assert torch.equal(back.columns["x"], ring.columns["x"]) and back.written == 5
    with pytest.raises(CheckpointError, match=r"\$Blocks"):
        checkpoint.read(tmp_path / "c")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-9] ^= 4
    file.write_bytes(raw)


def garbage(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


@pytest.mark.parametrize("name", SHARDS[:3])
@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
def test_damage_of_one_of_several_files_is_named(
    tmp_path: Path, name: str, harm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "LIMIT", 360)
    checkpoint.write(tmp_path / "c", {**MANY, "f": torch.ones(80)})
    harm(tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.read(tmp_path / "c")


@pytest.mark.parametrize("name", ["tensors.safetensors", "tree.json"])
@pytest.mark.parametrize("harm", [truncate, flip, garbage, Path.unlink])
def test_damage_is_named(tmp_path: Path, name: str, harm: Any) -> None:
    checkpoint.write(tmp_path / "c", TREE)
    harm(tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.read(tmp_path / "c")


def test_a_newer_format_is_told(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "c", {"n": 1})
    file = tmp_path / "c" / "tree.json"
    file.write_bytes(file.read_bytes().replace(b'"format":2', b'"format":4'))
    with pytest.raises(CheckpointError, match="format 4; this version reads up to 3"):
        checkpoint.read(tmp_path / "c")


def test_only_one_with_weights_by_reference_asks_for_a_newer_version(tmp_path: Path) -> None:
    """Of format 2 earlier versions read all; they would miss weights of the other."""
    for name, tree in (("plain", {"n": 1}), ("based", {"n": 1, BASED: {}})):
        checkpoint.write(tmp_path / name, tree)
        assert checkpoint.read(tmp_path / name) == tree
    heads = [(tmp_path / name / "tree.json").read_bytes()[:11] for name in ("plain", "based")]
    assert heads == [b'{"format":2', b'{"format":3']


@pytest.mark.parametrize(("limit", "nth"), [*((2**30, i) for i in range(4)), *((360, i) for i in range(7))])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, nth: int
) -> None:
    """Each flush of a write fails once: two files (or four of tensors and one), the directory, and after the rename the
    directory above."""
    checkpoint.write(tmp_path / "old", {"n": 0})
    monkeypatch.setattr(checkpoint, "LIMIT", limit)
    calls, last = 0, 3 if limit > 360 else 6

    def full(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == nth + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write(tmp_path / "c", {**MANY, "f": torch.ones(80)})
    monkeypatch.undo()
    assert not list(tmp_path.glob(".tmp*")) and checkpoint.read(tmp_path / "old") == {"n": 0}
    if nth < last:
        assert not (tmp_path / "c").exists()


def test_what_the_codec_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a/0 is a builtins.object"):
        checkpoint.write(tmp_path / "c", {"a": [object()]})
    assert list(tmp_path.iterdir()) == []
