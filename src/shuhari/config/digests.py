"""Digests (hashes) of files and directories: of the user's own files that a run needs beside this library, and of the
copies of them that are kept in the run's folder."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

COPY, SOURCE = 16 * 2**20, 2**20  # bytes of a file or directory of which a copy is kept; of a file of Python in it
WHOLE = 256 * 2**20  # bytes of a file, above which its digest is of its size, its beginning and its end


def compute_digest(path: Path) -> str:
    """Return a digest: of Python its syntax tree, of any other file its bytes (above WHOLE, its size and both ends), of
    a directory all of its files."""
    code = hashlib.blake2b(digest_size=12)
    for file in list_files(path):
        code.update(f"{file.relative_to(path) if path.is_dir() else ''}\n".encode())
        if file.suffix == ".py":
            with suppress(SyntaxError, ValueError):
                code.update(ast.unparse(ast.parse(file.read_bytes())).encode())
                continue
        size = file.stat().st_size
        code.update(str(size).encode())
        with open(file, "rb") as opened:
            if size > WHOLE:
                code.update(opened.read(2**20))
                opened.seek(-(2**20), 2)
            while chunk := opened.read(2**20):
                code.update(chunk)
    return code.hexdigest()


def explain_copy(place: Path) -> str:
    """Return why what is at an absolute path without links cannot be a copy that a run keeps; "" if it may be one.
    Checked before it is read: a link may lead to a whole disk, and parsing a small program takes hundreds of times its
    size."""
    if place.resolve() != place or any(p.is_symlink() for p in place.rglob("*")):
        return "there is a link"
    sizes = {file: file.stat().st_size for file in list_files(place)}
    source = max((n for file, n in sizes.items() if file.suffix == ".py"), default=0)
    if sum(sizes.values()) > COPY or source > SOURCE:
        return f"it is larger than {SOURCE if source > SOURCE else COPY} bytes"
    return ""


def list_files(path: Path) -> Iterator[Path]:
    """Yield the plain files of a directory, in order, or the file itself; nothing for any other path."""
    yield from (p for p in (sorted(path.rglob("*")) if path.is_dir() else [path]) if p.is_file())
