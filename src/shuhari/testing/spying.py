"""Checks which columns a component reads and writes against what it declares.

While a component runs, calls of `Batch` are recorded. A column need not be declared if it was looked up by its name
first (`in`, `get`), so that it is read only if present; nor need the columns of rows, models and engines (`FREE`).
Buffers keep all columns: the ones they have listed (`names`) count as looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from shuhari.batch import Batch
from shuhari.data import nearest
from shuhari.kernel.columns import DERIVED
from shuhari.kernel.pack import CORE
from shuhari.ports.declares import declares, is_among
from shuhari.testing.looking import require

FREE = frozenset(CORE) | frozenset(DERIVED) | {"reward", "support", "replaced", "resumes", "viewed", "cut", "last"}
STREAM = "rl"  # which a batch carries that names none
SPACES = ("context", "view", "_w")  # of columns that are named after the task's observations, and the library's own


@dataclass
class Seen:
    """Columns by name: `read`, `sought` (looked for first), `put` on a batch, `stamped`."""

    read: set[str] = field(default_factory=set)
    sought: set[str] = field(default_factory=set)
    put: set[str] = field(default_factory=set)
    stamped: set[str] = field(default_factory=set)


@contextmanager
def watch_columns(*, keeps: bool = False) -> Iterator[Seen]:
    """A context manager that records which columns of any batch are read and written inside. keeps: whether listed
    columns count as looked up, as for a buffer."""
    seen = Seen()
    get, has, find = Batch.__getitem__, Batch.__contains__, Batch.get
    put, stamp, names, flat = Batch.put, Batch.stamp, Batch.names, Batch.flat

    def name_of(key: Any) -> str:
        return key if isinstance(key, str) else str(key.key)

    def read(self: Batch, key: Any) -> Any:
        seen.read.add(name_of(key))
        return get(self, key)

    def contains(self: Batch, key: Any) -> bool:
        seen.sought.add(name_of(key))
        return has(self, key)

    def found(self: Batch, key: Any, default: Any = None) -> Any:
        seen.sought.add(name_of(key))
        return find(self, key, default)

    def listed(self: Batch) -> set[str]:
        there = names(self)
        seen.sought |= there if keeps else set()
        return there

    def copied(self: Batch) -> Batch:
        before = {*seen.read}
        try:
            return flat(self)
        finally:
            seen.read &= before

    def added(self: Batch, columns: Any, **how: Any) -> Batch:
        seen.put |= {name_of(key) for key in columns}
        return put(self, columns, **how)

    def stamped(self: Batch, name: str, value: Any) -> None:
        seen.stamped.add(name)
        stamp(self, name, value)

    watched: dict[str, Any] = {"__getitem__": read, "__contains__": contains, "get": found, "names": listed}
    watched |= {"put": added, "stamp": stamped, "flat": copied}
    with patch.multiple(Batch, **watched):
        yield seen


def require_declared(component: Any, seen: Seen, added: set[str] | frozenset[str] = frozenset()) -> None:
    """Raise ConformanceError for a column that was read, stamped or `added` to a batch and is not declared
    (`declares`)."""
    says = declares(component)
    wants = {need.key for need in says.needs}
    known = FREE | wants | set(says.reads) | set(says.hears) | seen.sought | seen.put
    for name in sorted(seen.read - known):
        space = name.partition("/")[0]
        if space in SPACES or name.startswith("_") or is_among(name, says.stamps or ()):
            continue
        require(False, component, f"read the column {name!r} and {_says('reads', says.reads, name)}")
    if says.stamps is None:
        return
    for name in sorted((added | seen.stamped) - wants):
        if not name.startswith("_") and not is_among(name, says.stamps):
            require(False, component, f"wrote the column {name!r} and {_says('stamps', says.stamps, name)}")


def _says(what: str, names: tuple[str, ...], name: str) -> str:
    near = nearest(name, names) if names else f"expected {what} = ({name!r},)"
    return f"declares {', '.join(names) or 'none'} as `{what}`; {near}"


def watch_declared(
    component: Any, call: Callable[[], Any], batch: Batch | None = None, *, keeps: bool = False
) -> Callable[[], Any]:
    """Wrap a call, to check what it reads and writes against what the component declares. `batch`: its input, if it
    returns that with columns added; `keeps`: see `watch_columns`."""

    def watched() -> Any:
        with watch_columns(keeps=keeps) as seen:
            out = call()
        new = set[str]()
        if batch is not None and isinstance(out, Batch):
            new = {name for name in out.names() - batch.names() if not _leaves_out(name, batch, out)}
        require_declared(component, seen, new)
        return out

    return watched


def _leaves_out(name: str, batch: Batch, out: Batch) -> bool:
    """Whether a column of `out` only removes rows from the stream that `batch` carries, as a filter does."""
    if name != f"weight/{batch.stream or STREAM}":
        return False
    weight = out.weight(name.removeprefix("weight/"))
    return bool(((weight == 0) | (weight == out["mask"])).all())
