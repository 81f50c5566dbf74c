"""The registry: a chained log of the protocols of claims, a line before the first run of each try.

A line of `<out>/registry.jsonl` has the date, the claim, the digest of its protocol, the number of the try, its first
and last seed, and `previous`, the digest of the line before. So a line that is changed, removed or moved breaks the
chain from there on. What it shows is the order of protocols and results as published together, not when they were made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.store.files import translate_errors

try:
    import fcntl
except ImportError:  # Windows: one process at a time is then up to the user
    fcntl = None  # type: ignore[assignment]

FILE = "registry.jsonl"
START = "0" * 16  # what the first line has as the digest of the one before
KEYS = ("date", "claim", "protocol", "try", "seeds", "previous")


def digest_line(line: str) -> str:
    """Return the digest of a line, which the next line holds."""
    return hashlib.blake2b(line.strip().encode(), digest_size=8).hexdigest()


def read(file: Path) -> list[dict[str, Any]]:
    """Read a registry and check its chain; empty if there is no file. Raises RecipeError with the first line that is
    broken or does not follow the one before."""
    if not file.is_file():
        return []
    found, previous = [], START
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            missing = [key for key in KEYS if key not in line]
        except (ValueError, TypeError) as error:
            raise RecipeError("", f"{file}, line {number}: {error}: expected a JSON object") from None
        if missing:
            raise RecipeError("", f"{file}, line {number}: without {', '.join(missing)}")
        if line["previous"] != previous:
            hint = "the line before was changed, or lines were merged: append the later ones anew, with forked = true"
            raise RecipeError("", f"{file}, line {number}: previous is {line['previous']!r}, not {previous!r}; {hint}")
        previous = digest_line(text)
        found.append({**line, "digest": previous})
    return found


def register(file: Path, claim: str, protocol: Mapping[str, Any], seeds: Sequence[int]) -> str:
    """Append a try unless it is there, and return the digest of its line. Processes take turns by a lock on the file.
    protocol: as a result stores it."""
    with translate_errors(f"write {file}"), _lock(file):
        lines = read(file)
        for line in lines:
            if (line["claim"], line["protocol"], line["try"]) == (claim, protocol["hash"], protocol["tries"]):
                return str(line["digest"])
        previous = lines[-1]["digest"] if lines else START
        entry = {
            "date": date.today().isoformat(),
            "claim": claim,
            "protocol": protocol["hash"],
            "try": protocol["tries"],
            "seeds": [seeds[0], seeds[-1]],
            "previous": previous,
        }
        text = json.dumps(entry)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{text}\n")
        return digest_line(text)


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / f".{file.name}.lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
