"""The event file of TensorBoard, read back by the formats' own rules; the checksum by known values."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.tensorboard import TensorBoard, compute_crc32c


@pytest.mark.parametrize(
    ("data", "crc"),  # RFC 3720, B.4, and the check value of the algorithm
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"123456789", 0xE3069283)],
)
def test_the_checksum(data: bytes, crc: int) -> None:
    assert compute_crc32c(data) == crc


def records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        body, (check,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        for part, masked in ((data[:8], crc), (body, check)):
            rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == compute_crc32c(part)
        yield body
        data = data[16 + length :]


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for i, byte in enumerate(data):
        value += (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, data[i + 1 :]
    raise AssertionError(data)


def message(data: bytes) -> list[tuple[int, Any]]:
    """(field, value) of a message of protocol buffers."""
    found: list[tuple[int, Any]] = []
    while data:
        key, data = read_varint(data)
        kind = key & 7
        if kind == 0:
            value, data = read_varint(data)
        elif kind == 2:
            size, data = read_varint(data)
            value, data = data[:size], data[size:]  # type: ignore[assignment]
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            (value,), data = struct.unpack(form, data[:size]), data[size:]
        found.append((key >> 3, value))
    return found


def test_numbers_come_back(tmp_path: Path) -> None:
    write = TensorBoard(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()  # nothing is written for a run that makes no step
    long = "name/" * 60
    write({"step": 1, "stage": "rl", "reward/mean": 0.25, "nan": math.nan, "flag": True, "problems": ()})
    write({"step": 300, "reward/mean": -2, "huge": 1e300, long: 7.0})
    (file,) = (tmp_path / "logs").glob("events.out.tfevents.*")
    first, *events = (dict(message(body)) for body in records(file.read_bytes()))
    assert first[3] == b"brain.Event:2"
    read = [(e[2], [dict(message(v)) for _, v in message(e[5])]) for e in events]
    assert read == [
        (1, [{1: b"reward/mean", 2: 0.25}]), (300, [{1: b"reward/mean", 2: -2.0}, {1: long.encode(), 2: 7.0}])
    ]  # fmt: skip
    assert all(abs(e[1] - file.stat().st_mtime) < 60 for e in events)


def test_the_axis_is_a_number_of_the_report(tmp_path: Path) -> None:
    TensorBoard(tmp_path, x="spent/env_steps")({"step": 1, "spent/env_steps": 256, "rollout/return": 2.0})
    (file,) = tmp_path.iterdir()
    _, event = records(file.read_bytes())
    assert dict(message(event))[2] == 256
