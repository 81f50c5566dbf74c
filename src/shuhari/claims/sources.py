"""What a result was measured with: a digest of the core's source, and one of each module that is a method's own.

The core is what the recipes of `baselines/` use too, and everything that is no component. Comments, docstrings and
layout do not count: a module is the same while it does the same. Left out: what a module of a user imports.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shuhari.config.library import names
from shuhari.config.overlay import USE
from shuhari.config.recipe import Recipe, load
from shuhari.registry import KINDS

ROOT = Path(__file__).parents[1]
OUTSIDE = ("cli", "claims", "recipes", "tools")  # what shows and judges runs is no part of them
FREE = ("models", "follow", "stage", "part", "learner")  # tables whose keys are names that a recipe gives


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
    from shuhari.config.build import component, stage_components
    from shuhari.loop import state

    used = list(others)
    for recipe in recipes:
        if "study" in recipe.tree:
            used.append(component("study", recipe.tree["study"]))
        shared: dict[str, Any] = {}
        for stage in (stage_components(table, shared) for table in recipe.stages):
            used += [part for _, part in state.walk(stage.memories())]
    functions = {f for part in used for f in getattr(part, "__dict__", {}).values() if inspect.isfunction(f)}
    return dict(sorted(_digests({*functions, *map(type, used)})))


def _digests(made: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """(module, digest) of the classes and functions that the core has not."""
    for one in made:
        file = inspect.getsourcefile(one)
        if file is None or one.__module__.split(".")[0] in ("builtins", "torch"):
            continue
        tree = _tree(Path(file))
        if not one.__module__.startswith("shuhari."):
            name = Path(file).name if one.__module__.startswith("shuhari_user") else one.__module__
            yield name, _digest(tree)
        elif _is_own(tree):
            yield one.__module__, _digest(tree)


@cache
def _shared() -> frozenset[str]:
    """The names of components that the core has: those of `baselines/`, and what stands where a recipe names none."""
    found = (n for b in names() if b.startswith("baselines/") for n in named(load(b).tree))
    return frozenset((*USE.values(), "gradient", "ema", *found))


def named(table: Mapping[str, Any], free: bool = False) -> Iterator[str]:
    """The names that may be of components: what `use` and `name` say, and the key of a table without, which is the
    default. free: the keys of this table are none."""
    for key, value in table.items():
        if key in ("use", "name") and isinstance(value, str):
            yield value.partition("/")[0]
        elif isinstance(value, Mapping):
            if not free and "use" not in value:
                yield key
            yield from named(value, key in FREE)


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


def _digest(tree: ast.Module) -> str:
    return hashlib.blake2b("\n".join(_told(tree)).encode(), digest_size=6).hexdigest()


def _told(node: Any) -> Iterator[str]:
    """What a tree does, line by line: without docstrings, and without what is empty, of which each version of Python
    has its own."""
    if isinstance(node, ast.Constant):
        yield repr(node.value)
        return
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            value = value[1:]
        for one in value if isinstance(value, list) else [value]:
            nothing = isinstance(node, ast.JoinedStr) and isinstance(one, ast.Constant) and not one.value
            if one is not None and not nothing:
                yield name
                yield from _told(one) if isinstance(one, ast.AST) else [repr(one)]
    yield "."


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
