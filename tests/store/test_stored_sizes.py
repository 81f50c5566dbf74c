"""Small bytes that stand for much memory are refused while they are read."""

from __future__ import annotations

import json
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from shuhari.store import Run, Store, StoreError, codec, rollouts, sizes, tensors
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
