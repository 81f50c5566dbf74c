"""Decoder of `codec`: JSON and tensors to a tree.

The input may be damaged or hostile: nothing is run, built or trusted that the closed table does not name.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import EMPTY, FrozenDict, Problem, Request, Sampling, Status, Step, Trajectory, nearest
from shuhari.store.encode import DEPTH, FIELDS, WIRE, count_numbers
from shuhari.store.files import StoreError
from shuhari.store.ring import Ring

_PLAIN = (dict, FrozenDict)
_OF: dict[type, dict[str, type | tuple[type, ...]]] = {  # what a part of a wire type must be, where others rely on it
    Problem: {"task": str, "id": str, "info": _PLAIN},
    Sampling: {"max_new": int, "top_k": int, "stop": tuple, "ban": tuple, "greedy": bool},
    Request: {
        "problem": Problem,
        "n": int,
        "sampling": (Sampling, type(None)),
        "prefix": tuple,
        "settings": _PLAIN,
        "info": _PLAIN,
        "key": str,
    },
    Step: {"mask": np.ndarray, "version": np.ndarray, "reward": _PLAIN, "role": str, "views": _PLAIN, "info": _PLAIN},
    Trajectory: {"request": Request, "steps": tuple, "status": Status, "info": _PLAIN, "graded_by": _PLAIN},
}


class CodecError(ValueError):
    """Bytes or JSON that are no tree: damaged, cut short, made by something else, or hostile."""


@contextmanager
def refuse_errors() -> Iterator[None]:
    """Turn any error into a CodecError, as the input comes from outside; MemoryError and StoreError stay as they
    are."""
    try:
        yield
    except (CodecError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, StoreError):  # a ring's file, with a message of its own
            raise
        raise CodecError(f"not a tree that was written here: {type(error).__name__}: {str(error)[:200]}") from error


def from_tree(tree: Mapping[str, Any]) -> Batch:
    """Return the batch of `to_tree`; ValueError if columns differ in length or a row points at no step."""
    columns, arena, links = tree["columns"], tree["arena"], tree["links"]
    n, lengths = len(columns["mask"]), {len(x) for x in columns.values()}
    if lengths != {n} or columns["mask"].dim() != 2:
        shape = list(columns["mask"].shape)
        raise ValueError(f"a batch's mask is {shape}, its columns have {sorted(lengths)} rows: expected [B, K], B rows")
    if n and not columns["mask"].numel():  # rows without bytes: their number is anybody's
        raise ValueError(f"the {n} rows of a batch are empty: expected at least 1 position")
    pointers = {"parent": n, "child": n, "step": len(arena)}
    for name in pointers.keys() & columns.keys():
        x = columns[name]
        inside = not len(x) or -2 <= int(x.min()) <= int(x.max()) < pointers[name]
        if x.dtype != torch.int64 or x.dim() != 1 or not inside:
            found = f"{x.dtype} {list(x.shape)}"
            raise ValueError(f"the column {name!r} ({found}): expected int64 [B] from -2 to {pointers[name] - 1}")
    if any(not isinstance(step, Step) for step in arena):
        kinds = sorted({type(step).__name__ for step in arena} - {"Step"})
        raise ValueError(f"the arena of a batch holds {', '.join(kinds)}: expected steps")
    for name, (index, more) in links.items():
        if index.dim() != 2 or any(len(x) != len(index) for x in more.values()):
            rows = {column: len(x) for column, x in more.items()}
            message = f"{list(index.shape)}, their columns have {rows} rows: expected [P, L] and P rows"
            raise ValueError(f"the links {name!r} are {message}")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n:
            message = f"{int(index.min())} to {int(index.max())}: expected 0 to {n - 1}"
            raise ValueError(f"the links {name!r} name rows {message}")
    scored = tree.get("scored", ())
    if not isinstance(scored, tuple) or not all(isinstance(name, str) for name in scored):
        raise ValueError(f"the scored columns of a batch are {str(scored)[:60]}: expected a tuple of names")
    return Batch(columns, None, None, arena, links, tree["stream"], frozenset(scored))


class Reader:
    """A decoder of JSON into a tree. Each tag has a method; any error in one becomes a CodecError in `decode`."""

    def __init__(
        self, tensors: Mapping[str, Tensor], ring: Callable[[Any], Ring] | None, numbers: float = math.inf
    ) -> None:
        self.tensors, self.ring = tensors, ring
        self.numbers = numbers  # that arrays may still stand for, each time that they are named
        self.left = sum(x.nbytes for x in tensors.values())  # bytes that may be copied out of tensors: each once

    def read(self, x: Any, depth: int) -> Any:
        if type(x) is list:
            return [self.read(v, depth + 1) for v in self._check_depth(x, depth)]
        if type(x) is not dict:
            if type(x) is float and not math.isfinite(x):  # 1e999
                raise CodecError(f"the number {x}: expected a finite one")
            return x
        self._check_depth(x, depth)
        if len(x) == 1:
            ((key, value),) = x.items()
            if key[:1] == "$":
                return self._read_tag(key, value, depth + 1)
        if any(key[:1] == "$" for key in x):
            raise CodecError(f"an object with the keys {sorted(x)[:4]}: expected one that begins with $ to stand alone")
        return {k: self.read(v, depth + 1) for k, v in x.items()}

    def _check_depth(self, x: Any, depth: int) -> Any:
        if depth > 4 * DEPTH:
            raise CodecError(f"a tree of more than {4 * DEPTH} levels: expected at most {DEPTH}")
        return x

    def _read_tag(self, tag: str, value: Any, depth: int) -> Any:
        name = tag[1:]
        if name == "array":
            return self._count(self._read_array(value))
        if name == "tuple":
            return tuple([self.read(v, depth) for v in value])
        if name in WIRE:
            return self._read_wire(WIRE[name], self._read_mapping(value, depth))
        if name in ("text", "bytes"):
            raw = base64.b64decode(value, validate=True)
            return raw.decode("utf-8", "surrogatepass") if name == "text" else raw
        if name == "frozen":
            return FrozenDict(self._read_mapping(value, depth)) or EMPTY
        if name == "map":
            return {self._read_key(k, depth): self.read(v, depth) for k, v in value}
        if name == "tensor":
            return self._count(self.tensors[value])
        if name == "complex":
            return torch.view_as_complex(self._count(self.tensors[value]))
        if name == "blob":
            return self._read_blob(value)
        if name == "scalar":
            return np.frombuffer(base64.b64decode(value[1], validate=True), _check_dtype(value[0]))[0]
        if name == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
        if name == "int":
            return _read_int(value)
        if name == "Status":
            return Status(value)
        if name == "Batch":
            return from_tree(self._read_mapping(value, depth))
        if name == "Ring":
            return _make_ring(self._read_mapping(value, depth))
        if name == "Blocks" and self.ring is not None:
            return self.ring(value)
        raise CodecError(f"the tag {tag!r}; {nearest(name, ['array', 'tensor', 'tuple', *WIRE])}")

    def _count(self, x: Any) -> Any:
        """Return an array as it is; CodecError if the arrays read so far, as lists, would have more numbers than
        allowed."""
        self.numbers -= count_numbers(x.shape)
        if self.numbers < 0:
            raise CodecError(f"arrays of more numbers than may be: one more of the shape {str(list(x.shape))[:60]}")
        return x

    def _read_blob(self, name: Any) -> bytes:
        x = self.tensors[name]
        self.left -= x.nbytes
        if self.left < 0:
            raise CodecError(f"the bytes of the tensor {name!r:.40} are named again and again: expected once")
        return x.numpy().tobytes()

    def _read_mapping(self, value: Any, depth: int) -> dict[str, Any]:
        out = self.read(value, depth)
        if type(out) is not dict:
            raise CodecError(f"a {type(out).__name__}: expected a mapping")
        return out

    def _read_key(self, key: Any, depth: int) -> str:
        out = self.read(key, depth)
        if type(out) is not str:
            raise CodecError(f"the key {out!r}: expected text")
        return out

    def _read_array(self, value: Any) -> np.ndarray[Any, Any]:
        if type(value) is str:
            return self.tensors[value].numpy()
        dtype, shape, data = value
        raw = base64.b64decode(data, validate=True) if type(data) is str else self.read(data, 0)
        return np.frombuffer(raw, _check_dtype(dtype)).reshape(shape).copy()

    def _read_wire(self, cls: type, fields: dict[str, Any]) -> Any:
        for name in fields:
            if name not in FIELDS[cls]:
                raise CodecError(f"a {cls.__name__} with {name!r}; {nearest(name, FIELDS[cls])}")
        for name, kind in _OF.get(cls, {}).items():
            if name in fields and not isinstance(fields[name], kind):
                expected = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
                message = f"is a {type(fields[name]).__name__}: expected {expected}"
                raise CodecError(f"a {cls.__name__} whose {name} {message}")
        steps = fields.get("steps" if cls is Trajectory else "prefix", ())
        if any(type(step) is not Step for step in steps):
            kinds = sorted({type(step).__name__ for step in steps} - {"Step"})
            raise CodecError(f"a {cls.__name__} whose steps hold {', '.join(kinds)}: expected steps")
        if cls is Trajectory and any(type(given) is bool for given in fields.get("graded_by", EMPTY).values()):
            fields["graded_by"] = _name_grades(fields)
        return cls(**fields)


def _name_grades(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `graded_by` in its present form, for an old trajectory in which it was only whether something was
    given."""
    names = tuple(sorted({
        name
        for step in fields.get("steps", ())
        for name in step.reward
    }))
    told = fields["graded_by"].items()
    return {grader: (names if given else None) if type(given) is bool else given for grader, given in told}


def _read_int(text: str) -> int:
    """Return a whole number beyond 64 bits, as in the state of a generator."""
    if len(text) > 256:
        raise CodecError(f"a number of {len(text)} hexadecimal digits: expected at most 256")
    return int(text, 16)


def _make_ring(fields: dict[str, Any]) -> Ring:
    empty = sorted(name for name, x in fields["columns"].items() if not x.numel())
    if empty:  # rows without bytes: their number is anybody's
        raise CodecError(f"a ring whose columns {empty} are empty: expected at least 1 number")
    return Ring(**fields)


def _check_dtype(text: Any) -> np.dtype[Any]:
    dtype = np.dtype(text) if type(text) is str and len(text) < 8 else None
    if dtype is None or dtype.kind not in "biufc":
        raise CodecError(f"the array type {str(text)[:40]!r}: expected bool, integers, floats or complex numbers")
    return dtype
