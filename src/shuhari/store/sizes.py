"""How large what is stored may be once it is read: small bytes may stand for much memory. No torch.

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
    """What is stored would take more memory than it may."""


def read_json(text: str | bytes, elements: int = ELEMENTS, **how: Any) -> Any:
    """What JSON says; SizeError where it has more than so many elements, or a whole number that is larger than any
    float, which nothing could show or draw; other ValueErrors where it is none."""
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
    """At least as many as JSON has values, in lists and objects; at most `enough` need not be exact."""
    rough = 1 + sum(map(text.count, (b",", b"[", b"{")))
    if rough <= enough:
        return rough
    plain = _TEXT.sub(b"", text)  # what stands in texts makes no element
    return 1 + sum(map(plain.count, (b",", b"[", b"{")))


def check_table(columns: int, rows: int, values: int) -> None:
    """StoreError where a table of so many columns and rows is almost empty, for the values that were stored: one step
    may name a million metrics, which a million others have not."""
    if columns * rows > CELLS + SPARSE * (values + rows):
        raise StoreError(f"{columns} metrics over {rows} steps, most of which have none of them: expected fewer")


def unzip(data: bytes, limit: int = GROUP) -> bytes:
    """What compressed bytes hold; SizeError where that is more than `limit`, zlib.error where they are cut short or
    none."""
    stream = zlib.decompressobj()
    plain = stream.decompress(data, limit)
    if stream.unconsumed_tail:
        raise SizeError(f"it unpacks to more than {limit} bytes")
    if not stream.eof:
        raise zlib.error("it is cut short")
    return plain
