"""Small bytes that stand for much memory are refused while they are read."""

from __future__ import annotations

import json
import resource
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.board.numbers import Known
from shuhari.desk.profile_report import read as read_profile
from shuhari.store import Run, Store, StoreError, codec, inspect_run, rollouts, sizes, tensors
from shuhari.store.files import CheckpointError
from shuhari.store.ring import Ring, RingFiles
from shuhari.store.rows import write_rows

MAGIC = b"shuhari1"


def pack(text: bytes, data: bytes = b"") -> bytes:
    return zlib.compress(MAGIC + len(text).to_bytes(8, "little") + text + data, 9)


BOMBS = {
    "empty lists": b'{"x":[' + b"[]," * 20_000_000 + b"[]]}",
    "objects": b'{"x":[' + b"{}," * 10_000_000 + b"{}]}",
    "numbers": b'{"x":[' + b"0," * 30_000_000 + b"0]}",
    "a text": b'{"x":"' + b"a" * 2**27 + b'"}',
    "quotes": b'{"x":"' + b'\\"' * 2**25 + b'"}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    payload = pack(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(codec.CodecError, match=r"expected at most|unpacks to more than"):
            rollouts.unpack(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(payload) < 2**19 and peak < 5 * sizes.GROUP


def test_bytes_of_one_tensor_are_no_bytes_of_many() -> None:
    data = b"".join(bytes(x) for x in tensors.pack({"t": torch.zeros(2**20, dtype=torch.uint8)}))
    ask = lambda n: pack(json.dumps({"x": [{"$blob": "t"}] * n}).encode(), data)  # noqa: E731
    assert rollouts.unpack(ask(1)) == {"x": [bytes(2**20)]}
    with pytest.raises(codec.CodecError, match="again and again"):
        rollouts.unpack(ask(200))


def test_elements_are_counted_outside_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {b"[]": 1, b'[1,[2,{"a":3}]]': 5, b'["a,[{\\",,","b"]': 3, b'{"[,":",{"}': 2}
    for text, n in cases.items():
        assert sizes.count_elements(text) >= len(json.loads(text)) and sizes.count_elements(text) in (n, n + 1)
    monkeypatch.setattr(sizes, "ELEMENTS", 10)
    text = json.dumps(["," * 100] * 3)
    assert sizes.read_json(text, 10) == ["," * 100] * 3
    with pytest.raises(sizes.SizeError, match="at most 10"):
        sizes.read_json(json.dumps([0] * 20), 10)


def test_what_is_written_can_be_read_and_what_could_not_be_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sizes, "GROUP", 20_000)
    monkeypatch.setattr(sizes, "ELEMENTS", 500)
    rng = np.random.default_rng(0)
    groups = [{"group": "bytes", "x": rng.random(5000)}, {"group": "elements", "x": [0] * 600}, {"group": "good"}]
    with Store.open(tmp_path / "run") as store:
        store.commit(0, metrics={}, rollouts=groups, tree={})
    assert [g["group"] for g in Run(tmp_path / "run").rollouts()] == ["good"]
    assert len([r for r in caplog.records if "too large to be kept" in r.message]) == 2


def test_a_row_of_many_elements_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        store.commit(0, metrics={}, tree={})
        write_rows(store._db, "steps", [(0, "main", 0.0, '{"x":[' + "[]," * sizes.ELEMENTS + "[]]}")])
    with pytest.raises(StoreError, match="elements: expected at most"):
        Run(tmp_path / "run").metrics()


def test_counting_takes_time_in_proportion() -> None:
    for text in (b'["' + b'\\"' * 2**22, b'"' * 2**23, b"\\" * 2**23, b'"a",' * 2**21):
        begun = time.perf_counter()
        sizes.count_elements(text)
        assert time.perf_counter() - begun < 10  # quadratic: hours


@pytest.mark.parametrize("array", [["<i8", [10**6, 0], ""], ["<f4", [2, 10**6, 0, 3], ""]])
def test_arrays_without_bytes_are_no_lists_of_any_length(array: list[Any]) -> None:
    ask = lambda n: pack(json.dumps({"x": [{"$array": array}] * n}).encode())  # noqa: E731
    with pytest.raises(codec.CodecError, match="arrays of more numbers than may be"):
        rollouts.unpack(ask(2))
    small = np.zeros((3, 0), np.float32)
    assert rollouts.unpack(rollouts.pack({"x": small}))["x"].shape == (3, 0)


def test_numbers_are_counted_as_often_as_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "GROUP", 2**20)
    row = np.arange(2**12)
    assert len(rollouts.unpack(rollouts.pack({"x": [row] * 64}))["x"]) == 64
    with pytest.raises(sizes.SizeError, match="numbers: expected at most"):
        rollouts.pack({"x": [row] * 300})
    data = b"".join(bytes(x) for x in tensors.pack({"t": torch.zeros(2**12)}))
    for kind in ("array", "tensor"):
        with pytest.raises(codec.CodecError, match="arrays of more numbers than may be"):
            rollouts.unpack(pack(json.dumps({"x": [{f"${kind}": "t"}] * 300}).encode(), data))


