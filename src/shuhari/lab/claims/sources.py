"""Digests of the source that a result was measured with: of the core, and of each other module that its runs used.

The core is all that the training loop imports. The rest is what components are made of: the module of each class and
function that the recipes name, and all that it imports of shuhari. Neither depends on which recipes there are, so a new
baseline or bed changes nothing that was measured. Comments, docstrings and layout do not count: a module is the same
while it does the same. Left out: what a module of a user imports beside shuhari.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from shuhari.config.library import list_names
from shuhari.config.overlay import RecipeError, walk_leaves
from shuhari.config.recipe import Recipe, load
from shuhari.kernel import registry
from shuhari.kernel.field_docs import find_text

ROOT = Path(__file__).parents[2]
LOOP = "shuhari.loop.study"  # where training and evaluation begin
# no part of what runs: what finds recipes (their resolved text is hashed), what judges runs, shows them, or times them
OUTSIDE = ("shuhari", "shuhari.config.library", "shuhari.kernel.plugins", "shuhari.kernel.profile")
APART = ("shuhari.lab.", "shuhari.desk.", "shuhari.testing")
_WORLD = re.compile(r"\bworld/([\w.-]+)")


@cache
def digest_core() -> str:
    """A digest of the core's source as of this process's first call."""
    listing = "".join(f"{name} {_digest_of(name)}\n" for name in sorted(list_core()))
    return hashlib.blake2b(listing.encode(), digest_size=6).hexdigest()


@cache
def list_core() -> frozenset[str]:
    """The modules of the core."""
    return frozenset(_follow_imports([LOOP]))


def digest_modules(recipes: Iterable[Recipe], others: Iterable[Any] = ()) -> dict[str, str]:
    """module -> digest, of all beside the core that the components of the recipes' stages (or `others`) are made of:
    those of shuhari by their name, those of user code by their file's."""
    used: set[Any] = set(map(type, others))
    ours, out = set[str](), dict[str, str]()
    for recipe in recipes:
        used |= _list_classes(recipe)
        for file in {Path(text.rpartition(":")[0]) for text in _list_texts(recipe) if ".py:" in text}:
            if file.is_file():  # a function of a user, whoever calls it
                out[file.name], found = _read_facts(file)
                ours |= found
    for one in used:
        source = inspect.getsourcefile(one)
        if source is None or one.__module__.split(".")[0] in ("builtins", "torch"):
            continue
        if one.__module__.startswith("shuhari."):
            ours.add(one.__module__)
            continue
        name = Path(source).name if one.__module__.startswith(registry.USERS) else one.__module__
        out[name], found = _read_facts(Path(source))
        ours |= found
    out |= {name: _digest_of(name) for name in _follow_imports(ours) - list_core()}
    return dict(sorted(out.items()))


@cache
def list_common() -> frozenset[str]:
    """The modules that the recipes of `baselines/` use too, which are no method's own. What cannot be made here, for
    want of a library, counts as none of them."""
    found: set[str] = set()
    for name in list_names():
        if name.startswith("baselines/"):
            with suppress(RecipeError):
                found |= set(digest_modules([load(name)]))
    return frozenset(found)


def find_changed(stored: Mapping[str, str], used: Mapping[str, str]) -> str:
    """Which of a result's modules has changed; "" where none has. used: those of its claim now;
    one of shuhari that is used no longer counts as it is on disk."""
    now = ((name, used.get(name) or (_digest_of(name) if _find_file(name) else "")) for name in stored)
    return next((f"module {name!r} has changed" for name, digest in now if digest != stored[name]), "")


def is_older(hashes: Mapping[str, Any]) -> bool:
    """Whether the core, or a module that a result shares with others, has changed since it was measured or proved."""
    return bool(hashes["core"] != digest_core() or find_changed(hashes.get("shared", {}), {}))


