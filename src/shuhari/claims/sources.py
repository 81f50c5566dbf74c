"""What a result was measured with: a digest of the library's source, and one of each module that is the method's own.

Of a module, comments, docstrings and layout do not count: it is the same while it does the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shuhari.library import names
from shuhari.recipe import Recipe, load

ROOT = Path(__file__).parents[1]
OUTSIDE = ("cli", "claims", "recipes")  # what shows and judges runs is no part of them


@cache
def version() -> str:
    """A short name of the source of the library, as far as runs depend on it; of its bytes, so that it is quick."""
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(p for p in ROOT.rglob("*.py") if p.relative_to(ROOT).parts[0] not in OUTSIDE):
        found.update(f"{path.relative_to(ROOT).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def own_modules(recipes: Iterable[Recipe]) -> dict[str, str]:
    """module -> digest, of the components that the arms name and that no recipe of `baselines/` names: the method's
    own. What the baselines use too is the core, of which `version` tells."""
    from shuhari.registry import entries

    mine = {n for r in recipes for n in named(r.tree)}
    shared = {n for b in names() if b.startswith("baselines/") for n in named(load(b).tree)}
    modules = {cls.__module__ for (_, name), cls in entries().items() if name in mine - shared}
    core = {cls.__module__ for (_, name), cls in entries().items() if name in shared}
    return {m: digest(file) for m in sorted(modules - core) if (file := _file(m)) is not None}


def named(table: Mapping[str, Any]) -> Iterator[str]:
    """The names that may be of components: what `use` and `name` say, and the keys of tables, which are the default."""
    for key, value in table.items():
        if key in ("use", "name") and isinstance(value, str):
            yield value.partition("/")[0]
        elif isinstance(value, Mapping):
            yield key
            yield from named(value)
        elif isinstance(value, list):
            yield from (n for v in value if isinstance(v, Mapping) for n in named(v))


@cache
def digest(file: Path) -> str:
    """Of what a module does."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    told = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef  # what may have a docstring
    for node in ast.walk(tree):
        if isinstance(node, told) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=6).hexdigest()


def _file(module: str) -> Path | None:
    """The file of a module of this package; None of others, whose source is not ours to keep."""
    if not module.startswith("shuhari."):
        return None
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