def test_whole_numbers_are_as_long_as_can_be_shown() -> None:
    state = np.random.default_rng(0).bit_generator.state["state"]["state"]
    assert codec.loads(codec.dumps({"x": state, "y": -state})) == {"x": state, "y": -state}
    for text in (b'{"x":{"$int":"0x1%b"}}' % (b"0" * 5000), b'{"x":1%b}' % (b"0" * 400)):
        with pytest.raises(codec.CodecError, match=r"a number of \d+ (hexadecimal )?digits"):
            rollouts.unpack(pack(text))
    with pytest.raises(TypeError, match="x is a whole number of 8001 bits"):
        codec.dumps({"x": 2**8000})
    digits = "1" * 400
    assert sizes.read_json(json.dumps({"x": digits})) == {"x": digits}  # a text is none
    with pytest.raises(ValueError, match="a number of 400 digits"):
        sizes.read_json(f'{{"x":{digits}}}')


def test_files_with_holes_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Store.open(run) as store:
        store.write_text("recipe.toml", "")
        for step in range(2):
            store.commit(step, metrics={}, tree={"n": step})
    files = ("recipe.toml", "summary.json", "checkpoints/step-00000001/tree.json", "needs/needs.json", "profile.json")
    for name in files:
        (run / name).parent.mkdir(exist_ok=True)
        with open(run / name, "ab") as file:
            file.truncate(2**36)
    report = inspect_run(run)
    for name in files[:3]:
        assert any(name in fault and "bytes: expected at most" in fault for fault in report.faults), name
    assert read_profile(run / "none") is None
    for ask in (lambda: Run(run).recipe, lambda: Run(run).summary, lambda: Run(run).load()):
        with pytest.raises(StoreError, match=r"expected at most|File too large|bytes"):
            ask()
    with pytest.raises(OSError, match="expected at most"):
        read_profile(run)
    with pytest.raises(RecipeError, match="expected at most"):
        load(run)


def test_a_ring_takes_the_memory_of_what_was_written_to_it(tmp_path: Path) -> None:
    files, row = RingFiles(tmp_path), {"x": torch.zeros(1, 1024)}
    manifest = files.save("a", Ring.zeros(64, row, block=16), "step-00000001")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ring = RingFiles(tmp_path).load({**manifest, "capacity": 2**20})  # 4 GiB
    assert ring.capacity == 2**20 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18
    assert ring.columns["x"].data_ptr() % 64 == 0 and float(ring.columns["x"][-1].sum()) == 0
    for odd in ({"capacity": 2**60}, {"capacity": 2**40, "block": 1}):
        with pytest.raises(CheckpointError, match=r"a ring of .* rows in blocks of"):
            RingFiles(tmp_path).load({**manifest, **odd})


def test_a_table_of_metrics_that_is_almost_empty_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step names many metrics, and many steps none: small on disk, and not as columns."""
    with Store.open(tmp_path / "run") as store:
        store.commit(1, metrics={f"m{i}": 1.0 for i in range(400)}, tree={})
        for step in range(2, 2050):
            store.commit(step, metrics={"loss": 0.5})
    assert len(Run(tmp_path / "run").metrics()) == 404
    monkeypatch.setattr(sizes, "CELLS", 100)
    monkeypatch.setattr(sizes, "SPARSE", 8)
    for ask in (Run(tmp_path / "run").metrics, lambda: Known(tmp_path / "run").read_steps(60)):
        with pytest.raises(StoreError, match=r"40[12] metrics over \d+ steps, most of which have none"):
            ask()
