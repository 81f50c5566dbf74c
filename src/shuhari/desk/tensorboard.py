"""The numbers of a run as a TensorBoard event file, written without TensorBoard's package.

An event file is a sequence of TFRecords, each an `Event` message of protocol buffers; only what scalars need is
implemented. Left out: histograms, pictures, text, and reading.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
_VERSION, _SUMMARY = 3, 5  # fields of Event, besides wall_time = 1 and step = 2
LEFT_OUT = ("step",)


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _make_table()


class TensorBoard:
    """Writes every number of each report, as in `shuhari.train(..., observe=TensorBoard("logs"))`, for `tensorboard
    --logdir logs`.

    folder: of the event files, one for each time that a run starts or resumes: give every run a folder of its own. x:
    the number of a report on the horizontal axis, `step` or another that only rises, such as `spent/env_steps` for
    curves over environment steps.
    """

    def __init__(self, folder: str | Path, x: str = "step") -> None:
        self.folder, self.x = Path(folder), x
        self._file: Path | None = None

    def __call__(self, report: Mapping[str, Any]) -> None:
        now = time.time()
        new = b""
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self.folder / f"events.out.tfevents.{time.time_ns():020}.{os.getpid()}.shuhari"
            new = frame(_pack_double(1, now) + _pack_bytes(_VERSION, b"brain.Event:2"))
        numbers = {k: v for k, v in report.items() if k not in LEFT_OUT and is_number(v)}
        values = b"".join(
            _pack_bytes(1, _pack_bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in numbers.items()
        )
        event = _pack_double(1, now) + b"\x10" + _pack_varint(int(report[self.x])) + _pack_bytes(_SUMMARY, values)
        with open(self._file, "ab") as file:
            file.write(new + frame(event))


def frame(data: bytes) -> bytes:
    """Return a TFRecord: length [8], its checksum [4], the data, their checksum [4]."""
    length = struct.pack("<Q", len(data))
    return length + _pack_checksum(length) + data + _pack_checksum(data)


def compute_crc32c(data: bytes) -> int:
    """Compute the CRC-32C of RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _pack_checksum(data: bytes) -> bytes:
    crc = compute_crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)  # masked, as TFRecords require


def _pack_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _pack_bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _pack_varint(len(data)) + data


def _pack_double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 3e38
