"""What a result was measured with: a digest of the core's source, and one of each module that is a method's own.

The core is what the recipes of `baselines/` use too, and everything that is no component. Comments, docstrings and
layout do not count: a module is the same while it does the same.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shuhari.library import names
from shuhari.overlay import USE
from shuhari.recipe import Recipe, load
from shuhari.registry import KINDS

ROOT = Path(__file__).parents[1]
OUTSIDE = ("cli", "claims", "recipes")  # what shows and judges runs is no part of them


@cache
def version() -> str:
    """A short name of the core's source as it was on disk when this process first asked."""
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).parts
        if place[0] in OUTSIDE:
            continue
        tree = _tree(path)
        if place[0] not in KINDS.values() or not _is_own(tree):
            found.update(f"{'/'.join(place)} {_digest(tree)}\n".encode())
    return found.hexdigest()


def own_modules(recipes: Iterable[Recipe], others: Iterable[Any] = ()) -> dict[str, str]:
    """module -> digest, of the components that stages of the recipes (or `others`) are made of and that the core has
    not: the methods' own, and those of user code."""
    from shuhari import state
    from shuhari.build import component, stage_components

    used = list(others)
    for recipe in recipes:
        if "study" in recipe.tree:
            used.append(component("study", recipe.tree["study"]))
        shared: dict[str, Any] = {}
        for stage in (stage_components(table, shared) for table in recipe.stages):
            used += [part for _, part in state.walk(stage.memories())]
    return dict(sorted(_digests({type(part) for part in used})))


def _digests(classes: Iterable[type]) -> Iterator[tuple[str, str]]:
    """(module, digest) of classes that the core has not."""
    for cls in classes:
        file = inspect.getsourcefile(cls)
        if file is None or cls.__module__.split(".")[0] in ("builtins", "torch"):
            continue
        tree = _tree(Path(file))
        if not cls.__module__.startswith("shuhari."):
            name = Path(file).name if cls.__module__.startswith("shuhari_user") else cls.__module__
            yield name, _digest(tree)
        elif _is_own(tree):
            yield cls.__module__, _digest(tree)


@cache
def _shared() -> frozenset[str]:
    """The names of components that the core has: those of `baselines/`, and what stands where a recipe names none."""
    found = (n for b in names() if b.startswith("baselines/") for n in told(load(b).tree))
    return frozenset((*USE.values(), "gradient", *found))


def told(table: Mapping[str, Any]) -> Iterator[str]:
    """The names that may be of components: what `use` and `name` say, and the keys of tables, which are the default."""
    for key, value in table.items():
        if key in ("use", "name") and isinstance(value, str):
            yield value.partition("/")[0]
        elif isinstance(value, Mapping):
            yield key
            yield from told(value)
        elif isinstance(value, list):
            yield from (n for v in value if isinstance(v, Mapping) for n in told(v))


def _is_own(tree: ast.Module) -> bool:
    """Whether a module registers components, and none that the core has."""
    found = set(_registers(tree))
    return bool(found) and not found & _shared()


def _registers(tree: ast.Module) -> Iterator[str]:
    """The names under which a module registers components."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register":
                    yield from (str(a.value) for a in call.args[1:2] if isinstance(a, ast.Constant))


def digest(path: Path) -> str:
    """Of what a module does."""
    return _digest(_tree(path))


def _digest(tree: ast.Module) -> str:
    """Of a module's tree, which it strips of docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=6).hexdigest()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
