"""Reads a model from one GGUF file: checks its header, lets transformers read the rest once, and keeps the result as a
directory of safetensors in the user's cache, under the digest of the file, to be loaded as any other.

Left out: quantised weights as they are (they become float32, in which the model computes), files in several parts.

The format is ggml's (docs/gguf.md there): magic, version, numbers of tensors and of keys, the keys, the tensors.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from shuhari.data import nearest

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST = 1 << 20  # tensors, keys; and entries of a list that is skipped at once
TEXT = 1 << 24  # bytes of a text
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9


class Head:
    """The keys and tensors of a file, read in order. Raises ValueError if it is truncated or inconsistent."""

    def __init__(self, file: Path) -> None:
        self.file, self.size = file, file.stat().st_size
        self.keys: dict[str, Any] = {}
        self.tensors: dict[str, int] = {}  # name -> offset of its weights, after the header
        with file.open("rb") as data:
            if (magic := data.read(4)) != MAGIC:
                raise ValueError(f"{file} is not a GGUF file: it begins with {magic!r}")
            version, tensors, keys = self._take(data, "I"), self._take(data, "Q"), self._take(data, "Q")
            if version not in VERSIONS:
                raise ValueError(f"{file} is GGUF of version {version}: expected {VERSIONS[0]} or {VERSIONS[1]}")
            if max(tensors, keys) > MOST:
                raise ValueError(f"{file} says that it has {tensors} tensors and {keys} keys: expected at most {MOST}")
            for _ in range(keys):
                name = self._text(data)
                self.keys[name] = self._value(data, self._take(data, "I"))
            for _ in range(tensors):
                name, rank = self._text(data), self._take(data, "I")
                if rank > 8:
                    raise ValueError(f"{file}: the tensor {name!r:.60} has {rank} axes")
                data.seek(8 * rank + 4, os.SEEK_CUR)
                self.tensors[name] = self._take(data, "Q")
            begin = data.tell()
        last = max(self.tensors, key=self.tensors.__getitem__, default="")
        if not self.tensors or begin + self.tensors[last] >= self.size:
            where = f"the weights of {last!r:.60} would begin at byte {begin + self.tensors.get(last, 0):,}"
            raise ValueError(f"{file} has {self.size:,} bytes, and {where}: it is cut, or was not fetched whole")

    def _take(self, data: BinaryIO, kind: str) -> Any:
        raw = data.read(struct.calcsize(f"<{kind}"))
        if len(raw) < struct.calcsize(f"<{kind}"):
            raise ValueError(f"{self.file} has {self.size:,} bytes and ends within its head: it is cut, or was not "
                             "fetched whole")  # fmt: skip
        return struct.unpack(f"<{kind}", raw)[0]

    def _text(self, data: BinaryIO) -> str:
        return data.read(self._length(data)).decode("utf-8", "replace")

    def _length(self, data: BinaryIO) -> int:
        size: int = self._take(data, "Q")
        if size > min(TEXT, self.size):
            raise ValueError(f"{self.file}: a text of {size} bytes: expected at most {TEXT}")
        return size

    def _value(self, data: BinaryIO, kind: int) -> Any:
        if kind in SCALARS:
            return self._take(data, SCALARS[kind])
        if kind == STRING:
            return self._text(data)
        if kind != LIST:
            raise ValueError(f"{self.file}: a key has a value of kind {kind}: expected 0 to 12")
        inner, many = self._take(data, "I"), self._take(data, "Q")
        if many > min(self.size, 1 << 26):
            raise ValueError(f"{self.file}: a list of {many} entries in {self.size:,} bytes")
        if inner in SCALARS:
            data.seek(many * struct.calcsize(f"<{SCALARS[inner]}"), os.SEEK_CUR)
            return many
        if inner != STRING:
            raise ValueError(f"{self.file}: a list of values of kind {inner}: expected numbers or texts")
        for _ in range(many):
            data.seek(self._length(data), os.SEEK_CUR)
        return many


def unpack(file: Path) -> Path:
    """Returns the directory converted from a GGUF file; converts it if needed. Raises ValueError for a truncated file,
    or a model that transformers does not read from GGUF, ModuleNotFoundError without the package `gguf`."""
    head = Head(file)
    kind = str(head.keys.get("general.architecture", ""))
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    known = [k for k in GGUF_CONFIG_MAPPING if k not in ("general", "tokenizer")]
    if kind not in known:
        near = nearest(kind, known)
        raise ValueError(f"{file} is a model of the architecture {kind!r}, which transformers does not read from GGUF; "
                         f"{near}: give its directory of safetensors instead")  # fmt: skip
    if not head.keys.get("tokenizer.ggml.tokens"):
        raise ValueError(f"{file} has no tokenizer (tokenizer.ggml.tokens): expected a file that brings one")
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "blake2b").hexdigest()[:16]
    place = _find_cache() / "gguf" / f"{file.stem}-{digest}"
    if not (place / "config.json").is_file():
        _convert(file, place)
    return place


def _convert(file: Path, place: Path) -> None:
    try:
        import gguf  # needed by transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('a .gguf file needs the package gguf: pip install "shuhari[gguf]"') from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logging.getLogger("shuhari").info("%s is read once, which takes a minute, and kept as %s", file.name, place)
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".tmp-", dir=place.parent))
    try:
        given: Mapping[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
        with _read_once(gguf):
            words = AutoTokenizer.from_pretrained(str(file.parent), **given)
            lm: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **given)
        lm.hf_quantizer = None
        vars(lm.config).pop("quantization_config", None)
        lm.save_pretrained(made)
        words.save_pretrained(made)
        made.rename(place)
    except OSError:
        if not (place / "config.json").is_file():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _read_once(package: Any) -> Iterator[None]:
    """Caches two functions: transformers reads the whole header for the configuration, again for the tokenizer and
    again for the weights, and builds the table of names for each module of the model; both depend only on their
    arguments."""
    names = ("GGUFReader", "get_tensor_name_map")
    found = {name: getattr(package, name) for name in names}
    for name, f in found.items():
        setattr(package, name, cache(f))
    try:
        yield
    finally:
        for name, f in found.items():
            setattr(package, name, f)


def _find_cache() -> Path:
    above = os.environ.get("XDG_CACHE_HOME", "")
    return Path(above if os.path.isabs(above) else Path.home() / ".cache") / "shuhari"
