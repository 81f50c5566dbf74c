"""Trees <-> JSON and tensors, without pickle: the codec of everything that a run stores or sends.

A tree is made of None, bool, int, float, str, bytes, lists, tuples, mappings with text keys, numpy numbers and arrays,
torch tensors, `Ring`, `Batch` and the wire types of `data`. All types survive the round trip; tensors come back on the
CPU, and tensors that share all of their memory (tied weights) share it again. The table of types is closed: any other
type is a TypeError that names its path. `dumps`/`loads` make one self-contained piece of bytes of a tree.

In the JSON, an object with the single key `$<tag>` is a value that JSON lacks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from shuhari.store import sizes
from shuhari.store import tensors as files
from shuhari.store.decode import CodecError, Reader, from_tree, refuse_errors
from shuhari.store.encode import WIRE, Writer, to_tree
from shuhari.store.ring import Ring

__all__ = ["WIRE", "CodecError", "Ring", "decode", "dumps", "encode", "from_tree", "loads", "to_tree"]

_MAGIC = b"shuhari1"
_JSON_LIMIT = 2**28
TREE = 2**26  # elements of the JSON of a checkpoint


def encode(tree: Any, *, ring: Callable[[str, Ring], Any] | None = None) -> tuple[Any, dict[str, Tensor]]:
    """Return a tree as (JSON, tensors by path). Tensors are not copied: write them before the tree changes.

    `ring`: called with (path, ring) for each Ring, returns the JSON that replaces it; by default the ring is written
    whole. Raises TypeError for anything outside the closed table, with its path.
    """
    writer = Writer(ring)
    return writer.write(tree, ""), writer.tensors


def decode(
    value: Any, tensors: Mapping[str, Tensor], *, ring: Callable[[Any], Ring] | None = None, numbers: float = math.inf
) -> Any:
    """Return the tree of (JSON, tensors). CodecError for anything that `encode` does not write, and if arrays have more
    than `numbers` numbers in all; an array counts each time it is referenced."""
    with refuse_errors():
        return Reader(tensors, ring, numbers).read(value, 0)


def dumps(tree: Any, numbers: float = math.inf) -> bytes:
    """Return a tree as self-contained bytes: a mark, the length of the JSON (8 bytes, little-endian), JSON,
    safetensors. SizeError if `loads` would refuse its `numbers`."""
    writer = Writer(None)
    value, tensors = writer.write(tree, ""), writer.tensors
    if writer.numbers > numbers:
        raise sizes.SizeError(f"arrays of {writer.numbers} numbers: expected at most {numbers}")
    text = to_json(value)
    head = _MAGIC + len(text).to_bytes(8, "little") + text
    return b"".join([head, *files.pack(tensors)]) if tensors else head


def loads(data: bytes, limit: int = 2**30, elements: int = TREE, numbers: float = math.inf) -> Any:
    """Return the tree of `dumps`. CodecError if the bytes are not of `dumps`, are more than `limit`, or if their JSON
    has more than `elements` elements, or their arrays more than `numbers` numbers."""
    if len(data) > limit:
        raise CodecError(f"{len(data)} bytes: expected at most {limit}")
    if data[:8] != _MAGIC or len(data) < 16:
        raise CodecError(f"bytes that begin with {data[:8]!r}: expected {_MAGIC!r} and a length")
    end = 16 + int.from_bytes(data[8:16], "little")
    if end > min(len(data), _JSON_LIMIT):
        raise CodecError(f"the JSON is said to end at byte {end}, of {len(data)} (and {_JSON_LIMIT} allowed)")
    with refuse_errors():
        value = from_json(data[16:end], elements)
        tensors = files.unpack(data[end:]) if len(data) > end else {}
        return decode(value, tensors, numbers=numbers)


def count_elements(data: bytes) -> int:
    """Return the number of elements of the JSON of `dumps`."""
    return sizes.count_elements(data[16 : 16 + int.from_bytes(data[8:16], "little")])


def to_json(value: Any) -> bytes:
    """Return compact, strict JSON: NaN and infinities are errors."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def from_json(text: bytes, elements: int = TREE) -> Any:
    """Return the value of the JSON of `to_json`; CodecError for numbers that are not finite, and for more than
    `elements` elements."""
    try:
        return sizes.read_json(text, elements, parse_constant=_refuse_constant)
    except sizes.SizeError as error:
        raise CodecError(str(error)) from None


def _refuse_constant(text: str) -> Any:
    raise CodecError(f"the number {text}: expected a finite one")
