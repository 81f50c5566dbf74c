"""A ring comes back bit by bit, and a checkpoint of it writes only the blocks that changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shuhari.store.files import CheckpointError
from shuhari.store.ring import Ring, RingFiles


def rows(n: int, start: int = 0) -> dict[str, torch.Tensor]:
    at = torch.arange(start, start + n)
    return {"x": at[:, None].float() + torch.tensor([0.0, 0.5]), "done": at % 3 == 0}


def make(capacity: int = 20, block: int = 4) -> Ring:
    return Ring.zeros(capacity, rows(1), block=block)


def equal(a: Ring, b: Ring) -> bool:
    same = all(torch.equal(a.columns[n], b.columns[n]) and a.columns[n].dtype == b.columns[n].dtype for n in a.columns)
    return same and a.columns.keys() == b.columns.keys() and (a.written, a.block) == (b.written, b.block)


def files(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_mtime_ns for p in root.glob("*/*")}


def test_append_goes_round() -> None:
    ring = make()
    ring.append(rows(17))
    assert ring.append(rows(5, 17)).tolist() == [17, 18, 19, 0, 1]
    assert ring.size == 20 and ring.written == 22
    assert ring.columns["x"][:, 0].tolist() == [20.0, 21.0, *range(2, 20)]
    assert np.shares_memory(ring.arrays["x"], ring.columns["x"].numpy())


def test_what_a_ring_refuses() -> None:
    ring = make()
    with pytest.raises(ValueError, match="21 rows at once: the ring holds 20"):
        ring.append(rows(21))
    with pytest.raises(ValueError, match=r"columns \['x'\]"):
        ring.append({"x": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match="one length"):
        Ring({"a": torch.zeros(3), "b": torch.zeros(4)})


def test_default_blocks_hold_about_a_megabyte() -> None:
    assert Ring.zeros(10, {"x": torch.zeros(1, 4)}).block == 4096
    assert Ring.zeros(10, {"x": torch.zeros(1, 4096)}).block == 64  # 16 KiB a row
    assert Ring.zeros(10, {"x": torch.zeros(1, 2**20)}).block == 16


def test_only_touched_blocks_are_written(tmp_path: Path) -> None:
    store, ring = RingFiles(tmp_path), make()
    ring.append(rows(6))  # blocks 0, 1
    first = store.save("main/ring", ring, "step-1")
    store.settle(keep=True)
    assert [b for b, _, _ in first["files"]] == [0, 1]
    before = files(tmp_path)
    assert store.save("main/ring", ring, "step-2")["files"] == first["files"] and files(tmp_path) == before
    ring.append(rows(1, 6))  # block 1
    ring.columns["x"][13] = 9.0  # block 3, in place
    ring.touch(13)
    third = store.save("main/ring", ring, "step-3")
    assert [(b, "step-3" in f) for b, f, _ in third["files"]] == [(0, False), (1, True), (3, True)]
    assert before.items() <= files(tmp_path).items()  # nothing written is ever changed
    assert equal(RingFiles(tmp_path).load(third), ring)


def test_older_manifests_stay_readable(tmp_path: Path) -> None:
    store, ring, manifests, copies = RingFiles(tmp_path), make(), [], []
    for i in range(12):
        ring.append(rows(3, 3 * i))
        manifests.append(store.save("r", ring, f"step-{i}"))
        store.settle(keep=True)
        copies.append({n: x.clone() for n, x in ring.columns.items()})
    for manifest, copy in zip(manifests, copies, strict=True):
        back = RingFiles(tmp_path).load(manifest)
        assert all(torch.equal(back.columns[n], copy[n]) for n in copy)


def test_a_save_that_was_given_up_is_written_again(tmp_path: Path) -> None:
    store, ring = RingFiles(tmp_path), make()
    ring.append(rows(2))
    store.save("r", ring, "step-1")
    store.settle(keep=False)
    store.sweep(set())
    assert equal(RingFiles(tmp_path).load(store.save("r", ring, "step-2")), ring)


def test_another_ring_under_the_same_name_is_written_whole(tmp_path: Path) -> None:
    store, ring, other = RingFiles(tmp_path), make(), make()
    ring.append(rows(8))
    store.save("r", ring, "step-1")
    store.settle(keep=True)
    other.append(rows(8, 50))
    assert equal(RingFiles(tmp_path).load(store.save("r", other, "step-2")), other)


def test_a_loaded_ring_goes_on_by_increments(tmp_path: Path) -> None:
    store, ring = RingFiles(tmp_path), make()
    ring.append(rows(9))
    manifest = store.save("r", ring, "step-1")
    again = RingFiles(tmp_path)
    back = again.load(manifest)
    back.append(rows(1, 9))  # row 9, block 2
    assert [("step-2" in f) for _, f, _ in again.save("r", back, "step-2")["files"]] == [False, False, True]


def test_names_that_look_alike_do_not_meet(tmp_path: Path) -> None:
    store, a, b = RingFiles(tmp_path), make(), make()
    a.append(rows(4))
    b.append(rows(4, 9))
    one, two = store.save("../x/y", a, "s"), store.save("___x_y", b, "s")
    store.settle(keep=True)
    assert equal(store.load(one), a) and equal(store.load(two), b)
    assert all(p.parent.parent == tmp_path for p in tmp_path.glob("**/*.safetensors"))


def test_damage_names_the_block(tmp_path: Path) -> None:
    store, ring = RingFiles(tmp_path), make()
    ring.append(rows(4))
    manifest = store.save("r", ring, "step-1")
    file = tmp_path / manifest["files"][0][1]
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"{file.name}.*checksum"):
        store.load(manifest)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name}.*missing"):
        store.load(manifest)
    for name in ("../secret", "a/../../b", "/etc/passwd"):
        with pytest.raises(CheckpointError, match="not the name of a block"):
            store.load({**manifest, "files": [[0, name, 0]]})


def test_sweep_keeps_what_is_listed(tmp_path: Path) -> None:
    store, ring = RingFiles(tmp_path), make()
    ring.append(rows(8))
    manifest = store.save("r", ring, "step-1")
    keep = {f for _, f, _ in manifest["files"]}
    (tmp_path / next(iter(keep))).with_name(".tmp-000009-step-2.safetensors").write_bytes(b"half")
    store.sweep(keep)
    assert set(files(tmp_path)) == keep
    store.sweep(set())
    assert list(tmp_path.iterdir()) == []
