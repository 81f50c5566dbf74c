"""The tensors of sharded processes in files: every process writes its own, and any number of processes (one too) reads
what it needs of them. A shard is a range of the first axis.

    shard-00001-of-00004.safetensors, .json    the tensors of one process, where each begins; `whole.json` is last

Left out: checksums; a folder is either complete or absent, as it is renamed into place.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shuhari.data import nearest
from shuhari.store import tensors as tensor_files
from shuhari.store.files import sync_directory, write_file

FORMAT = 2  # 1: what an optimiser keeps is `mean/..`, and not `optimiser/mean/..`
_TYPES = {name: dtype for dtype, name in tensor_files.NAMES.items()}


def name_part(path: Path, rank: int, size: int, end: str) -> Path:
    return path / f"shard-{rank + 1:05d}-of-{size:05d}.{end}"


def write_part(path: Path, rank: int, size: int, tensors: Mapping[str, Tensor], begins: Mapping[str, int]) -> None:
    """Write the part of one process: name -> its rows, and the index of their first row in the whole tensor."""
    path.mkdir(parents=True, exist_ok=True)
    write_file(name_part(path, rank, size, "safetensors"), tensor_files.pack(tensors))
    write_file(name_part(path, rank, size, "json"), [json.dumps(dict(begins)).encode()])


def finish(written: Path, path: Path, size: int, more: Mapping[str, Any]) -> None:
    """Mark the folder `written` as complete, once all parts are written, and put it in place of `path`. The previous
    folder lies beside it until then, where `Shards` finds it. `more`: plain numbers."""
    write_file(written / "whole.json", [json.dumps({"format": FORMAT, "size": size, **more}).encode()])
    sync_directory(written)
    old = _name_old(path)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(written, path)
    sync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _name_old(path: Path) -> Path:
    """Return the path of the previous folder while it is replaced."""
    return path.with_name(f".old-{path.name}")


class Rows:
    """A safetensors file that is read by rows, on request; nothing else of it is in memory. Raises ValueError for a
    file of another kind, or whose table does not fit its bytes."""

    def __init__(self, path: Path) -> None:
        self.path, size = path, path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, 10**8):
                raise ValueError(f"{path} is not a safetensors file: its header claims {length} bytes, of {size}")
            table = json.loads(file.read(length))
        self._start, self.shapes = 8 + length, dict[str, tuple[int, ...]]()
        self._of: dict[str, tuple[torch.dtype, int]] = {}
        for name, entry in table.items():
            if name == "__metadata__":
                continue
            shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
            dtype = _TYPES.get(entry["dtype"])
            if dtype is None or not shape or begin < 0 or self._start + end > size:
                raise ValueError(f"{path}: {name} is {entry}: expected a tensor with rows, inside of the file")
            if math.prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(f"{path}: {name} has {end - begin} bytes: expected {shape} of {entry['dtype']}")
            self.shapes[name], self._of[name] = shape, (dtype, begin)

    def read(self, name: str, first: int, end: int) -> Tensor:
        """Read rows [first, end) of a tensor, or as many of them as there are."""
        (n, *rest), (dtype, begin) = self.shapes[name], self._of[name]
        first, end = min(first, n), min(end, n)
        width = math.prod(rest) * dtype.itemsize
        data = bytearray(max(end - first, 0) * width)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self._start + begin + first * width)
            view, done = memoryview(data), 0
            while done < len(data):
                got = file.readinto(view[done:])
                if not got:
                    raise ValueError(f"{self.path} ends within {name}")
                done += got
        x = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return x.view(-1, *rest) if data else x.view(0, *rest)


class Shards:
    """The tensors that all processes wrote to a folder; the previous ones, if the writer ended while replacing it.
    Raises FileNotFoundError or ValueError for an incomplete folder."""

    def __init__(self, path: Path) -> None:
        if not path.exists() and _name_old(path).exists():
            path = _name_old(path)
        file = path / "whole.json"
        if not file.is_file():
            raise FileNotFoundError(f"{path} holds no whole set of shards: {file.name} is missing")
        self.about: dict[str, Any] = json.loads(file.read_text())
        if self.about["format"] > FORMAT:
            raise ValueError(f"{path}: format {self.about['format']}; this version reads up to {FORMAT}: upgrade it")
        self.path, size = path, self.about["size"]
        self._files = [Rows(name_part(path, rank, size, "safetensors")) for rank in range(size)]
        self._parts: dict[str, list[tuple[int, int]]] = {}  # name -> (first row, file)
        for rank in range(size):
            for name, first in json.loads(name_part(path, rank, size, "json").read_text()).items():
                self._parts.setdefault(name, []).append((first, rank))

    def names(self) -> list[str]:
        return list(self._parts)

    def read(self, name: str, first: int = 0, rows: int | None = None) -> Tensor:
        """Read rows [first, first + rows) of a tensor; rows None: to its end. Raises KeyError for an unknown name."""
        if name not in self._parts:
            raise KeyError(f"{self.path} has no {name!r}; {nearest(name, self._parts)}")
        end = 2**62 if rows is None else first + rows
        parts = [(begin, self._files[rank]) for begin, rank in sorted(self._parts[name])]
        found = [file.read(name, max(first - begin, 0), max(end - begin, 0)) for begin, file in parts]
        some = [x for x in found if len(x)] or found[:1]
        return some[0] if len(some) == 1 else torch.cat(some)


class Weights:
    """The weights of a Hugging Face directory, read a range of rows at a time."""

    def __init__(self, path: Path) -> None:
        index = path / "model.safetensors.index.json"
        named = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
        self.path, self._of = path, dict[str, Rows]()
        for name in sorted(named):
            if Path(name).name != name:
                raise ValueError(f"{index} names {name!r}: expected a file beside it")
            file = Rows(path / name)
            self._of |= dict.fromkeys(file.shapes, file)

    def read(self, name: str, first: int = 0, rows: int | None = None) -> Tensor:
        """See `Shards.read`."""
        if name not in self._of:
            raise KeyError(f"{self.path} has no weights {name!r}; {nearest(name, self._of)}")
        return self._of[name].read(name, first, 2**62 if rows is None else first + rows)


def export(path: Path, like: Path, directory: Path) -> None:
    """Write the weights of a folder of shards as a Hugging Face directory, a tensor at a time; configuration and
    tokenizer are copied from the directory `like`."""
    shards = Shards(path)
    names = [n for n in shards.names() if n.startswith("weights/")]
    directory.mkdir(parents=True, exist_ok=True)
    for file in like.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            shutil.copyfile(file, directory / file.name)
    placed, total = dict[str, str](), 0
    for i, (name, tensor) in enumerate(_walk(shards, names)):
        file = directory / f"model-{i + 1:05d}-of-{len(names):05d}.safetensors"
        write_file(file, tensor_files.pack({name: tensor}))
        placed[name] = file.name
        total += tensor.numel() * tensor.element_size()
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    write_file(directory / "model.safetensors.index.json", [json.dumps(index, indent=1).encode()])


def _walk(shards: Shards, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        yield name.removeprefix("weights/"), shards.read(name)
