"""Trees <-> JSON and tensors, without pickle: all that a run stores or sends goes through here.

A tree is made of None, bool, int, float, str, bytes, lists, tuples, mappings with text keys, numpy numbers and
arrays, torch tensors, `Ring`, `Batch` and the wire types of `data`. All are told apart on the way back; tensors come
back on the CPU, tensors that share all of their memory (tied weights) share it again. A closed table of types: what
is not in it is a TypeError that names its path. `dumps`/`loads` make one self-contained piece of bytes of it.

In the JSON an object with the one key `$<tag>` is something that JSON has not.
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
    """(JSON, tensors by path). Tensors are not copied: write them before the tree changes.

    `ring`: called with (path, ring) for each Ring, gives the JSON that stands for it; by default it is written whole.
    Raises TypeError for anything outside the closed table, naming where it is.
    """
    writer = Writer(ring)
    return writer.write(tree, ""), writer.tensors


def decode(
    value: Any, tensors: Mapping[str, Tensor], *, ring: Callable[[Any], Ring] | None = None, numbers: float = math.inf
) -> Any:
    """The tree of (JSON, tensors); CodecError for anything that `encode` does not write, and for arrays of more than so
    many `numbers` in all, each counted as often as it is named."""
    with refuse_errors():
        return Reader(tensors, ring, numbers).read(value, 0)


def dumps(tree: Any, numbers: float = math.inf) -> bytes:
    """A tree as self-contained bytes: a mark, the length of the JSON (8 bytes, little-endian), JSON, safetensors.
    SizeError where `loads` would refuse its `numbers`."""
    writer = Writer(None)
    value, tensors = writer.write(tree, ""), writer.tensors
    if writer.numbers > numbers:
        raise sizes.SizeError(f"arrays of {writer.numbers} numbers: expected at most {numbers}")
    text = to_json(value)
    head = _MAGIC + len(text).to_bytes(8, "little") + text
    return b"".join([head, *files.pack(tensors)]) if tensors else head


def loads(data: bytes, limit: int = 2**30, elements: int = TREE, numbers: float = math.inf) -> Any:
    """The tree of `dumps`; CodecError where the bytes are none, or are more than `limit`, or their JSON has more
    `elements`, or their arrays more `numbers`."""
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
    """How many elements the JSON of `dumps` has."""
    return sizes.count_elements(data[16 : 16 + int.from_bytes(data[8:16], "little")])


def to_json(value: Any) -> bytes:
    """Strict and short: what JSON has no number for is an error."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def from_json(text: bytes, elements: int = TREE) -> Any:
    """The JSON of `to_json`; CodecError for numbers that are not finite, and for more than so many elements."""
    try:
        return sizes.read_json(text, elements, parse_constant=_refuse_constant)
    except sizes.SizeError as error:
        raise CodecError(str(error)) from None


def _refuse_constant(text: str) -> Any:
    raise CodecError(f"the number {text}: expected a finite one")
