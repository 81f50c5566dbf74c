"""The available recipes: those of this package, and those that installed packages offer (`plugins`). No torch.

`recipes/<family>/<name>.toml` are baselines and test beds; `methods/<family>/<name>/` is the folder of a paper's
method: its `recipe.toml` is what it changes, its `claim.toml` how that is tested, or its `demonstration.toml` how it is
shown.

Left out: the meaning of a recipe, and how one extends another (`recipe`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path as File

from shuhari.config.overlay import RecipeError, Tree, copy_tree
from shuhari.kernel import plugins
from shuhari.store.files import read_file

FORMAT = 2
RECIPE, CLAIM, SHOWN = "recipe.toml", "claim.toml", "demonstration.toml"  # of a method's folder
BASELINES = "baselines"
BEDS, CONTROL = "beds", "control"  # beds/<bed>/<variant>, and what must gain there: beds/<bed>/control/<variant>
TROUBLES = {  # what `paper.helps` of a recipe may name -> how it shows
    "circular preferences": "no reward explains what people or a judge prefer",
    "entropy collapse": "entropy or pass@k falls while accuracy rises",
    "hopeless problems": "groups without a right answer: nothing to learn from",
    "alike groups": "rollouts are spent on what is always solved or never",
    "stalled training": "the score has stopped to rise",
    "long answers": "answers grow, or say things twice",
    "credit": "a reward at the end does not say which decision was wrong",
    "broken limits": "what an episode costs goes beyond what is allowed",
    "overconfidence": "wrong answers become surer",
    "off-policy data": "samples are stale, or of another policy",
    "demonstrations": "solutions are there, and RL alone does not find them",
    "forgetting": "what was known before is lost",
    "noisy gradients": "small or uneven groups, a loss that jumps",
    "many tasks": "contexts or domains that differ, to be mixed or put in order",
    "slow training": "a score takes many samples, or many steps, to rise",
    "slow collection": "the learner waits for rollouts",
}


@dataclass(frozen=True)
class Method:
    """An available recipe. `family`: the first part of its name; methods are measured on the recipes of `beds`.
    `paper`: its number in the catalogue, several, or None; `verdict` of its claim, and why it is `stale`, if filled in
    (`lab.claims.kept_results`); `helps`: the TROUBLES it is against; `problem`: why it, or the whole family of another
    package, cannot be read."""

    name: str
    family: str
    paper: int | list[int] | None = None
    summary: str = ""
    verdict: str | None = None
    stale: str = ""
    helps: tuple[str, ...] = ()
    problem: str | None = None


def list_names() -> list[str]:
    """Return the recipes of this package and of installed ones, as `family/method`."""
    return [m.name for m in list_recipes() if m.problem is None]


def list_recipes() -> list[Method]:
    """Return every recipe of this package, then of installed ones, by name. A broken one of theirs is listed with its
    problem."""
    out = [_read_method(name, source) for name, source in _walk_own()]
    ours = {m.name for m in out}
    for family in sorted(plugins.find_offered(plugins.RECIPES)):
        try:
            out += [_read_method(*found) for found in plugins.recipes(family) if found[0] not in ours]
        except (plugins.PluginError, RecipeError) as error:
            out.append(Method(family, family, problem=str(error)))
    return out


def find_recipe(name: str) -> Traversable | None:
    """Return the file of the recipe `family/method`, None if there is none. PluginError if its family is of a package
    that cannot be read; no other package is searched."""
    own, family = _find_own(name), name.partition("/")[0]
    if own is not None or family not in plugins.find_offered(plugins.RECIPES):
        return own
    return dict(plugins.recipes(family)).get(name)


def read_table(name: str, source: Traversable) -> Tree:
    """Return the table of a file, with the claim beside it. RecipeError if it is no TOML, or of a newer format."""
    table = _read_toml(name, source)
    version = table.setdefault("format", FORMAT)
    if isinstance(version, int) and version > FORMAT:
        raise RecipeError("format", f"{version!r} in {name}: this shuhari reads up to {FORMAT}; a newer one is needed")
    if (claim := find_claim(source)) is not None:
        if "claim" in table:
            raise RecipeError("claim", f"both {source} and {claim} have a [claim]: expected one of them")
        table["claim"] = _read_toml(f"{name} ({CLAIM})", claim)
    return table


def _read_toml(name: str, source: Traversable) -> Tree:
    try:
        data = read_file(source) if isinstance(source, File) else source.read_bytes()
        return copy_tree(_parse(data.decode("utf-8")))
    except RecursionError:
        raise RecipeError("", f"recipe {name} cannot be read: its tables are nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise RecipeError("", f"recipe {name} is not TOML: {error}") from None
    except OSError as error:
        raise RecipeError("", f"recipe {name} cannot be read: {error}") from None


@lru_cache(maxsize=512)
def _parse(text: str) -> Tree:
    """Return the table of a text. Cached, as one recipe is read again and again (listed, extended, laid over others,
    compared) and parsing takes most of the time: copy the table before changing it."""
    return tomllib.loads(text)


def _find_own(name: str) -> Traversable | None:
    """Return the file that `_walk_own` lists by that name; only the folders in the name are read."""
    *folders, stem = name.split("/")
    return _descend("recipes", folders, f"{stem}.toml") or _descend("methods", [*folders, stem], RECIPE)


def _descend(room: str, folders: Iterable[str], file: str) -> Traversable | None:
    """Return a file below folders of the package; None if one of them does not exist."""
    here: Traversable | None = resources.files("shuhari") / room
    for part in folders:
        here = here and next((e for e in here.iterdir() if e.name == part and e.is_dir()), None)
    return here and next((e for e in here.iterdir() if e.name == file and not e.is_dir()), None)


def _walk_own() -> list[tuple[str, Traversable]]:
    """Return (name, file) of our own recipes, by name."""
    root = resources.files("shuhari")
    methods = ((name.removesuffix("/recipe"), file) for name, file in _walk(root / "methods") if file.name == RECIPE)
    return sorted([*_walk(root / "recipes"), *methods], key=lambda found: found[0])


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml"), entry


def find_claim(source: Traversable, file: str = CLAIM) -> Traversable | None:
    """Return the `claim.toml` (or another file) beside the `recipe.toml` of a method's folder; None if there is
    none."""
    beside = source.parent / file if isinstance(source, File) and source.name == RECIPE else None
    return beside if beside is not None and beside.is_file() else None


def read_demonstration(name: str, source: Traversable | None = None) -> Tree | None:
    """Return the table of the `demonstration.toml` beside a method's recipe; None if there is none. source: the
    recipe's file, if it is not one of the library."""
    source = source or find_recipe(name)
    found = find_claim(source, SHOWN) if source is not None else None
    return None if found is None else _read_toml(f"{name} ({SHOWN})", found)


def refuse_part(reference: str) -> None:
    """Raises RecipeError if a file is what stands beside a recipe, a claim or a demonstration, by its keys. A file that
    cannot be read is left to those that read recipes."""
    path = File(reference).expanduser()
    if path.suffix != ".toml" or not path.is_file():
        return
    try:
        keys = {*_read_toml(path.stem, path)}
    except RecipeError:
        return
    beside = path.parent / RECIPE
    name = f"name the recipe beside it, {beside}" if beside.is_file() else f"name the recipe beside it (a {RECIPE})"
    if {"says", "check"} <= keys:
        raise RecipeError("", f"{path}: this is a {CLAIM}, not a recipe: {name}, or write these keys under [claim]")
    if {"quantity", "dose"} & keys:
        raise RecipeError("", f"{path}: this is a {SHOWN}, not a recipe: {name}, or its folder")


def _read_method(name: str, source: Traversable) -> Method:
    table = read_table(name, source)
    paper = table.get("paper")
    about = paper if isinstance(paper, dict) else {}  # of another package it may be anything
    helps = tuple(map(str, about["helps"])) if isinstance(about.get("helps"), list) else ()
    return Method(name, name.partition("/")[0], about.get("catalogue"), table.get("summary", ""), helps=helps)