def _list_classes(recipe: Recipe) -> set[Any]:
    """The classes of a recipe's components and worlds, and the functions that components hold."""
    from shuhari.config.build import build_stages, make_component
    from shuhari.kernel import state

    used: list[Any] = [make_component("study", recipe.tree["study"])] if "study" in recipe.tree else []
    for stage in build_stages(recipe.stages):
        used += [part for _, part in state.walk(stage.list_memories())]
    functions = {
        f
        for part in used
        for f in getattr(part, "__dict__", {}).values()
        if inspect.isfunction(f)
    }
    worlds = {
        name
        for text in _list_texts(recipe)
        for name in _WORLD.findall(text)
    }
    known = worlds and set(registry.names("world"))
    return {*functions, *map(type, used), *(registry.find("world", name) for name in worlds & known)}


def _list_texts(recipe: Recipe) -> list[str]:
    found = [
        one
        for _, value in walk_leaves(recipe.tree)
        for one in (value if isinstance(value, list) else [value])
    ]
    return [one for one in found if isinstance(one, str)]


def _follow_imports(roots: Iterable[str]) -> set[str]:
    """The modules, and all of shuhari that they import, and so on."""
    seen, todo = set[str](), list(roots)
    while todo:
        name = todo.pop()
        path = _find_file(name)
        if path is not None and name not in seen and name not in OUTSIDE and not f"{name}.".startswith(APART):
            seen.add(name)
            todo += _read_facts(path)[1]
    return seen


def _find_file(name: str) -> Path | None:
    """Of a module of shuhari; None where there is none."""
    first, *rest = name.split(".")
    place = ROOT.joinpath(*rest)
    files = [place.with_suffix(".py")] if rest else []
    return next((f for f in (*files, place / "__init__.py") if first == "shuhari" and f.is_file()), None)


_FACTS: dict[Path, tuple[tuple[int, int], tuple[str, frozenset[str]]]] = {}


def _read_facts(path: Path) -> tuple[str, frozenset[str]]:
    """(digest, modules of shuhari that it imports) of a file as it is on disk."""
    stat = path.stat()
    mark = stat.st_mtime_ns, stat.st_size
    if path not in _FACTS or _FACTS[path][0] != mark:
        tree = _parse(path)
        _FACTS[path] = mark, (_digest_tree(tree), frozenset(_list_imports(tree)))
    return _FACTS[path][1]


def _digest_of(name: str) -> str:
    path = _find_file(name)
    assert path is not None
    return _read_facts(path)[0]


def _list_imports(node: ast.AST) -> Iterator[str]:
    """The modules of shuhari that a tree imports, also within functions, but for what only a type checker reads."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.startswith("shuhari."))
    elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "shuhari":
        for a in node.names:
            whole = f"{node.module}.{a.name}"
            yield whole if _find_file(whole) else node.module
    elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from _list_imports(child)


def _digest_tree(tree: ast.Module) -> str:
    return hashlib.blake2b("\n".join(_walk_code(tree)).encode(), digest_size=6).hexdigest()


def _walk_code(node: Any) -> Iterator[str]:
    """A tree's code, line by line: without docstrings, and without what is empty, of which each version of Python
    has its own. A gap within a list is told, as it says whose the others are: in `def f(*, a, b=1)` that `a` has no
    default, in `{**a, "b": c}` that the first has no key."""
    if isinstance(node, ast.Constant):
        yield repr(node.value)
        return
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            value = value[1:]
        for one in value if isinstance(value, list) else [value]:
            if name == "body" and isinstance(node, ast.ClassDef) and find_text(one) is not None:
                continue  # the sentence under a setting
            nothing = isinstance(node, ast.JoinedStr) and isinstance(one, ast.Constant) and not one.value
            if one is None and isinstance(value, list):
                yield from (name, "-")  # no constant's or node's line
            elif one is not None and not nothing:
                yield name
                yield from _walk_code(one) if isinstance(one, ast.AST) else [repr(one)]
    yield "."


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
