"""Files of recorded episodes, which may be anybody's and may be damaged: arrays of numpy (`.npz`) or of HDF5, and
columns of safetensors, looked at before anything is made of them. Errors name the file, what is wrong and what was
expected.

Left out: what the arrays mean (`layouts`); arrays of HDF5 in groups, or behind links to elsewhere. Axes: `N` rows.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from shuhari.data import Array, nearest
from shuhari.store import tensors
from shuhari.store.files import measure_memory

NUMBERS = "biuf"  # kinds of numpy: truth values, integers, numbers
HDF5 = (".hdf5", ".h5")  # endings of its files
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError, TypeError,
    KeyError, MemoryError,
)  # fmt: skip


def read_arrays(path: Path, needs: Collection[str], rows: Collection[str], flags: Collection[str]) -> dict[str, Array]:
    """The arrays [N, ...] of an `.npz` file, or of an HDF5 file (`.hdf5`, `.h5`) outside of its groups, N the number of
    `actions`; what is not of numbers, or not of N rows, is left out. Heads are looked at before anything is unpacked: a
    few bytes may claim any size.

    Raises ValueError if the file is not one, one of `needs` is missing, one of `rows` is left out, one of `flags` is
    not [N] of truth values; ModuleNotFoundError, with the command that mends it, for HDF5 without its library."""
    packed = path.suffix in HDF5
    try:
        found, heads = (_read_hdf5 if packed else _read_npz)(path, needs, rows)
    except _DAMAGED as error:
        kind = "HDF5" if packed else ".npz"
        raise ValueError(f"{path}: not an {kind} file that can be learnt from: {_say(error)}") from None
    for name in (n for n in flags if n in found):
        if found[name].ndim != 1 or not np.isin(found[name], (0, 1)).all():
            raise ValueError(f"{path}: {name} is {heads[name]}: expected a 0 or 1 for each row")
    return found


Read: TypeAlias = "tuple[dict[str, Array], dict[str, _Head]]"  # arrays, and the header of each entry


def _read_npz(path: Path, needs: Collection[str], rows: Collection[str]) -> Read:
    with zipfile.ZipFile(path) as archive:
        heads = {info.filename.removesuffix(".npy"): _read_head(archive, info) for info in archive.infolist()}
        if lost := next((name for name in needs if name not in heads), ""):
            raise ValueError(f"no array {lost!r}; {nearest(lost, heads)}")
        return {name: _read_array(archive, heads[name]) for name in _choose(heads, rows)}, heads


def _read_hdf5(path: Path, needs: Collection[str], rows: Collection[str]) -> Read:
    """As D4RL reads them, a single number a row may stand in an axis of its own."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{path}: pip install "shuhari[control]" (a library is missing: h5py)') from None
    with h5py.File(path, "r") as file:
        own = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
        sets = {name: x for name in own if isinstance(x := file[name], h5py.Dataset)}
        heads = {k: _Head(k, x.shape or (), x.dtype, math.prod(x.shape or ()) * x.dtype.itemsize)
                 for k, x in sets.items() if not (x.external or x.is_virtual)}  # fmt: skip
        if lost := next((name for name in needs if name not in heads), ""):
            raise ValueError(f"no array {lost!r} outside of its groups; {_tell_contents(file, needs)}")
        found = {name: _convert(sets[name][()]) for name in _choose(heads, rows)}
    wide = ("observations", "actions", "next_observations")
    return {k: x[:, 0] if x.shape[1:] == (1,) and k not in wide else x for k, x in found.items()}, heads


def _tell_contents(file: Any, needs: Collection[str]) -> str:
    """What an HDF5 file has instead, and what reads it."""
    names: list[str] = []
    file.visit(lambda name: names.append(name) if len(names) < 9 else True)  # stops there
    expected = f"it has {', '.join(names[:8]) or 'nothing'}{', ...' * (len(names) > 8)}: expected {', '.join(needs)}"
    if "episode_0" in file:
        return f'{expected}; this is a data set of Minari: set data = {{use = "minari", path = <its directory>}}'
    return f"{expected} at its top, as D4RL writes them"


