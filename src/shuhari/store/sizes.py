"""Bounds on the memory of stored data once it is read: few bytes may expand to much memory. No torch.

An empty list is two bytes of JSON, and more than fifty of memory; a compressed file may be a thousandth of what it
unpacks to. So both are bounded while they are read, before the memory is taken.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from shuhari.store.files import StoreError

GROUP = 2**26  # bytes of a kept group, unpacked
ELEMENTS = 2**22  # values of JSON in a kept group, and in a row
# a text that does not end is one too: else each of its quotes would be tried as a beginning
CELLS, SPARSE = 2**24, 128  # of a table of metrics, which is empty in many places: cells; cells for a value
DIGITS = 309  # of a whole number that no float is as large as
_LONG = rf"(?<![0-9])[0-9]{{{DIGITS}}}"  # looked for from the beginning of a number alone
_IS_LONG = {str: re.compile(_LONG).search, bytes: re.compile(_LONG.encode()).search}
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class SizeError(ValueError):
    """Stored data that would take more memory than allowed."""


def read_json(text: str | bytes, elements: int = ELEMENTS, **how: Any) -> Any:
    """Return the value of JSON. SizeError if it has more than `elements` elements, or a whole number that is larger
    than any float, which could not be shown or drawn; other ValueErrors if it is not JSON."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) and len(text) > elements else text
    if isinstance(raw, bytes) and len(raw) > elements and (n := count_elements(raw, elements)) > elements:
        raise SizeError(f"JSON of {n} elements: expected at most {elements}")
    if type(text) in _IS_LONG and _IS_LONG[type(text)](text):  # type: ignore[operator]
        how["parse_int"] = _read_int
    return json.loads(text, **how)


def _read_int(text: str) -> int:
    if len(text) >= DIGITS:
        raise SizeError(f"a number of {len(text)} digits: expected fewer than {DIGITS}")
    return int(text)


def count_elements(text: bytes, enough: int = 0) -> int:
    """Return an upper bound on the number of values of JSON, in lists and objects; a bound of at most `enough` may be
    rough."""
    rough = 1 + sum(map(text.count, (b",", b"[", b"{")))
    if rough <= enough:
        return rough
    plain = _TEXT.sub(b"", text)  # what stands in texts makes no element
    return 1 + sum(map(plain.count, (b",", b"[", b"{")))


def check_table(columns: int, rows: int, values: int) -> None:
    """Raise StoreError if a table of so many columns and rows is almost empty for its stored values: one step may name
    a million metrics that a million other steps lack."""
    if columns * rows > CELLS + SPARSE * (values + rows):
        raise StoreError(f"{columns} metrics over {rows} steps, most of which have none of them: expected fewer")


def unzip(data: bytes, limit: int = GROUP) -> bytes:
    """Return what compressed bytes hold; SizeError if that is more than `limit`, zlib.error if they are cut short or
    not compressed."""
    stream = zlib.decompressobj()
    plain = stream.decompress(data, limit)
    if stream.unconsumed_tail:
        raise SizeError(f"it unpacks to more than {limit} bytes")
    if not stream.eof:
        raise zlib.error("it is cut short")
    return plain
