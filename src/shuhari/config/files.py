"""The files of recipes: found by name or path, read, and followed to what they extend. No torch.

Left out: how one table is laid over another (`overlay`, `recipe`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path as File
from typing import Any

from shuhari.config.digests import compute_digest, explain_copy
from shuhari.config.library import BASELINES, BEDS, find_recipe, list_names, read_table
from shuhari.config.older import translate
from shuhari.config.overlay import RecipeError, Tree
from shuhari.data import nearest
from shuhari.kernel.plugins import PluginError
from shuhari.kernel.registry import find_module, hold, search_in
from shuhari.store.files import read_file

NAMED_BY_CONTENT = re.compile(r"file/dataset-[0-9a-f]{12}\.jsonl")

PLAIN = (BASELINES, BEDS, "pretrained", "reproduce")  # families of recipes that are no methods
NEEDS = "needs"  # in the folder of a run: copies of what it is made of, see `loop.outside`
MODULES = "modules"  # in that folder: copies of modules under their own names, so that they can be imported


def read_chain(reference: str) -> Iterator[tuple[str, Tree]]:
    """Yield (name, table) of a recipe and of what it extends, youngest first."""
    seen: dict[str, str] = {}
    placed = set[str]()
    here: File | None = None
    while reference:
        name, source = _find(reference, here)
        key = str(source)
        if key in seen:
            raise RecipeError("extends", f"{' -> '.join([*seen.values(), name])} goes round in a circle")
        seen[key] = name
        table = read_table(name, source)
        here = source.parent if isinstance(source, File) and source.suffix == ".toml" else None
        if here is not None:
            table = translate(table) if (here / "run.sqlite").exists() else table
            _anchor(table, here)
            _let_import(table, here, placed, _use_copies(table, here))
            _let_read(table, here)
            for key in ("on", "extends"):
                if isinstance(other := table.get(key), str) and other.endswith(".toml"):
                    table[key] = str(here / File(other).expanduser())
        yield name, table
        reference = table.get("extends", "")
        if not isinstance(reference, str):
            raise RecipeError(
                "extends", f"{reference!r} in {name}: expected a recipe's name, or a path ending in .toml"
            )


def find_file(reference: str | File) -> File | None:
    """Return the file of a recipe; None if it has no file of its own. RecipeError if there is no such recipe."""
    found = _find(str(reference), None)[1]
    return found if isinstance(found, File) else None


def find_as_method(reference: str) -> str:
    """Return the method of the same last name that extends a baseline (`rlvr/dapo` for `baselines/dapo`), or that a
    name without a family means (`dapo`, `clip-cov`); the reference itself if there is none. RecipeError if several
    methods have that name."""
    family, _, name = reference.partition("/")
    if not name and not File(reference).suffix and not File(reference).exists():
        last = family.lower().replace("-", "_")
        named = [one for one in list_names() if one.rpartition("/")[2] == last and one.partition("/")[0] not in PLAIN]
        if len(named) > 1:
            raise RecipeError("", f"{reference!r} names several methods: {' and '.join(named)}: expected one of them")
        return named[0] if named else reference
    if family != BASELINES or not name:
        return reference
    same = [other for other in list_names() if other.rpartition("/")[2] == name and other != reference]
    for other in same:
        if any(link == reference for link, _ in list(read_chain(other))[1:]):
            return other
    return reference


def _find(reference: str, here: File | None) -> tuple[str, Traversable]:
    path = (here or File()) / File(reference).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        path = path / "recipe.toml"
    elif path.is_dir() and (path / "run.sqlite").exists():
        message = "a run whose recipe.toml is missing, or no file"
        raise RecipeError("", f"{path} is {message}: `shuhari doctor {path}` lists the damage, and can repair it")
    if path.suffix == ".toml":
        if not path.is_file():
            near = nearest(path.stem, [name.removesuffix(".toml") for name in _list_beside(path)])
            meant = f"; {near[:-2]}.toml'?" if near.startswith("did you mean") else ""
            raise RecipeError("", f"no recipe file {str(path)!r} (looked in {File.cwd()}){meant}")
        return path.stem, path.resolve()
    try:
        found = find_recipe(reference)
    except PluginError as error:
        raise RecipeError("", str(error)) from None
    if found is None:
        near = nearest(reference, [*list_names(), *_list_beside(path)])
        message = near if near.startswith("did you mean") else "`shuhari methods` lists those that there are"
        message = "give one name; of methods, repeat `--with`" if "," in reference else message
        raise RecipeError("", f"no recipe {reference!r}; {message}")
    return reference, found


def _list_beside(path: File) -> list[str]:
    """Return the recipe files of a folder, for an error to name."""
    return [f.name for f in path.parent.glob("*.toml")] if path.parent.is_dir() else []


def _anchor(table: Tree, folder: File) -> None:
    """Make paths that a recipe names, to code (`file.py:Class`), data (`file/<path>`, `path`) or a model's directory
    (`path`), absolute if they exist beside the recipe, so that they are found from any folder. Others are searched in
    the current folder. A run's own recipe keeps its names of data: the run may have been moved."""
    run = (folder / "run.sqlite").exists()
    for holder, key, text in list(_walk_texts(table)):
        code = key in ("use", "name") and ".py:" in text
        data = not run and (key == "path" or (key == "name" and text.startswith("file/")))
        place = _find_beside(_find_path(text), folder) if code or data else None
        if place is not None and (code or place != File(_find_path(text)).resolve()):
            holder[key] = _put_path(text, place)


