"""Names for components. A component is a dataclass: its fields are its configuration, its documentation and its
registry entry at once. User code registers the same way, or is named by a dotted path or `file.py:Class`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from shuhari.data import nearest

C = TypeVar("C", bound=type)

# kind -> the package whose modules hold our own
KINDS = {
    "task": "tasks",
    "reward": "rewards",
    "curriculum": "curricula",
    "rollout": "rollouts",
    "engine": "engines",
    "model": "models",
    "buffer": "buffers",
    "transform": "transforms",
    "objective": "objectives",
    "optimiser": "optimisers",
    "learner": "learners",
    "follow": "models",
    "study": "studies",
}
_ENTRIES: dict[tuple[str, str], type] = {}


def register(kind: str, name: str) -> Callable[[C], C]:
    """Class decorator: make a dataclass known as `name` among the components of a port (`kind`, see KINDS)."""
    if kind not in KINDS:
        raise KeyError(f"no kind of component {kind!r}; {nearest(kind, KINDS)}")

    def enter(cls: C) -> C:
        if not is_dataclass(cls):
            raise TypeError(f"{kind} {name!r}: {cls.__qualname__} is not a dataclass; its fields are its configuration")
        known = _ENTRIES.get((kind, name))
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"{kind} {name!r} is taken by {known.__module__}.{known.__qualname__}")
        _ENTRIES[kind, name] = cls
        return cls

    return enter


def find(kind: str, name: str) -> type:
    """The component called `name`, a dotted path (`package.module.Class`) or `file.py:Class`; LookupError otherwise."""
    _load(kind)
    found = _ENTRIES.get((kind, name))
    if found is not None:
        return found
    path, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not path or not attribute:
        raise LookupError(f"no {kind} {name!r}; {nearest(name, names(kind))}")
    module = _file(path) if path.endswith(".py") else _module(kind, name, path)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise LookupError(f"{kind} {name!r}: {path} has no {attribute!r}; {nearest(attribute, vars(module))}") from None


def names(kind: str) -> list[str]:
    """The registered names of a kind, sorted."""
    _load(kind)
    return sorted(n for k, n in _ENTRIES if k == kind)


def entries() -> dict[tuple[str, str], type]:
    """Every registered component: (kind, name) -> class."""
    for kind in KINDS:
        _load(kind)
    return dict(_ENTRIES)


def _module(kind: str, name: str, path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and path.startswith(error.name):
            raise LookupError(f"no {kind} {name!r}; {nearest(name, names(kind))}") from None
        raise


@cache
def _file(path: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        raise LookupError(f"no file {path!r} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(f"shuhari_user_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _load(kind: str) -> None:
    """Import the modules of the kind's package: registering is a side effect of that."""
    if kind not in KINDS:
        raise KeyError(f"no kind of component {kind!r}; {nearest(kind, KINDS)}")
    package = importlib.import_module(f"shuhari.{KINDS[kind]}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