def _choose(heads: Mapping[str, _Head], rows: Collection[str]) -> list[str]:
    """The arrays of as many rows as `actions`. Raises ValueError if one of `rows` is not among them, or all of them
    do not fit into memory."""
    N = next(iter(heads["actions"].shape), 0)
    for name in (n for n in rows if n in heads):
        if not N or not _is_of(heads[name], N):
            raise ValueError(f"{name} is {heads[name]}: expected rows of numbers, {N or 'as many'} as of actions")
    kept = [name for name, head in heads.items() if _is_of(head, N)]
    _check_memory(sum(heads[name].bytes for name in kept))
    return kept


def _say(error: BaseException) -> str:
    """An error in words; a KeyError's are its argument."""
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


@dataclass(frozen=True)
class _Head:
    """The header of an archive's entry."""

    entry: str
    shape: tuple[int, ...]
    kind: np.dtype[Any]
    bytes: int

    def __str__(self) -> str:
        return f"an array {list(self.shape)} of {self.kind}"


def _read_head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Head:
    """Reads an entry's header. Raises ValueError if its size differs from what it claims."""
    with archive.open(info.filename) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
        head, there = _Head(info.filename, shape, kind, math.prod(shape) * kind.itemsize), info.file_size - file.tell()
    if kind.kind != "O" and (min(shape, default=1) < 0 or head.bytes != there):
        raise ValueError(f"{info.filename} says that it is {head}, {head.bytes} bytes, and has {there}")
    return head


def _is_of(head: _Head, rows: int) -> bool:
    """Whether it is a numeric array of `rows` rows."""
    return head.kind.kind in NUMBERS and bool(head.shape) and head.shape[0] == rows


def _read_array(archive: zipfile.ZipFile, head: _Head) -> Array:
    with archive.open(head.entry) as file:
        return _convert(np.asarray(np.lib.format.read_array(file, allow_pickle=False)))


def _convert(x: Array) -> Array:
    """An array in a type that torch has."""
    wide = np.float32 if x.dtype.kind == "f" else np.int64
    return x if x.dtype in (np.bool_, np.uint8, np.int64, np.float32) else x.astype(wide)


def read_columns(path: Path) -> dict[str, Tensor]:
    """Returns the columns of a saved data set. Raises ValueError if the file is damaged, or of another kind."""
    try:
        found = tensors.read(path)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: not safetensors that can be read ({error})") from None
    wanted: dict[str, tuple[Any, int]] = {"mask": (torch.bool, 2), "cont": (torch.float32, 1)}
    wanted |= dict.fromkeys(("child", "last", "episode"), (torch.int64, 1))
    wanted |= {name: (torch.float32, 2) for name in found if name.partition("/")[0] == "reward"}
    for name, (kind, axes) in wanted.items():
        if name not in found:
            message = "expected what `shuhari export RUN DIR --replay` writes"
            raise ValueError(f"{path}: no column {name!r}; {nearest(name, found)} ({message})")
        if found[name].dtype != kind or found[name].dim() != axes:
            is_ = f"{list(found[name].shape)} of {found[name].dtype}"
            raise ValueError(f"{path}: the column {name!r} is {is_}: expected {kind} [{', '.join('N1'[:axes])}]")
    N = len(found["mask"])
    if odd := next((name for name, x in found.items() if not x.dim() or len(x) != N), ""):
        raise ValueError(f"{path}: the column {odd!r} is {list(found[odd].shape)}, and there are {N} rows")
    for name, least in (("child", -1), ("last", 0), ("episode", 0)):
        x = found[name]
        if not N or int(x.min()) < least or int(x.max()) >= N:
            is_ = f"names rows from {int(x.min())} to {int(x.max())}" if N else "is empty"
            raise ValueError(f"{path}: the column {name!r} {is_}: expected {least}..{N - 1}")
    if not bool(((found["cont"] >= 0) & (found["cont"] <= 1)).all()):
        raise ValueError(f"{path}: the column 'cont' has numbers that are not from 0 to 1")
    return found


def _check_memory(size: int) -> None:
    """Raises ValueError if memory could not hold it twice: as it is, and as columns."""
    if 2 * size > (most := measure_memory()):
        raise ValueError(f"it holds {size / 2**30:.0f} GiB, and this machine has {most / 2**30:.0f} for all")