def _find_beside(file: str, folder: File) -> File | None:
    """Return the absolute path of a relative one in a folder; None if it does not exist."""
    try:
        there = bool(file) and not File(file).is_absolute() and (folder / file).exists()
    except (OSError, ValueError):  # too long for a name, or no text for one
        return None
    return (folder / file).resolve() if there else None


def _split_world(text: str) -> tuple[str, str]:
    """Return (prefix, `file.py:Class`) of a setting that names an environment of a file, as `gym/envs.py:Maze`; ("",
    the text) for any other."""
    for prefix in ("gym/world/", "world/", "gym/") if ".py:" in text else ():
        if text.startswith(prefix) and not File(text.rpartition(":")[0]).is_file():
            return prefix, text.removeprefix(prefix)
    return "", text


def find_named(text: str) -> File | None:
    """Return the file of data, the file of code or the directory of a model that a setting names; None if it names
    none."""
    path = File(_find_path(text))
    if ".py:" not in text:
        named = "/" in text or path.suffix
        data = text.startswith("file/")  # a folder of data, a file for each split
        if not named or (path.is_dir() and not data and not (path / "config.json").is_file()):
            return None
    try:
        return path if path.is_file() or path.is_dir() else None
    except (OSError, ValueError):  # too long for a name, or no text for one
        return None


def _use_copies(table: Tree, run: File) -> set[str]:
    """Replace, in the recipe of a run, files that do not exist (any more, or on this machine) by the copies that the
    run keeps. A module keeps its name: returned are the modules to be found among the copies, as they are not
    elsewhere."""
    kept, modules = _read_kept(run), set[str]()
    for holder, key, text in list(_walk_texts(table)):
        copy, digest = kept.get(text, ("", ""))
        module = split_module(text) if not copy or File(copy).suffix == ".py" else ""
        if not copy or (_is_there(module) if module else find_named(text) is not None):
            continue
        own = run.resolve() / NEEDS
        place = own / MODULES / f"{module.replace('.', '/')}.py" if module else own / copy
        if place.exists():
            if why := explain_copy(place):
                raise RecipeError("", f"{text!r} is not there, and its copy {place} is not what was kept ({why})")
            if compute_digest(place) != digest:
                message = f"{text!r} is not there, and its copy {place} is not what was kept (its content has changed)"
                raise RecipeError("", f"{message}: restore {text!r} or the copy")
            if module:
                modules.add(module)
            else:
                holder[key] = _put_path(text, place)
    return modules


