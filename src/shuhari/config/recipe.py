"""Recipes: a method as a short TOML file, what it builds on, what each stage changes, and where each value came from.

No torch here: listing and resolving recipes is quick. This module knows the sections and how one table is laid over
another (`overlay`); `build` interprets the tables. Stages are kept by name: `stage` maps a name to its overlay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as File
from typing import Any

from shuhari.config.dumps import find_differences, read_dump, spreads
from shuhari.config.files import find_as_method, find_file, name_originals, read_chain
from shuhari.config.laid import lay_methods, resolve, spread, spread_removal
from shuhari.config.library import FORMAT, Method, list_names
from shuhari.config.methods import REMOVED, Change, list_tables
from shuhari.config.named import find_meant
from shuhari.config.overlay import (
    BUDGETS,
    NAMED,
    OF_STAGE,
    REMOVE,
    SCALARS,
    SINGLE,
    RecipeError,
    Sources,
    Tree,
    copy_tree,
    format_path,
    join,
    lay,
    list_removed,
    look_up,
    nest,
    order_entries,
    read_settings,
    split_path,
    walk_leaves,
)
from shuhari.config.repeats import expand_repeats
from shuhari.config.scalars import KINDS, read_scalar
from shuhari.config.staged import name_all, read_stages
from shuhari.config.standing import tell_standing
from shuhari.config.words import explain_unknown
from shuhari.data import EMPTY, nearest

__all__ = ["FORMAT", "Method", "Recipe", "RecipeError", "dump", "find_differences", "find_file", "find_usual_base",
           "list_names", "load", "read_method", "resolve_name", "restore_names", "spreads"]  # fmt: skip

OWN = ("name", "paper", "summary", "claim", "alone")  # of one file alone: a child does not inherit them


@dataclass(frozen=True, eq=False)
class Recipe:
    """A resolved recipe. `tree`: its sections, `stage` as name -> overlay; `sources`: where each value came from;
    `plain`: for a recipe found by its name, the recipe before any settings. Trees are never changed, as results derived
    from them are cached."""

    name: str
    tree: Tree
    sources: Sources = field(default_factory=dict)
    plain: Recipe | None = None

    @property
    def seed(self) -> int:
        return int(self.tree.get("seed", 0))

    @property
    def total(self) -> int | None:
        """Steps of all stages, with 1 for a stage after others that only measures; None for a study, or if a stage has
        no budget in steps."""
        if "study" in self.tree:
            return None
        steps = [stage["steps"] for stage in self.stages if "steps" in stage]
        return sum(max(int(n), i > 0) for i, n in enumerate(steps)) if len(steps) == len(self.stages) else None

    @property
    def threads(self) -> int:
        """Number of threads of torch; 0 leaves it unchanged. The bits of a run depend on it."""
        return int(self.tree.get("threads", 0))

    @cached_property
    def resolved(self) -> dict[str, Tree]:
        """name -> the whole table of each stage; for a recipe without stages "" -> its own."""
        out = {}
        for name in self.tree.get("stage") or {"": {}}:
            try:
                out[name] = resolve(self.tree, name)
            except RecipeError as error:
                told = tell_standing(error, lambda: [{k: v for k, v in self.tree.items() if k != "stage"}])
                raise RecipeError(f"stage {name!r}, {told.where}", told.problem) from None
        return out

    @cached_property
    def stages(self) -> list[Tree]:
        """One whole table a stage, in order, without `stage`, with the stage's `name` (`main` if there are none)."""
        out = []
        for name, of in expand_repeats(self.tree.get("stage") or {"": {}}):
            table = self.resolved[of] if name == of else copy_tree(self.resolved[of])
            if not any(b in table for b in BUDGETS):
                message = f"no budget: give one of {', '.join(BUDGETS)}; or build on a recipe, extends = \"<name>\""
                raise RecipeError(f"stage {name!r}" if of else "", message)
            out.append({**table, "name": name or "main"})
        return out

    def with_methods(self, changes: Sequence[Change], settings: Mapping[str, Any] = EMPTY) -> Recipe:
        """Return the recipe with methods laid over each stage that samples, in order. RecipeError if it lacks what one
        changes, or if two contradict each other and `settings`, which are not laid here, do not decide."""
        asked = _to_tree(settings)
        sets = [(path, REMOVED) for path in list_removed(asked)]
        sets += [(path, value) for path, value in walk_leaves(asked) if path != (REMOVE,)]
        tree, sources = lay_methods(self.tree, self.sources, self.name, changes, sets, self.resolved)
        _settle(tree, tree, sources)
        _check(tree)
        return Recipe(self.name, tree, sources)

    def with_settings(self, settings: Mapping[str, Any], origin: str = "set") -> Recipe:
        """Return the recipe with `settings` (dotted keys or nested mappings) laid over it; if methods are laid, also
        over the stages that these changed. RecipeError for a setting that no stage reads."""
        tree, sources = copy_tree(self.tree), dict(self.sources)
        asked, there = _to_tree(settings), tree.get("stage", {})
        for path in [*list_removed(asked), *(path for path, _ in walk_leaves(asked))]:
            if path[0] == "stage" and len(path) > 1 and path[1] not in there:
                raise RecipeError(f"stage.{format_path(path[1:2])}", f"no such stage; {nearest(path[1], there)}")
        _lay(tree, asked, origin, sources)
        _check(tree)
        changed = Recipe(self.name, tree, sources, self.plain)
        _check_read(asked, changed, {} if "laid" in tree else self.tree.get("stage", EMPTY))
        return changed


