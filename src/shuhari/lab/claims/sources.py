"""Digests of the source that a result was measured with: of the core, and of every other module that its runs used.

The core is everything that the training loop imports. The other modules are those of the classes and functions that the
recipes name, and all of shuhari that these import. Neither depends on which recipes exist, so a new baseline or bed
invalidates nothing. Comments, docstrings, layout and the texts of errors do not count. Left out: what a user's module
imports outside shuhari.
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
LOOP = "shuhari.loop.study"  # the module from which training and evaluation start
# not part of a run: what finds recipes (their resolved text is hashed), words errors, connects to Ray, judges, shows or
# times runs
OUTSIDE = ("shuhari", "shuhari.config.library", "shuhari.config.named", "shuhari.config.words",
           "shuhari.distributed.ray_world", "shuhari.kernel.plugins", "shuhari.kernel.profile")  # fmt: skip
APART = ("shuhari.lab.", "shuhari.desk.", "shuhari.testing")
_WORLD = re.compile(r"\bworld/([\w.-]+)")


@cache
def digest_core() -> str:
    """Compute a digest of the core's source, as of the first call in this process."""
    listing = "".join(f"{name} {_digest_of(name)}\n" for name in sorted(list_core()))
    return hashlib.blake2b(listing.encode(), digest_size=6).hexdigest()


@cache
def list_core() -> frozenset[str]:
    """Return the modules of the core."""
    return frozenset(_follow_imports([LOOP]))


def digest_modules(recipes: Iterable[Recipe], others: Iterable[Any] = ()) -> dict[str, str]:
    """Return module -> digest, for every module outside the core that the components of the recipes' stages (or
    `others`) use. Modules of shuhari by name, files of users by file name."""
    used: set[Any] = set(map(type, others))
    ours, out = set[str](), dict[str, str]()
    for recipe in recipes:
        used |= _list_classes(recipe)
        for file in {Path(text.rpartition(":")[0]) for text in _list_texts(recipe) if ".py:" in text}:
            if file.is_file():  # a function of a user
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
    """Return the modules that recipes in `baselines/` also use, which are no method's own. A baseline that cannot be
    built here, for want of a package, contributes none."""
    found: set[str] = set()
    for name in list_names():
        if name.startswith("baselines/"):
            with suppress(RecipeError):
                found |= set(digest_modules([load(name)]))
    return frozenset(found)


def find_changed(stored: Mapping[str, str], used: Mapping[str, str]) -> str:
    """Return which of a result's stored modules has changed, as a message; "" if none. used: the modules of the claim
    now; a module of shuhari that is no longer used is compared as it is on disk."""
    now = ((name, used.get(name) or (_digest_of(name) if _find_file(name) else "")) for name in stored)
    return next((f"module {name!r} has changed" for name, digest in now if digest != stored[name]), "")


def is_older(hashes: Mapping[str, Any]) -> bool:
    """Whether the core, or a module shared with others, has changed since a result was measured or proved."""
    return bool(hashes["core"] != digest_core() or find_changed(hashes.get("shared", {}), {}))


def _list_classes(recipe: Recipe) -> set[Any]:
    """Return the classes of a recipe's components and worlds, and the functions that components hold."""
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
    """Return the modules and, recursively, everything of shuhari that they import."""
    seen, todo = set[str](), list(roots)
    while todo:
        name = todo.pop()
        path = _find_file(name)
        if path is not None and name not in seen and name not in OUTSIDE and not f"{name}.".startswith(APART):
            seen.add(name)
            todo += _read_facts(path)[1]
    return seen


def _find_file(name: str) -> Path | None:
    """Return the file of a module of shuhari; None if there is none."""
    first, *rest = name.split(".")
    place = ROOT.joinpath(*rest)
    files = [place.with_suffix(".py")] if rest else []
    return next((f for f in (*files, place / "__init__.py") if first == "shuhari" and f.is_file()), None)


_FACTS: dict[Path, tuple[tuple[int, int], tuple[str, frozenset[str]]]] = {}


def _read_facts(path: Path) -> tuple[str, frozenset[str]]:
    """Return (digest, modules of shuhari that it imports) of a file on disk, cached by time and size."""
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
    """Yield the modules of shuhari that a tree imports, also inside functions, but not for type checking only."""
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


def _walk_code(node: Any, raised: bool = False) -> Iterator[str]:
    """Yield a tree's code line by line, without docstrings, without texts in a `raise` (`raised`), which change no
    number, and without empty fields, which differ between versions of Python. A None within a list is kept, because it
    decides what its neighbours belong to: in `def f(*, a, b=1)` that `a` has no default, in `{**a, "b": c}` that the
    first has no key."""
    raised = raised or isinstance(node, ast.Raise)
    if raised and (isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))):
        yield "a text"
        return
    if isinstance(node, ast.Constant):
        yield repr(node.value)
        return
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            value = value[1:]
        for one in value if isinstance(value, list) else [value]:
            if name == "body" and isinstance(node, ast.ClassDef) and find_text(one) is not None:
                continue  # the description under a setting
            nothing = isinstance(node, ast.JoinedStr) and isinstance(one, ast.Constant) and not one.value
            if one is None and isinstance(value, list):
                yield from (name, "-")  # differs from the line of any constant or node
            elif one is not None and not nothing:
                yield name
                yield from _walk_code(one, raised) if isinstance(one, ast.AST) else [repr(one)]
    yield "."


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
