"""What a run is made of beside the library: files of data, directories of models, and code of its user.

A run stores their digests, so that continuing with other data or code is noticed, and keeps copies of small ones in
`needs/`, so that it can be loaded where the originals are missing. Left out: what a user's module imports.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shuhari.config.digests import COPY, SOURCE, compute_digest, list_files
from shuhari.config.files import MODULES, NEEDS, find_named, split_module
from shuhari.config.overlay import RecipeError, walk_leaves
from shuhari.config.recipe import Recipe
from shuhari.kernel import state
from shuhari.kernel.registry import find_module, is_installed, list_beside
from shuhari.store import Store
from shuhari.store.files import translate_errors

ANEW = ": another --run trains with what is there now"


def find_outside(recipe: Recipe, stages: Iterable[Any] = ()) -> dict[str, Path]:
    """Return name -> path of what lies outside of the library: files by the text that names them in the recipe, and the
    modules of the classes of the components of `stages`."""
    found: dict[str, Path] = {}
    for path, value in walk_leaves({k: v for k, v in recipe.tree.items() if k not in ("paper", "claim", "summary")}):
        for text in value if isinstance(value, list) else [value]:
            if path[-1] != "summary" and isinstance(text, str) and (file := find_named(text)) is not None:
                found[text] = file
            elif isinstance(text, str) and (code := _find_module(text)) is not None:
                found[text] = code
    known = {str(p.resolve()) for p in found.values()}
    for stage in stages:
        for _, part in state.walk({**stage.list_memories(), "task": stage.task}):
            code = _find_source(type(part))
            if code is not None and str(code) not in known:
                found.setdefault(type(part).__module__, code)
    return found


def _find_module(name: str) -> Path | None:
    """Return the file of an environment's module; None for an installed one, which its version identifies."""
    return _find_import(split_module(name))


def _find_import(module: str) -> Path | None:
    """Return the file that a module is imported from; None if there is none, or if it is installed."""
    beside = list_beside().get(module.partition(".")[0], [])
    spec = find_module(module, [str(Path.cwd()), *beside]) if module else None
    return None if spec is None or not spec.origin or is_installed(spec.origin) else Path(spec.origin)


def _find_source(kind: type) -> Path | None:
    with suppress(TypeError, OSError):
        file = None if kind.__module__.split(".")[0] == "shuhari" else inspect.getsourcefile(kind)
        return None if file is None or is_installed(file) else Path(file).resolve()
    return None


def compute_digests(outside: Mapping[str, Path]) -> dict[str, str]:
    """Return name -> digest: of Python code its behaviour, of any other file its bytes, of a directory all of its
    files."""
    return {name: compute_digest(path) for name, path in outside.items()}


def keep_outside(store: Store, outside: Mapping[str, Path]) -> None:
    """Write into a new run the digests of what it is made of, and copies of what is small."""
    digests = compute_digests(outside)
    store.set(outside=digests)
    listing: dict[str, dict[str, str | int | None]] = {}
    for name, path in outside.items():
        size = sum(f.stat().st_size for f in list_files(path))
        small = all(f.stat().st_size <= SOURCE for f in list_files(path) if f.suffix == ".py")
        copy = f"{digests[name][:8]}-{path.name}" if size <= COPY and small else None
        if copy is not None:
            target = store.path / NEEDS / copy
            with translate_errors(f"copy {path} to {target}"):
                target.parent.mkdir(exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, target, dirs_exist_ok=True)
                else:
                    shutil.copyfile(path, target)
                module = split_module(name)
                if module and path.name == f"{module.rpartition('.')[2]}.py":
                    own = store.path / NEEDS / MODULES / f"{module.replace('.', '/')}.py"
                    own.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, own)
        listing[name] = {"digest": digests[name], "bytes": size, "copy": copy}
    if listing:
        (store.path / NEEDS).mkdir(exist_ok=True)
        store.write_text(f"{NEEDS}/{NEEDS}.json", json.dumps(listing, indent=2) + "\n")


def check_outside(store: Store, outside: Mapping[str, Path], accept: bool) -> None:
    """Raise RecipeError if data or code of a run differs from what it was made with; `accept`: go on, and note it."""
    known, now = store.get("outside") or {}, compute_digests(outside)
    changed = {name: [known[name], digest] for name, digest in now.items() if known.get(name, digest) != digest}
    if changed and not accept:
        what = f"{store.path} was made with another {', '.join(map(repr, changed))} (its content has changed since)"
        hint = "choose another folder with --run, or go on with what is there now: --accept-changes"
        copies = f"small files have a copy in {store.path / NEEDS}"
        raise RecipeError("", f"{what}: restore it ({copies}), {hint}")
    if changed:
        store.first.append(lambda: store.note("changed", changed))
    if {**known, **now} != known:
        store.first.append(lambda: store.set(outside={**known, **now}))


def describe_changed(known: Mapping[str, str], outside: Mapping[str, Path], then: str = ANEW) -> str:
    """Describe which data and code of a complete run have changed since it was made; "" if none. `known`: name ->
    digest stored in the run, including modules found only through its components; `then`: what to do about it."""
    found = {**{n: f for n in known if n not in outside and (f := _find_import(n if _is_dotted(n) else ""))}, **outside}
    changed = [repr(n) for n, digest in compute_digests(found).items() if known.get(n, digest) != digest]
    if not changed:
        return ""
    verb = "has" if len(changed) == 1 else "have"
    return f"{', '.join(changed)} {verb} changed since it was made{then}"


def _is_dotted(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))
