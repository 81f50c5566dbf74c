"""Ring: columns of a circular buffer (a replay buffer), stored by the blocks that changed.

Axes: `N` = capacity, the rows of every column. A checkpoint then costs what is new, not what is there. Blocks are
files named by the checkpoint that wrote them, never changed afterwards; a checkpoint lists the blocks it is made of.
"""

from __future__ import annotations

import math
import re
import weakref
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from shuhari.data import Array
from shuhari.store import tensors
from shuhari.store.files import CheckpointError, DamageError, read_file, replace_file, sync_directory
from shuhari.store.names import is_block, join_block

LARGEST, BLOCKS = 2**44, 2**24  # bytes and blocks of a ring that is read
ALIGNED = 64  # bytes
_DTYPES = {str(d).removeprefix("torch."): d for d in tensors.NAMES}


def _make_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros [N, ...] that use memory only once they are written to: a ring may be large, and hold little. They
    are aligned as torch's are, as sums of the same numbers at other alignments may differ in their last bits."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNED, np.uint8)
    first = -raw.ctypes.data % ALIGNED
    return torch.from_numpy(raw[first : first + size]).view(dtype).view(*shape)


class Ring:
    """Columns [N, ...] on the CPU, zero until written; the store saves only the blocks that changed.

    Write with `append`, or into `columns` / `arrays` (the same memory as numpy) and then `touch` the rows: a row that
    was changed and not touched is lost on resume. `written` counts all rows ever appended. `block`: rows a file, by
    default about a megabyte's worth.
    """

    def __init__(self, columns: Mapping[str, Tensor], written: int = 0, block: int | None = None) -> None:
        lengths = {name: len(x) for name, x in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of a ring have {lengths or 'no'} rows: expected one length")
        self.columns = dict(columns)
        self.arrays: dict[str, Array] = {name: x.numpy() for name, x in columns.items()}
        self.written = written
        if block is None:
            row = sum(x.nbytes // max(1, len(x)) for x in self.columns.values())
            block = min(4096, 1 << max(16, 2**20 // max(1, row)).bit_length() - 1)
        if block < 1:
            raise ValueError(f"a ring's block is {block}: expected at least 1 row")
        self.block = block
        self.stamps = np.zeros(-(-self.capacity // block), np.int64)  # when each block was last touched; 0 never
        self._clock = 0
        if written:
            self.touch(np.arange(self.size))

    @classmethod
    def zeros(cls, capacity: int, like: Mapping[str, Tensor], block: int | None = None) -> Ring:
        """Return an empty ring whose columns have the types and the trailing shapes of `like` [B, ...]."""
        return cls({n: x.new_zeros(capacity, *x.shape[1:]) for n, x in like.items()}, block=block)

    @property
    def capacity(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def size(self) -> int:
        """Number of rows that hold something, 0..capacity."""
        return min(self.written, self.capacity)

    def append(self, rows: Mapping[str, Any]) -> Array:
        """Write rows [B, ...] over the oldest; return their positions [B]. Every column must be there."""
        if rows.keys() != self.columns.keys():
            raise ValueError(f"rows with columns {sorted(rows)}: the ring has {sorted(self.columns)}")
        n = len(next(iter(rows.values())))
        if n > self.capacity:
            raise ValueError(f"{n} rows at once: the ring holds {self.capacity}")
        at = (self.written + np.arange(n)) % self.capacity
        for name, x in rows.items():
            self.arrays[name][at] = x
        self.written += n
        self.touch(at)
        return at

    def touch(self, rows: Any) -> None:
        """Mark rows (positions, one or an array) as changed in place."""
        self._clock += 1
        self.stamps[np.asarray(rows) // self.block] = self._clock


class RingFiles:
    """The blocks under one directory. What `save` writes counts only after `settle`: a checkpoint that fails in between
    does not change the record of what is stored."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stored: dict[str, tuple[weakref.ref[Ring], Array, dict[int, tuple[str, int]]]] = {}
        self._pending: dict[str, tuple[weakref.ref[Ring], Array, dict[int, tuple[str, int]]]] = {}

    def save(self, name: str, ring: Ring, stamp: str) -> dict[str, Any]:
        """Write the blocks touched since the last settled save of this very object under `name`; return the
        manifest."""
        # a ring's name is its path in the tree: readable, and made unique where characters had to go
        unique = blake2b(name.encode(errors="replace"), digest_size=4).hexdigest()
        folder = f"{re.sub(r'[^a-zA-Z0-9_]+', '_', name)[:80]}-{unique}"
        known = self._stored.get(name)
        old, files = np.zeros_like(ring.stamps), dict[int, tuple[str, int]]()
        if known is not None and known[0]() is ring:
            old, files = known[1], dict(known[2])
        changed = np.flatnonzero(ring.stamps != old).tolist()
        if changed:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for b in changed:
            rows = slice(b * ring.block, (b + 1) * ring.block)
            file = f"{folder}/{b:06d}-{stamp}.safetensors"
            _, crc = replace_file(self.root / file, tensors.pack({n: x[rows] for n, x in ring.columns.items()}))
            files[b] = file, crc
        if changed:
            sync_directory(self.root / folder)
            sync_directory(self.root)
        self._pending[name] = weakref.ref(ring), ring.stamps.copy(), files
        return {
            "name": name,
            "capacity": ring.capacity,
            "written": ring.written,
            "block": ring.block,
            "columns": {n: [str(x.dtype).removeprefix("torch."), list(x.shape[1:])] for n, x in ring.columns.items()},
            "files": [[b, file, crc] for b, (file, crc) in sorted(files.items())],
        }

    def settle(self, *, keep: bool) -> None:
        """End the last saves: their checkpoint is committed (`keep`), or was given up."""
        if keep:
            self._stored.update(self._pending)
        self._pending.clear()

    def load(self, manifest: Mapping[str, Any]) -> Ring:
        """Return the ring of a manifest; CheckpointError names a block that is missing or damaged."""
        capacity, block = manifest["capacity"], manifest["block"]
        spec = {n: (_DTYPES[dtype], shape) for n, (dtype, shape) in manifest["columns"].items()}
        row = sum(math.prod(shape) * dtype.itemsize for dtype, shape in spec.values())
        if capacity * row > LARGEST or capacity > BLOCKS * block:
            raise CheckpointError(f"{self.root}: a ring of {capacity} rows in blocks of {block}, {row} bytes each: "
                                  f"expected at most {LARGEST} bytes and {BLOCKS} blocks")  # fmt: skip
        columns = {n: _make_zeros((capacity, *shape), dtype) for n, (dtype, shape) in spec.items()}
        ring = Ring(columns, 0, block)
        ring.written = manifest["written"]
        files: dict[int, tuple[str, int]] = {}
        for b, file, crc in manifest["files"]:
            for name, x in self._read_block(file, crc, block * row).items():
                columns[name][b * block : (b + 1) * block] = x
            ring.touch(b * block)
            files[b] = file, crc
        self._stored[manifest["name"]] = weakref.ref(ring), ring.stamps.copy(), files
        return ring

    def _read_block(self, file: str, crc: int, size: int) -> dict[str, Tensor]:
        """Return the columns of a block, of at most `size` bytes."""
        try:
            path = join_block(self.root, file)
        except DamageError as error:
            raise CheckpointError(f"{self.root}: {error}") from None
        try:
            data = read_file(path, size + 2**20)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: the file is missing") from None
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        if zlib.crc32(data) != crc:
            raise CheckpointError(f"{path}: its content is not what was written (checksum)")
        try:
            return tensors.unpack(data)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def delete(self, files: set[str]) -> None:
        """Remove blocks that no kept checkpoint lists. DamageError, before any is removed, for an invalid name."""
        for path in [join_block(self.root, file) for file in files]:
            path.unlink(missing_ok=True)

    def sweep(self, wanted: set[str]) -> None:
        """Remove every block that is not wanted, and the remains of an interrupted write."""
        if not self.root.is_dir():
            return
        for folder in [x for x in self.root.iterdir() if x.is_dir() and not x.is_symlink()]:
            for path in folder.glob("*.safetensors"):
                if f"{folder.name}/{path.name}" not in wanted and is_block(folder.name, path.name):
                    path.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()
