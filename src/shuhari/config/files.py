"""The files of recipes: found by name or path, read, and followed to what they extend. No torch.

Left out: how one table lies over another (`overlay`, `recipe`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path as File
from typing import Any

from shuhari.config.digests import compute_digest
from shuhari.config.library import find_recipe, list_names, read_table
from shuhari.config.overlay import RecipeError, Tree
from shuhari.data import nearest
from shuhari.plugins import PluginError
from shuhari.registry import hold, search_in
from shuhari.store.files import read_file

NAMED_BY_CONTENT = re.compile(r"file/dataset-[0-9a-f]{12}\.jsonl")

NEEDS = "needs"  # in the folder of a run: copies of what it is made of, see `loop.outside`


def read_chain(reference: str) -> Iterator[tuple[str, Tree]]:
    """(name, table) of a recipe and of what it extends, youngest first."""
    seen: dict[str, str] = {}
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
            _anchor(table, here)
            _use_copies(table, here)
            _let_import(table, here)
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
    """The file of a recipe; None where it lies in none of its own. RecipeError where there is no such recipe."""
    found = _find(str(reference), None)[1]
    return found if isinstance(found, File) else None


def _find(reference: str, here: File | None) -> tuple[str, Traversable]:
    path = (here or File()) / File(reference).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        path = path / "recipe.toml"
    elif path.is_dir() and (path / "run.sqlite").exists():
        message = "a run whose recipe.toml is missing, or no file"
        raise RecipeError("", f"{path} is {message}: `shuhari doctor {path}` says what is whole, and can repair it")
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
        raise RecipeError("", f"no recipe {reference!r}; {message}")
    return reference, found


def _list_beside(path: File) -> list[str]:
    """The recipe files of a folder, for an error to name."""
    return [f.name for f in path.parent.glob("*.toml")] if path.parent.is_dir() else []


def _anchor(table: Tree, folder: File) -> None:
    """Make `file.py:Class` absolute where the file lies beside the recipe, so that it is found from any folder."""
    for holder, key, text in list(_walk_texts(table)):
        if key in ("use", "name") and ".py:" in text:
            file, _, attribute = text.rpartition(":")
            if (folder / file).is_file():
                holder[key] = f"{(folder / file).resolve()}:{attribute}"


def _split_world(text: str) -> tuple[str, str]:
    """(what stands before, `file.py:Class`) of a setting that names an environment of a file, as `gym/envs.py:Maze`;
    ("", the text) of any other."""
    for prefix in ("gym/world/", "world/", "gym/") if ".py:" in text else ():
        if text.startswith(prefix) and not File(text.rpartition(":")[0]).is_file():
            return prefix, text.removeprefix(prefix)
    return "", text


def find_named(text: str) -> File | None:
    """The file of data, the file of code or the directory of a model that a setting names; None where it names none."""
    if ".py:" in text:
        path = File(_split_world(text)[1].rpartition(":")[0])
    else:
        path = File(text.removeprefix("file/"))
        named = "/" in text or path.suffix
        if not named or (path.is_dir() and not (path / "config.json").is_file()):
            return None
    try:
        return path if path.is_file() or path.is_dir() else None
    except (OSError, ValueError):  # too long for a name, or no text for one
        return None


def _use_copies(table: Tree, run: File) -> None:
    """In the recipe of a run, name the copies that it keeps of files that are not there (any more, or on this
    machine)."""
    try:
        kept = json.loads(read_file(run / NEEDS / f"{NEEDS}.json"))
    except (OSError, ValueError, RecursionError):
        return
    for holder, key, text in list(_walk_texts(table)):
        entry = kept.get(text) if isinstance(kept, dict) else None
        copy, digest = (entry.get(k) if isinstance(entry, dict) else None for k in ("copy", "digest"))
        if not isinstance(copy, str) or File(copy).name != copy or find_named(text) is not None:
            continue
        if (place := (run / NEEDS / copy).resolve()).exists():
            if compute_digest(place) != digest:
                message = f"{text!r} is not there, and its copy {place} is not what was kept (its content has changed)"
                raise RecipeError("", f"{message}: put back the one or the other")
            attribute = f":{text.rpartition(':')[2]}" if ".py:" in text else ""
            holder[key] = f"{'file/' if text.startswith('file/') else _split_world(text)[0]}{place}{attribute}"


def _let_import(table: Tree, folder: File) -> None:
    """Let the module of a task `gym/module:id` be imported from beside the recipe.

    Gymnasium imports it by that name whenever an environment is made: later, by whoever needs one, and in workers,
    which are given this process's `sys.path`. So no context around a piece of work would do, and a name with the folder
    in it would be another task, with other draws, on each machine."""
    for _, key, text in _walk_texts(table):
        if key == "name" and text.startswith("gym/") and ":" in text:
            module = text[4:].partition(":")[0]
            if (folder / f"{module.replace('.', '/')}.py").is_file():
                search_in(folder.resolve())


def _let_read(table: Tree, folder: File) -> None:
    """Let a data set that is named by its content be read from beside the recipe: from a run's folder, wherever that is
    moved."""
    for _, key, text in _walk_texts(table):
        if key == "name" and NAMED_BY_CONTENT.fullmatch(text) and (folder / text[5:]).is_file():
            hold(text[5:], (folder / text[5:]).resolve())


def _walk_texts(table: Tree) -> Iterator[tuple[Tree, str, str]]:
    """(the table that holds it, key, text) of every text of a table and of the tables in it."""
    for key, value in table.items():
        if isinstance(value, str):
            yield table, key, value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _walk_texts(inner)


def name_stages(stages: Any, recipe: str) -> Any:
    if isinstance(stages, dict) or stages is False:
        return stages
    out: Tree = {}
    for i, stage in enumerate(stages if isinstance(stages, list) else [stages]):
        if not isinstance(stage, dict):
            raise RecipeError("stage", f"{stage!r} in {recipe}: expected [[stage]] tables")
        name = str(stage.get("name", i + 1))
        if name in out:
            raise RecipeError("stage", f"two stages of {recipe} are called {name!r}: names are unique")
        out[name] = {k: v for k, v in stage.items() if k != "name"}
    return out
