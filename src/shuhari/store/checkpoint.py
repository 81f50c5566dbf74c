"""Checkpoints: a directory of `tensors.safetensors` and `tree.json`, complete or absent.

More than LIMIT bytes of tensors are cut into shards, `tensors-00001-of-00003.safetensors` and so on, written and read
one after the other. Every file has a checksum, so that a damaged checkpoint is reported, not trained on. The database
decides which checkpoints exist and which one counts (`database`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from shuhari.store import codec, sizes
from shuhari.store import tensors as tensor_files
from shuhari.store.files import CheckpointError, DamageError, read_file, remove, sync_directory, write_file
from shuhari.store.names import BASED, join_block
from shuhari.store.ring import RingFiles

FORMAT = 3  # 1: the checksum of `tree.json` was that of its tree alone; 3: some weights by reference, under `based`
DOCUMENT = 2**30  # bytes of `tree.json`
LIMIT = 4 * 2**30  # bytes of tensors a file; one tensor that is larger has a file of its own
# `tensors`: bytes and crc32 of each file, in order
_HEAD = re.compile(
    rb'({"format":(\d{1,9}),"tensors":(\[\d+,\d+(?:,\d+,\d+)*\]),"rings":(\[.*?\])),"crc32":(\d{1,10}),"tree":',
    re.DOTALL,
)


def write(path: Path, tree: Any, rings: RingFiles | None = None) -> set[str]:
    """Write a tree as the directory `path`, flushed and renamed into place; return the ring blocks that it is made of.

    With `rings`, only the changed blocks of a Ring are written; without, it is written whole. TypeError if the tree
    holds a type that the codec does not support.
    """
    blocks: set[str] = set()

    def save_ring(name: str, ring: codec.Ring) -> Any:
        assert rings is not None
        manifest = rings.save(name, ring, path.name)
        blocks.update(file for _, file, _ in manifest["files"])
        return manifest

    temporary = path.with_name(f".tmp-{path.name}")
    remove(temporary)
    temporary.mkdir(parents=True)
    try:
        value, tensors = codec.encode(tree, ring=None if rings is None else save_ring)
        written: list[int] = []
        shards = tensor_files.split(tensors, LIMIT)
        for name, shard in zip(_name_files(len(shards)), shards, strict=True):
            written += write_file(temporary / name, tensor_files.pack(shard))
        text = codec.to_json(value)
        listed = json.dumps(sorted(blocks), separators=(",", ":"))
        sums = json.dumps(written, separators=(",", ":"))
        format = FORMAT if isinstance(tree, Mapping) and BASED in tree else 2  # others are read by earlier versions too
        head = f'{{"format":{format},"tensors":{sums},"rings":{listed}'.encode()
        crc = zlib.crc32(text, zlib.crc32(head))
        write_file(temporary / "tree.json", [head, f',"crc32":{crc},"tree":'.encode(), text, b"}\n"])
        sync_directory(temporary)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(path.parent)
    return blocks


def read(path: Path, rings: RingFiles | None = None) -> Any:
    """Return the tree of a checkpoint; CheckpointError names the missing or damaged file, and how it is damaged."""
    sums, blocks, text = _read_document(path)
    file, tensors = path, dict[str, Any]()
    try:
        for name, size, crc in zip(_name_files(len(sums) // 2), sums[::2], sums[1::2], strict=True):
            file = path / name
            _check_size(file, size)
            if _compute_crc(file) != crc:
                raise CheckpointError(f"{file}: its content is not what was written (checksum)")
            tensors |= tensor_files.read(file)
        used = set[str]()

        def load_ring(manifest: Any) -> codec.Ring:
            assert rings is not None
            used.update(file for _, file, _ in manifest["files"])
            return rings.load(manifest)

        tree = codec.decode(codec.from_json(text, codec.TREE), tensors, ring=None if rings is None else load_ring)
        if rings is not None and used != set(blocks):
            raise CheckpointError(f"{path / 'tree.json'}: the blocks that it lists are not those that it is made of")
        return tree
    except FileNotFoundError:
        raise CheckpointError(f"{file}: the file is missing") from None
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def find_fault(path: Path, rings: Path | None = None) -> str:
    """Return what is wrong with a checkpoint, "" if nothing is, without reading its tensors: its document, the files
    that this names and their sizes, and whether the ring blocks below `rings` exist."""
    try:
        sums, blocks, _ = _read_document(path)
        for name, size in zip(_name_files(len(sums) // 2), sums[::2], strict=True):
            _check_size(path / name, size)
        missing = next((b for b in blocks if rings is not None and not join_block(rings, b).is_file()), None)
    except FileNotFoundError as error:
        return f"{error.filename}: the file is missing"
    except (CheckpointError, OSError, ValueError) as error:
        return str(error)
    return "" if missing is None else f"{rings}/{missing}: the file is missing"


def _check_size(file: Path, size: int) -> None:
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{file}: it is no plain file")
    if found.st_size != size:
        raise CheckpointError(f"{file}: {found.st_size} bytes, of {size} written")


def list_blocks(path: Path) -> set[str]:
    """Return the ring blocks that a checkpoint is made of."""
    return set(_read_document(path)[1])


def _read_document(path: Path) -> tuple[list[int], list[str], bytes]:
    """Return (bytes and crc32 of each file of tensors, ring blocks, the tree's JSON)."""
    file = path / "tree.json"
    try:
        data = read_file(file, DOCUMENT)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: the file is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    head = _HEAD.match(data)
    if head is None or not data.endswith(b"}\n"):
        raise CheckpointError(f"{file}: not a checkpoint's JSON, or cut short ({len(data)} bytes)")
    if (format := int(head[2])) > FORMAT:
        raise CheckpointError(f"{file}: format {format}; this version reads up to {FORMAT}: upgrade shuhari")
    text = data[head.end() : -2]
    if zlib.crc32(text, zlib.crc32(head[1]) if format > 1 else 0) != int(head[5]):
        raise CheckpointError(f"{file}: its content is not what was written (checksum)")
    try:
        sums, blocks = sizes.read_json(head[3]), sizes.read_json(head[4])
        for block in blocks:
            join_block(path, block)
    except (ValueError, RecursionError, DamageError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    if len(sums) % 2:
        raise CheckpointError(f"{file}: its list of files is not what was written")
    return sums, blocks, text


def _name_files(n: int) -> list[str]:
    """Return the names of n files of tensors."""
    return ["tensors.safetensors"] if n == 1 else [f"tensors-{i:05d}-of-{n:05d}.safetensors" for i in range(1, n + 1)]


def _compute_crc(file: Path) -> int:
    crc = 0
    with open(file, "rb") as opened:
        while chunk := opened.read(2**22):
            crc = zlib.crc32(chunk, crc)
    return crc