def load(
    reference: str | File,
    sets: Sequence[str] = (),
    settings: Mapping[str, Any] = EMPTY,
    methods: Sequence[str | File] = (),
    remove: Sequence[str] = (),
) -> Recipe:
    """Load and resolve the recipe of a name `family/method`, of a `.toml` file, or of a run's folder; a method is laid
    over its usual base, and then `methods` (names or files of such), in order.

    `sets` are `a.b.c=value` and `remove` dotted keys (command line), `settings` the same from Python. Raises
    RecipeError. A short name (`grpo`, `ppo`) is resolved by `find_meant`.
    """
    try:
        given = read_settings(sets, remove)
        reference, first = find_meant(str(reference), _read_meant(given, settings))
        methods = [*first, *methods]
        base, changes, own = _read_recipe(reference)
        if more := [read_method(str(name)) for name in methods]:
            name = "+".join([own.get("name", base.name), *(m.name.rpartition("/")[2] for m in more)])
            recipe = replace(base.with_methods([*changes, *more], {**given, **settings}), name=name)
        else:
            recipe = _add_own(base.with_methods(changes, {**given, **settings}), own) if changes else base
        recipe = replace(recipe, plain=recipe) if not methods and reference == recipe.name else recipe
        recipe = recipe.with_settings(given, "--set") if given else recipe
        recipe = recipe.with_settings(settings) if settings else recipe
        assert recipe.stages  # resolves them: a mistake in an overlay is found here
        return recipe
    except RecursionError:
        raise RecipeError("", f"{reference}: its tables are nested too deeply") from None


