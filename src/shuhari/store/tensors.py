"""The safetensors format, written as a stream: nothing is copied as a whole, and tied weights or views are allowed,
which the library's own writer refuses. Reading is the library's, which checks its input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def pack(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file in pieces; a tensor is copied only if it is not contiguous or not on the
    CPU.

    The widest types come first, so that every tensor is aligned to its own size."""
    names = sorted(tensors, key=lambda n: -tensors[n].element_size())
    header, end = {}, 0
    for name in names:
        x = tensors[name]
        start, end = end, end + x.numel() * x.element_size()
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        x = tensors[name]
        if x.numel():
            yield _view_bytes(x)


def _view_bytes(x: Tensor) -> memoryview:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def find_digest(x: Tensor) -> str:
    """Return a digest that identifies a tensor: of its type, its shape and its bytes, as hexadecimal."""
    digest = hashlib.blake2b(f"{NAMES[x.dtype]} {list(x.shape)} ".encode(), digest_size=16)
    if x.numel():
        digest.update(_view_bytes(x))
    return digest.hexdigest()


def split(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Return the tensors in order, cut so that no part has more than `limit` bytes unless it is a single tensor; at
    least one part."""
    out: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, x in tensors.items():
        bytes_ = x.numel() * x.element_size()
        if out[-1] and size + bytes_ > limit:
            out.append({})
            size = 0
        out[-1][name] = x
        size += bytes_
    return out


def unpack(data: bytes) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file; safetensors.SafetensorError if the bytes are not one."""
    return safetensors.torch.load(data)


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, in memory of their own: mapped ones have other alignments, and then sums of the
    same numbers may differ in their last bits."""
    return {name: x.clone() for name, x in safetensors.torch.load_file(path).items()}
