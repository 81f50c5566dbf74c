"""The registry of components. A component is a dataclass: its fields are its configuration, its documentation and its
registry entry at once. User code registers the same way, or is named by a dotted path or `file.py:Class`; installed
packages add theirs by entry points (`plugins`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shuhari.data import nearest, with_article
from shuhari.kernel import plugins
from shuhari.kernel.formerly import FORMERLY
from shuhari.kernel.kinds import KINDS as KINDS

C = TypeVar("C", bound=type)

_ENTRIES: dict[tuple[str, str], type] = {}
_PRESETS: dict[tuple[str, str], dict[str, Any]] = {}
_HELD: dict[str, Any] = {}  # name -> what a program handed over, see `hold`
_LOADED: dict[Path, tuple[bytes, ModuleType]] = {}  # a user's file -> its content as it was loaded, and its module
_BESIDE: dict[str, tuple[Path, ...]] = {}  # first name of a module -> folders where it may lie, see `search_in`
HEARS: list[Callable[[str], None]] = []  # called with a file of a user's code as it is about to be run
ROOT = Path(__file__).parents[1]
USERS = "shuhari_user_"  # begins the name of the module that a user's file is loaded as
GIVEN = "given/"  # begins the name of an object that nothing imports: it is found in the process that holds it


def register(kind: str, name: str, **preset: Any) -> Callable[[C], C]:
    """Register a dataclass as the component `name` of a kind, such as `objective`, so that recipes may name it.

    A class decorator. `kind`: one of KINDS. `preset`: fields that have another default under this name, if one class
    has several names.
    """
    if kind not in KINDS:
        raise KeyError(f"no kind of component {kind!r}; {nearest(kind, KINDS)}")

    def enter(cls: C) -> C:
        if not is_dataclass(cls):
            raise TypeError(f"{kind} {name!r}: {cls.__qualname__} is not a dataclass; its fields are its configuration")
        known = _ENTRIES.get((kind, name))
        if known is not None and _origin(known) != _origin(cls) and not _are_copies(known, cls):
            raise ValueError(f"{kind} {name!r} is taken by {known.__module__}.{known.__qualname__}")
        _ENTRIES[kind, name], _PRESETS[kind, name] = cls, preset
        return cls

    return enter


def _origin(cls: type) -> tuple[str, str]:
    """Return the file that a class is written in (tests import `mine`, a recipe names `mine.py:Class`), and its name
    there."""
    module = sys.modules.get(cls.__module__)
    return str(getattr(module, "__file__", None) or cls.__module__), cls.__qualname__


def _are_copies(one: type, other: type) -> bool:
    """Whether two classes come from files of one name in two folders: the one loaded last replaces the other."""
    users = all(cls.__module__.startswith(USERS) for cls in (one, other))
    (a, name), (b, also) = _origin(one), _origin(other)
    return users and name == also and Path(a).name == Path(b).name


def preset(kind: str, name: str) -> dict[str, Any]:
    """Return the fields that have another default under this name."""
    return _PRESETS.get((kind, name), {})


def find(kind: str, name: str) -> type:
    """Return the component called `name`, ours or of an installed package, a dotted path (`package.module.Class`) or
    `file.py:Class`; LookupError otherwise."""
    _load(kind)
    found = _ENTRIES.get((kind, name))
    if found is not None:
        return found
    if name in plugins.find_offered(kind):
        return _entered(kind, name)
    if (now := FORMERLY.get(kind, {}).get(name)) is not None:
        raise LookupError(f"the {kind} {name!r} is called {now!r} now: write that")
    return locate(kind, name, names(kind))


def locate(what: str, name: str, known: Iterable[str] = ()) -> Any:
    """Import the object at a dotted path (`package.module.name`) or at `file.py:name`. Raises LookupError with the
    nearest of `known`. `what`: its kind, for the error."""
    if (thing := held(name)) is not None:
        return thing
    if name.startswith(GIVEN):
        shown, ways = name.removeprefix(GIVEN), "module.name or file.py:name"
        raise LookupError(
            f"the {what} {shown!r} was handed to shuhari.train as an object, and nothing says where to import it from: "
            f"call shuhari.train with it as before, or begin another run with one that can be imported ({ways})"
        )
    path, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not path or not attribute:
        raise LookupError(f"no {what} {name!r}; {nearest(name, known)} (one of your own: file.py:name)")
    module = _file(path) if path.endswith(".py") else _module(what, name, path, known)
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise LookupError(f"{what} {name!r}: {path} has no {attribute!r}; {nearest(attribute, public)}") from None


def hold(name: str, thing: Any) -> None:
    """Bind a name that a recipe records to an object of this process, ahead of any import: a function, a class, or the
    path of a file that is named by its content. None: unbind it."""
    _HELD[name] = thing


def held(name: str) -> Any:
    """Return what this process holds under a name; None if nothing."""
    return _HELD.get(name)


def search_in(module: str, folders: Iterable[Path]) -> None:
    """Search these absolute folders too when a module that a recipe names is loaded, and only then. They replace those
    of earlier calls."""
    first, found = module.partition(".")[0], tuple(folders)
    _BESIDE.pop(first, None)
    if found:
        _BESIDE[first] = found


def list_beside() -> dict[str, list[str]]:
    """Return the folders of `search_in`, as plain data."""
    return {
        first: [str(f) for f in folders]
        for first, folders in _BESIDE.items()
    }


@contextmanager
def searching(module: str) -> Iterator[None]:
    """Let the import of a module that a recipe names also search the current folder and those of `search_in`; behind
    all others, so that they hide none of them."""
    folders = [str(Path(f)) for f in (Path.cwd(), *_BESIDE.get(module.partition(".")[0], ()))]
    if module not in sys.modules and (spec := find_module(module, folders)) and spec.origin:
        _tell(spec.origin)
    with _added(folders):
        yield


@contextmanager
def _added(folders: list[str]) -> Iterator[None]:
    """Add these folders to the import path while inside."""
    sys.path += folders
    try:
        yield
    finally:  # these very entries: another thread may have added the same
        sys.path[:] = [
            p
            for p in sys.path
            if not any(p is folder for folder in folders)
        ]


def find_module(name: str, folders: Iterable[str] = ()) -> ModuleSpec | None:
    """Return what an import of a module would find, also in `folders`; None if nothing. Nothing is imported, not even
    the packages that a dotted name begins with."""
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError, AttributeError):  # it is there, and made by a program
        spec = None
    spec = spec or PathFinder.find_spec(first, [*folders])
    for part in rest:
        spec = spec and PathFinder.find_spec(part, [*(spec.submodule_search_locations or ())])
    return spec


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package, which has a version; or does not exist."""
    places = (sysconfig.get_paths().get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not Path(file).is_file() or any(Path(file).resolve().is_relative_to(p) for p in places if p)


def _tell(file: str) -> None:
    if HEARS and not is_installed(file):
        for hear in HEARS:
            hear(file)


def names(kind: str) -> list[str]:
    """Return the names of a kind that are registered or that installed packages offer, sorted; nothing is imported."""
    return sorted({*_read_classes(kind), *(n for k, n in _ENTRIES if k == kind), *plugins.find_offered(kind)})


def other(kind: str, cls: type) -> str:
    """Return "is registered as ..." if a class is registered under other kinds and not under this one; else ""."""
    here = _origin(cls)
    kinds = {k for (k, _), known in _ENTRIES.items() if known.__qualname__ == here[1] and _origin(known) == here}
    if not kinds or kind in kinds:
        return ""
    return f"is registered as {' and '.join(sorted(kinds))}: expected {with_article(kind)}"


def declared(kind: str, name: str, attribute: str) -> Any:
    """Return the value of a class attribute of the component `name`; None if it lacks it, or if the name is not
    registered. Our own are read from their source and not imported: recipes are resolved without torch."""
    known = _ENTRIES.get((kind, name)) or _read_classes(kind).get(name)
    try:
        known = known or find(kind, name)
    except LookupError:
        return None
    if isinstance(known, type):
        return getattr(known, attribute, None)
    for statement in known.body:
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        targets = statement.targets if isinstance(statement, ast.Assign) else [target]
        if any(isinstance(t, ast.Name) and t.id == attribute for t in targets) and statement.value is not None:  # type: ignore[attr-defined]
            return ast.literal_eval(statement.value)  # type: ignore[attr-defined]
    return None


def list_declaring(kind: str, attribute: str) -> dict[str, Any]:
    """Return name -> value of a class attribute, for the components of a kind that have it: ours, and those registered
    here."""
    here = {*_read_classes(kind), *(name for of, name in _ENTRIES if of == kind)}
    return {name: value for name in sorted(here) if (value := declared(kind, name, attribute)) is not None}


@cache
def _read_classes(kind: str) -> dict[str, ast.ClassDef]:
    """Return name -> the class of each of our components of a kind, as a syntax tree."""
    if kind not in KINDS:
        raise KeyError(f"no kind of component {kind!r}; {nearest(kind, KINDS)}")
    package = ROOT / KINDS[kind].replace(".", "/")
    found: dict[str, ast.ClassDef] = {}
    for file in [*package.rglob("*.py"), *_list_in_methods(kind)]:
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if f'@register("{kind}", ' in text else ():
            if isinstance(node, ast.ClassDef):
                written = " ".join(map(ast.unparse, node.decorator_list))
                found |= dict.fromkeys(re.findall(rf"register\('{kind}', '([^']+)'", written), node)
    return found


def entries() -> dict[tuple[str, str], type]:
    """Return every registered component: (kind, name) -> class. From installed packages, only those in use."""
    for kind in KINDS:
        _load(kind)
    return dict(_ENTRIES)


def known_as(cls: Any) -> list[tuple[str, str]]:
    """Return the (kind, name)s of a class; none if it is not registered."""
    return [of for of, known in _ENTRIES.items() if known is cls]


def _entered(kind: str, name: str) -> type:
    """Register a component that an installed package offers, and return it."""
    try:
        return register(kind, name)(plugins.component(kind, name))
    except (TypeError, AttributeError) as error:  # not a dataclass, or no class at all
        raise plugins.PluginError(f"{kind} {name!r} of an installed package: {error}") from error


def _module(what: str, name: str, path: str, known: Iterable[str]) -> Any:
    try:
        with searching(path):
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            missing = f" (there is no module {error.name!r})" if "." in path or ":" in name else ""
            raise LookupError(f"no {what} {name!r}{missing}; {nearest(name, known)}") from None
        raise


def _file(path: str) -> Any:
    """Return the module of a file as it is now: if it was edited since it was loaded here, as in a notebook, it is
    loaded anew; one that a program has imported itself stays as it is there."""
    file = Path(path).resolve()
    if not file.is_file():
        near = nearest(file.name, (f.name for f in file.parent.glob("*.py"))) if file.parent.is_dir() else ""
        places = f"looked in {Path.cwd()}; of a recipe file beside that first"
        raise LookupError(f"no file {path!r} ({places}); {near}".rstrip("; "))
    text = file.read_bytes()
    if file in _LOADED and _LOADED[file][0] == text:
        return _LOADED[file][1]
    if (known := _find_imported(file)) is not None:
        return known
    name = f"{USERS}{file.stem}"
    if name in sys.modules:  # as it was before, or of a file of that name in another folder; its classes still name it
        name += f"_{sum(n.startswith(name) for n in sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _tell(str(file))
    sys.modules[spec.name], _LOADED[file], before = module, (text, module), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # which knows a file by size and second alone
    try:
        with _added([str(file.parent)]):  # meanwhile its neighbours are found, behind all else
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name], _LOADED[file]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


def _find_imported(file: Path) -> Any:
    """Return the module that a program has imported from a file, so that its objects are the ones that a recipe finds;
    None for a script, which is run anew, and for one that is being imported."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and vars(module).get("__file__") == str(file):
            whole = not (module.__spec__ is not None and vars(module.__spec__).get("_initializing"))
            if whole and name not in ("__main__", "__mp_main__") and not name.startswith(USERS):
                return module
    return None


@cache
def _load(kind: str) -> None:
    """Import the modules of the kind's package, which registers their components."""
    if kind not in KINDS:
        raise KeyError(f"no kind of component {kind!r}; {nearest(kind, KINDS)}")
    if KINDS[kind] != "methods":
        package = importlib.import_module(f"shuhari.{KINDS[kind]}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for file in _list_in_methods(kind):
        importlib.import_module(".".join(("shuhari", *file.relative_to(ROOT).with_suffix("").parts)))


def _list_in_methods(kind: str) -> list[Path]:
    """Return the modules of methods that register a component of a kind, by their text: the others are not imported."""
    files = sorted((ROOT / "methods").glob("*/*/*.py"))
    return [file for file in files if f'@register("{kind}", ' in file.read_text(encoding="utf-8")]