def resolve_name(reference: str, sets: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return (recipe, methods to lay over it) of a name on the command line; see `find_meant`. RecipeError."""
    return find_meant(reference, _read_meant(read_settings(sets, remove), EMPTY))


def _read_meant(given: Mapping[str, Any], settings: Mapping[str, Any]) -> Tree:
    """Return settings as a tree with the model and the task, which `find_meant` reads; other keys may still be
    wrong."""
    known = ("models", "task")
    return _to_tree({k: v for k, v in {**given, **settings}.items() if split_path(k)[0] in known})


def find_usual_base(reference: str | File) -> str:
    """Return the `on` of a method; "" for a recipe that is none."""
    changes = _read_recipe(str(reference))[1]
    return changes[0].on if changes else ""


def _read_recipe(reference: str) -> tuple[Recipe, list[Change], Tree]:
    """Return a recipe; or the base of a method, that method, and the titles in its file."""
    chain = list(read_chain(reference))
    if not chain:
        raise RecipeError("", "'' names no recipe: expected family/method, a .toml file, or a run's folder")
    if "on" in chain[0][1]:
        name, table = chain[0]
        change = _read_change(chain)
        base, more, _ = _read_recipe(change.on)
        if more:
            raise RecipeError("on", f"{change.on!r}, the base of {name}, is a method itself: expected a recipe, such "
                              f"as {more[0].on!r}")  # fmt: skip
        own = {k: v for k, v in table.items() if k in ("name", "summary", "paper", "claim")}
        return base, [change], {"name": name, **own}
    at = next((i for i, (_, table) in enumerate(chain) if "on" in table), len(chain))
    tree, sources = Tree(), Sources()
    if at < len(chain):
        below = load(chain[at - 1][1]["extends"])
        tree, sources = _leave_own(below)
    for i, (name, table) in enumerate(reversed(chain[:at])):
        last = i + 1 == at
        own = {k: v for k, v in table.items() if k != "extends" and (last or k not in OWN)}
        places: dict[str, str] = {}
        if "stage" in own:
            own["stage"], places = read_stages(own, name, tree.get("stage", EMPTY))
        _lay(tree, own, name, sources)
        if places:
            tree["stage"] = order_entries(tree["stage"], places, "stage", "stage")
    _check(tree)
    return Recipe(str(tree.pop("name", chain[0][0])), {**tree, "format": FORMAT}, sources), [], {}


def read_method(reference: str) -> Change:
    """Return the changes of a method, for another recipe than its base. The name of a recipe that a method extends
    stands for that method: `baselines/dapo` for `rlvr/dapo`. Raises RecipeError if the name is no method's."""
    chain = list(read_chain(find_as_method(reference)))
    if "on" not in chain[0][1]:
        why = next((table["alone"] for _, table in chain if "alone" in table), "it has no `on`, a method's base")
        raise RecipeError("", f"{chain[0][0]} is a complete recipe, and cannot be applied to another: {why}")
    return _read_change(chain)


def _read_change(chain: Sequence[tuple[str, Tree]]) -> Change:
    name = str(chain[0][1].get("name", chain[0][0]))
    return Change.of(name, name_all(name, list_tables(chain)))


def _add_own(recipe: Recipe, own: Tree) -> Recipe:
    """Return the recipe with the titles in a method's file."""
    tree, sources = _leave_own(recipe)
    stated = {k: v for k, v in own.items() if k != "name"}
    sources |= {p: str(own["name"]) for p, _ in walk_leaves(stated)}
    return Recipe(str(own["name"]), {**tree, **stated}, sources)


def _leave_own(recipe: Recipe) -> tuple[Tree, Sources]:
    """Return its tree and sources without the titles of its file."""
    tree = {k: v for k, v in recipe.tree.items() if k not in OWN}
    return tree, {p: by for p, by in recipe.sources.items() if p[0] not in OWN}


def dump(recipe: Recipe) -> str:
    """Return TOML that loads to the same recipe, with nothing left to extend."""
    import tomli_w

    tree = {"format": FORMAT, "name": recipe.name, **{k: v for k, v in recipe.tree.items() if k != "stage"}}
    if recipe.tree.get("stage"):
        tree["stage"] = [{"name": name, **over} for name, over in recipe.tree["stage"].items()]
    return tomli_w.dumps(tree)


def restore_names(recipe: Recipe, there: str, run: File) -> tuple[Recipe, dict[str, str]]:
    """Return (the recipe, copy -> original): a recipe that was read from the folder of `run` names copies of files, and
    gets back the original names, which the dump `there` has."""
    tree, originals = name_originals(recipe.tree, read_dump(there), run)
    return (replace(recipe, tree=tree) if originals else recipe), originals


# ------------------------------------------------------------------------------------------------ checks


def _to_plain(value: Any, key: str) -> Any:
    """Return a setting from Python as TOML could express it."""
    if isinstance(value, Mapping):
        return {str(k): _to_plain(v, f"{key}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(v, key) for v in value]
    if value is None or not isinstance(value, bool | int | float | str):
        message = f"expected a truth value, number, text, list or table (to take it out, {REMOVE}=[{key!r}])"
        raise RecipeError(key, f"{value!r}: {message}")
    return value


def _lay(tree: Tree, over: Mapping[str, Any], origin: str, sources: Sources) -> None:
    """Lay a file, or settings, over what is below; over laid methods so that they reach the stages these changed."""
    laid, before = "laid" in tree, copy_tree(tree)
    if over.get(REMOVE):
        gone = {REMOVE: over[REMOVE]}
        try:
            lay(tree, spread_removal(tree, gone) if laid else gone, origin, sources)
        except RecipeError as error:
            raise tell_standing(error, lambda: Recipe("", before).stages) from None
        _settle(tree, before, sources)
    if rest := {k: v for k, v in over.items() if k != REMOVE}:
        lay(tree, spread(tree, rest) if laid else rest, origin, sources)
        _settle(tree, before, sources)


def _settle(tree: Tree, before: Tree, sources: Sources) -> None:
    """Delete, in place, the removals of a stage whose key is now gone from the recipe, or from the stage itself."""
    for name, stage in (tree.get("stage") or EMPTY).items():
        below = (before, look_up(before, ("stage", name)))
        for path in list_removed(stage, ("stage", name)):
            if look_up(tree, path) is None and ("laid" in before or any(look_up(x, path) is not None for x in below)):
                stage[REMOVE].remove(format_path(path))
        if stage.get(REMOVE) == []:
            del stage[REMOVE], sources["stage", name, REMOVE]


def _to_tree(settings: Mapping[str, Any]) -> Tree:
    """Return settings by dotted key, or nested, as one tree."""
    over: Tree = {}
    for key, value in settings.items():
        path = split_path(key)
        try:
            plain = _to_plain(value, key)
        except RecipeError:
            known = [*SCALARS, *SINGLE, *NAMED]
            if path[0] in known:
                raise
            message = explain_unknown(path[0], {}, known)
            raise RecipeError(path[0], f"no such key in a recipe; {message}") from None
        join(over, nest(path, plain))
    return over


def _check_read(asked: Mapping[str, Any], recipe: Recipe, before: Mapping[str, Any]) -> None:
    """Raise RecipeError for a setting that no stage has in the end: each sets its own (`before` are their overlays,
    without the settings), or has another component there."""
    own = recipe.tree.get("stage") or {}
    for path, value in walk_leaves(asked) if own else ():
        if path[0] in ("stage", "name", REMOVE) or isinstance(value, Mapping):
            continue
        same = [(b,) for b in BUDGETS] if path[0] in BUDGETS else [path]
        unheard = bool(before) and all(
            any(look_up(over, p) is not None for p in same)
            for over in before.values()
        )
        found = {str(stage["name"]): stage for stage in recipe.stages}
        heard = [look_up(stage, path) for stage in recipe.stages]
        if not unheard and value in heard:
            continue
        names = [
            n
            for n in own
            if any(look_up(found[n], p) is not None for p in same)
        ] or list(own)
        keys = " or ".join(f"stage.{format_path((name, *path))}" for name in names)
        raise RecipeError(format_path(path), f"it would change no stage, as each stage sets it itself or has another "
                          f"component there: name the stage, {keys}")  # fmt: skip


def _check(tree: Tree, where: str = "") -> None:
    """Check the sections of a recipe, or of a stage's overlay: known keys, tables in the right places, numbers in
    range. In place: 1e6 becomes a whole number if one is expected."""
    known = [*OF_STAGE, REMOVE] if where else [*SCALARS, *SINGLE, *NAMED]
    for key, value in tree.items():
        at = f"{where}{key}"
        if key not in known:
            message = explain_unknown(key, tree, known if where else [*known, "extends", REMOVE])
            raise RecipeError(at, f"no such key in a recipe; {message}")
        if key in KINDS:
            tree[key] = read_scalar(key, value, at)
        if key in (*SINGLE, *NAMED) and not isinstance(value, dict):
            raise RecipeError(at, f"{value!r}: expected a table")
        if key in NAMED and isinstance(value, dict):
            for name, entry in value.items():
                if not isinstance(entry, dict):
                    raise RecipeError(f"{at}.{format_path((name,))}", f"{entry!r}: expected a table")
    for name, over in tree.get("stage", {}).items():
        _check(over, f"stage.{format_path((name,))}.")
    if not where and isinstance(tree.get("task", EMPTY).get("name", ""), str) and "use" in tree.get("task", EMPTY):
        raise RecipeError("task.use", "a task is chosen by `name`, not by `use`")