def _read_kept(run: File) -> dict[str, tuple[str, str]]:
    """Return what a run is made of, as its recipe names it -> (file name of the copy in `needs/`, digest)."""
    try:
        kept = json.loads(read_file(run / NEEDS / f"{NEEDS}.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = {k: e for k, e in kept.items() if isinstance(e, dict)} if isinstance(kept, dict) else {}
    found = {name: (entry.get("copy"), entry.get("digest")) for name, entry in entries.items()}
    return {n: (c, str(d)) for n, (c, d) in found.items() if isinstance(c, str) and File(c).name == c != ".."}


def find_copy(run: File, name: str) -> File | None:
    """Return the copy that a run keeps of a file or directory, by the text that names it in its recipe; None if it
    keeps none, or if what is there may not be read as a copy."""
    copy, _ = _read_kept(run).get(name, ("", ""))
    if not copy and File(name).parent.name == NEEDS:  # of a run that was gone on with from its copy, and then moved
        copy = File(name).name
    place = run.resolve() / NEEDS / copy
    return place if copy and place.exists() and not explain_copy(place) else None


def _find_path(text: str) -> str:
    """Return the path of the file that a setting names."""
    return _split_world(text)[1].rpartition(":")[0] if ".py:" in text else text.removeprefix("file/")


def _put_path(text: str, place: File) -> str:
    """Return a setting that names a file (`a.py:score`, `file/a.toml`) with the path `place` instead of that file's."""
    attribute = f":{text.rpartition(':')[2]}" if ".py:" in text else ""
    return f"{'file/' if text.startswith('file/') else _split_world(text)[0]}{place}{attribute}"


def name_originals(here: Any, there: Any, run: File) -> tuple[Any, dict[str, str]]:
    """Return (the tree `here`, with copies of files renamed to the originals as in the tree `there` of the run, copy ->
    original), so that a recipe read from a run's folder can be compared with the run's own."""
    kept, originals = _read_kept(run), dict[str, str]()

    def name(new: Any, old: Any) -> Any:
        if isinstance(new, dict) and isinstance(old, dict):
            return {k: name(v, old.get(k)) for k, v in new.items()}
        if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
            return [name(*pair) for pair in zip(new, old, strict=True)]
        if isinstance(new, str) and isinstance(old, str) and new != old and old in kept:
            attribute = f":{old.rpartition(':')[2]}" if ".py:" in old else ""
            if new.endswith(f"/{NEEDS}/{kept[old][0]}{attribute}"):  # of this run, or of the study that it belongs to
                originals[new] = old
                return old
        return new

    return name(here, there), originals


def split_module(text: str) -> str:
    """Return the module in `gym/module:id` and `world/module.Class`; "" for a text without a module, such as a file's
    name."""
    if ".py:" in text or not text.startswith(("gym/", "world/")):
        return ""
    inner = text.removeprefix("gym/").removeprefix("world/")
    world = text.removeprefix("gym/").startswith("world/")
    module = inner.rpartition(".")[0] if world else inner.partition(":")[0] if ":" in inner else ""
    return module if all(map(str.isidentifier, module.split("."))) else ""


def _is_there(module: str) -> bool:
    """Whether a module will be found, also in the current folder, which is searched once it is loaded."""
    return find_module(module, [str(File.cwd())]) is not None


def _let_import(table: Tree, folder: File, placed: set[str], copies: Collection[str]) -> None:
    """Let the module of a task (`gym/module:id`) be found beside the recipe, or among the copies of a run, once it is
    loaded: nothing is imported here. `placed`: the modules that a younger recipe has named already.

    Gymnasium imports it by that name whenever an environment is made: later, by whoever needs one, and in workers. So
    its folder is recorded by its name (`registry.search_in`); a name that contains the folder would be another task,
    with other draws, on each machine."""
    for _, key, text in _walk_texts(table):
        module = split_module(text) if key == "name" else ""
        if module and module not in placed:
            placed.add(module)
            path = module.replace(".", "/")
            there = (folder / f"{path}.py").is_file() or (folder / path / "__init__.py").is_file()
            found = [folder.resolve()] if there else []
            search_in(module, [*found, *([(folder / NEEDS / MODULES).resolve()] if module in copies else [])])


def _let_read(table: Tree, folder: File) -> None:
    """Let a data set that is named by its content be read from beside the recipe: from a run's folder, wherever that is
    moved."""
    for _, key, text in _walk_texts(table):
        if key == "name" and NAMED_BY_CONTENT.fullmatch(text) and (folder / text[5:]).is_file():
            hold(text[5:], (folder / text[5:]).resolve())


def _walk_texts(table: Tree) -> Iterator[tuple[Tree, str, str]]:
    """Yield (the table that holds it, key, text) of every text of a table and of the tables in it."""
    for key, value in table.items():
        if isinstance(value, str):
            yield table, key, value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _walk_texts(inner)
