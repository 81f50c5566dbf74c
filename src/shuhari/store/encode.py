"""Encoder of `codec`: one pass over a tree gives JSON and the tensors beside it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import FrozenDict, Problem, Ramp, Request, Sampling, Status, Step, Trajectory
from shuhari.store import tensors as files
from shuhari.store.ring import Ring

WIRE: dict[str, type] = {c.__name__: c for c in (Problem, Sampling, Request, Step, Trajectory, Ramp)}
FIELDS = {c: tuple(c.__dataclass_fields__) for c in WIRE.values()}  # type: ignore[attr-defined]
DEPTH = 100  # levels of a tree: deeper ones are cycles or attacks
_NATIVE = {str(dtype).removeprefix("torch.") for dtype in files.NAMES}  # numpy's names of the types are the same
_INLINE = 512  # bytes of an array that stands in the JSON: thousands of small arrays make slow tensor files


def count_numbers(shape: Iterable[int]) -> int:
    """Return the cost of an array of a shape as lists, in numbers; an axis of size 0 counts as 64, as empty lists cost
    memory."""
    return math.prod(n or 64 for n in shape)


def to_tree(batch: Batch) -> dict[str, Any]:
    """Return a batch as a plain tree: its columns (own copies of a view's rows), the steps they use, its links."""
    flat = batch.flat()
    links = {name: (index, columns) for name, (index, columns) in flat.links.items()}
    columns = {**flat.whole, **flat.own}
    scored = tuple(sorted(flat.scored))
    return {"columns": columns, "arena": tuple(flat.arena), "links": links, "stream": flat.stream, "scored": scored}


class Writer:
    def __init__(self, ring: Callable[[str, Ring], Any] | None) -> None:
        self.ring = ring
        self.tensors: dict[str, Tensor] = {}
        self.depth = 0
        self.numbers = 0  # that arrays stand for, each time that they are named
        self._names: dict[Any, str] = {}
        self._alive: list[Any] = []  # an address stands for a tensor only as long as nothing else can take it

    def write(self, x: Any, path: str) -> Any:
        kind = type(x)
        if x is None or kind is bool:
            return x
        if kind is str:
            return x if x.isascii() or _is_unicode(x) else {"$text": _to_base64(x.encode("utf-8", "surrogatepass"))}
        if kind is int:
            return x if -(2**63) <= x < 2**64 else _write_int(x, path)
        if kind is float:
            return x if math.isfinite(x) else {"$float": repr(x)}
        if self.depth >= DEPTH:
            raise TypeError(f"{_name(path[:200])}…: a tree of more than {DEPTH} levels, or one that contains itself")
        self.depth += 1
        try:
            return self._write_special(kind, x, path)
        finally:
            self.depth -= 1

    def _write_special(self, kind: type, x: Any, path: str) -> Any:
        if kind is dict:
            return self._write_mapping(x, path)
        if kind is list:
            return [self.write(v, f"{path}/{i}") for i, v in enumerate(x)]
        if kind is tuple:
            return {"$tuple": [self.write(v, f"{path}/{i}") for i, v in enumerate(x)]}
        if kind is np.ndarray or isinstance(x, Tensor):
            self.numbers += count_numbers(x.shape)
        if kind is np.ndarray:
            return self._write_array(x, path)
        if isinstance(x, Tensor):
            return self._write_tensor(x, path)
        if kind in FIELDS:
            return {f"${kind.__name__}": {n: self.write(getattr(x, n), f"{path}/{n}") for n in FIELDS[kind]}}
        if kind is Status:
            return {"$Status": x.value}
        if kind is FrozenDict:
            return {"$frozen": self._write_mapping(x, path)}
        if kind is bytes:
            if len(x) <= _INLINE:
                return {"$bytes": _to_base64(x)}
            return {"$blob": self._add_tensor(torch.frombuffer(bytearray(x), dtype=torch.uint8), path)}
        if isinstance(x, np.generic) and x.dtype.kind in "biufc":
            return {"$scalar": [x.dtype.str, _to_base64(x.tobytes())]}
        if kind is Ring:
            if self.ring is not None:
                return {"$Blocks": self.ring(path.removeprefix("/"), x)}
            return {"$Ring": self._write_mapping({"columns": x.columns, "written": x.written, "block": x.block}, path)}
        if kind is Batch:
            return {"$Batch": self._write_mapping(to_tree(x), path)}
        if isinstance(x, Mapping):
            return self._write_mapping(x, path)
        raise TypeError(
            f"{_name(path)} is a {kind.__module__}.{kind.__qualname__}: what is stored or sent is made of tensors, "
            f"arrays, numbers, text, bytes, None, lists, tuples, mappings and {', '.join(WIRE)}, Status, Batch, Ring"
        )

    def _write_mapping(self, x: Mapping[Any, Any], path: str) -> Any:
        out, plain = {}, True
        for key, value in x.items():
            if type(key) is not str:
                kind = type(key).__name__
                raise TypeError(f"{_name(path)} has the key {key!r} ({kind}): expected text, {str(key)!r}")
            plain = plain and key[:1] != "$" and (key.isascii() or _is_unicode(key))
            out[key] = self.write(value, f"{path}/{key}")
        return out if plain else {"$map": [[self.write(k, path), v] for k, v in out.items()]}

    def _write_array(self, x: np.ndarray[Any, Any], path: str) -> Any:
        if x.dtype.kind not in "biufc":
            raise TypeError(f"{_name(path)} is an array of {x.dtype}: expected bool, integer, float or complex numbers")
        if x.nbytes <= _INLINE:
            return {"$array": [x.dtype.str, list(x.shape), _to_base64(x.tobytes())]}
        if not (x.dtype.isnative and x.dtype.name in _NATIVE):
            raw = torch.frombuffer(bytearray(x.tobytes()), dtype=torch.uint8)
            return {"$array": [x.dtype.str, list(x.shape), {"$blob": self._add_tensor(raw, path)}]}
        if not (x.flags.c_contiguous and x.flags.writeable):  # torch takes no negative strides, and warns of the latter
            x = x.copy(order="C")
        return {"$array": self._add_tensor(torch.from_numpy(x), path)}

    def _write_tensor(self, x: Tensor, path: str) -> Any:
        if x.layout != torch.strided or x.is_quantized or x.device.type == "meta":
            raise TypeError(f"{_name(path)} is a tensor with layout {x.layout} on {x.device}: expected a dense one")
        if x.dtype == torch.complex128:  # safetensors has none
            return {"$complex": self._add_tensor(torch.view_as_real(x.resolve_conj()), path)}
        if x.dtype not in files.NAMES:
            names = ", ".join(map(str, files.NAMES))
            raise TypeError(f"{_name(path)} is a tensor of {x.dtype}: expected one of {names}")
        return {"$tensor": self._add_tensor(x, path)}

    def _add_tensor(self, x: Tensor, path: str) -> str:
        x = x.detach().resolve_conj().resolve_neg()
        key = (x.data_ptr(), x.dtype, x.shape, x.stride(), x.device) if x.numel() else None
        if key in self._names:
            return self._names[key]
        self._alive.append(x)
        name = path.removeprefix("/") or "value"
        if not name.isascii() and not _is_unicode(name):
            name = f"tensor {len(self.tensors)}"
        while name in self.tensors or name == "__metadata__":
            name = f"{name}#{len(self.tensors)}"
        self.tensors[name] = x
        if key is not None:
            self._names[key] = name
        return name


def _name(path: str) -> str:
    return path.removeprefix("/") or "the tree"


def _write_int(x: int, path: str) -> Any:
    if abs(x) >= 2**1000:
        raise TypeError(f"{_name(path)} is a whole number of {x.bit_length()} bits: expected at most 1000")
    return {"$int": hex(x)}


def _to_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text: JSON joins two lone surrogates into another character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
