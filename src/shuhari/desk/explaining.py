"""What a recipe changes of the one that it builds on, and the algorithm that comes out, in words: plain values.

A method is compared with the recipe that it is laid over, a recipe with `extends` with that one; of a recipe with
neither everything is told that it sets. Stages are compared as they are resolved, each with the one of its name, so it
makes no difference how a file says what it changes. A component is told by the first sentence of its docstring, a
setting by what the docstring says of it (`components.describe_setting`).

Left out: values that no file says (`train --dry-run`), and the words of the terminal (`cli.explaining`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path as File
from typing import Any

from shuhari.config.build import build_stages
from shuhari.config.files import read_chain
from shuhari.config.overlay import NAMED, USE, Path, format_path, is_schedule, list_kept
from shuhari.config.recipe import Recipe, find_file, find_usual_base, load
from shuhari.data import EMPTY
from shuhari.desk.algorithm import Line, Places, describe_loop, find_component, find_holder, find_places, summarise
from shuhari.desk.components import describe_setting

ABOUT = ("format", "name", "summary", "alone", "laid", "paper", "claim", "stage")  # no setting of what is run
WHOLE = ("seed", "threads", "study", "distributed")  # settings of the whole run


@dataclass(frozen=True)
class Change:
    """A setting that differs: its `value` and the `base`'s (None: it has none), what it `says`, where it comes from;
    `kind`: "set", "removed" (a table of the base that is gone), or "kept" (what stood in the base's place is put here).
    """

    path: Path
    value: Any
    base: Any
    says: str
    origin: str
    kind: str = "set"

    @property
    def key(self) -> str:
        return format_path(self.path)


@dataclass(frozen=True)
class Stage:
    """A stage: `times` it is run in this form, whether it is `new` (the base has none of its name), what changes, and
    its loop as a line a section."""

    name: str
    times: int
    new: bool
    changes: Sequence[Change]
    loop: Sequence[Line]


@dataclass(frozen=True)
class Method:
    """A paper's method: its recipe, and the path of its page ("" if it has none)."""

    name: str
    changes: str
    title: str
    arxiv: str
    page: str


@dataclass(frozen=True)
class Explanation:
    """`base`: the name of what it is compared with, "" for none; `run`: what changes of the whole run; `gone`: stages
    of the base that are left out. `stages` is empty for a study that trains nothing."""

    name: str
    summary: str
    base: str
    run: Sequence[Change]
    stages: Sequence[Stage]
    gone: Sequence[str]
    methods: Sequence[Method]


def explain(
    reference: str, sets: Sequence[str] = (), methods: Sequence[str] = (), remove: Sequence[str] = ()
) -> Explanation:
    """What the recipe that `load` gives of the same changes, and what it does. Raises RecipeError."""
    recipe, base = load(reference, sets, methods=methods, remove=remove), _find_base(reference, methods)
    shown = [*([reference] if find_usual_base(reference) else []), *methods]
    run, trains = _explain_run(recipe, base)
    stages = _explain_stages(recipe, base) if trains else []
    here = {str(table["name"]) for table in recipe.stages}
    gone = [str(table["name"]) for table in base.stages if table["name"] not in here] if base and trains else []
    name, summary = recipe.name, "" if methods else str(recipe.tree.get("summary", ""))
    return Explanation(name, summary, base.name if base else "", run, stages, gone, [_read_method(m) for m in shown])


def _find_base(reference: str, methods: Sequence[str]) -> Recipe | None:
    """What a recipe is compared with: the one that methods are laid over, or else the one that it extends."""
    if on := find_usual_base(reference):
        return load(on)
    if methods:
        return load(reference)
    extends = next(read_chain(reference))[1].get("extends")
    return load(extends) if extends else None


def _read_method(reference: str) -> Method:
    paper, file = load(reference).tree.get("paper", EMPTY), find_file(reference)
    page = file.parent / "README.md" if file is not None and file.name == "recipe.toml" else File()
    changes, title, arxiv = (str(paper.get(key, "")) for key in ("changes", "title", "arxiv"))
    return Method(reference, changes, title, arxiv, str(page) if page.is_file() else "")


def _explain_run(recipe: Recipe, base: Recipe | None) -> tuple[list[Change], bool]:
    """What changes of the whole run, and whether the recipe trains: some studies simulate and train nothing."""
    from shuhari.loop.study import make_study, trains_runs

    study = make_study(recipe) if "study" in recipe.tree else None
    trains = study is None or trains_runs(study)
    places: dict[Path, tuple[Any, ...]] = {} if study is None else {("study",): (study,)}
    keys = WHOLE if trains else ("seed", "study")
    old, new = ({k: r.tree[k] for k in keys if k in r.tree} if r else {} for r in (base, recipe))
    return list(_Differ(recipe, "", places, {}).walk(old, new)), trains


def _explain_stages(recipe: Recipe, base: Recipe | None) -> list[Stage]:
    tables, found = recipe.stages, list[tuple[Any, Stage]]()
    before = {str(table["name"]): table for table in base.stages} if base else {}
    shared = {k: v for k, v in base.tree.items() if k != "stage"} if base else {}
    for table, stage in zip(tables, build_stages(tables), strict=True):
        body = {k: v for k, v in table.items() if k not in (*ABOUT, *WHOLE)}
        if found and found[-1][0] == body and stage.name.startswith(f"{found[-1][1].name} "):  # it is repeated
            last = found[-1][1]
            found[-1] = body, Stage(last.name, last.times + 1, last.new, last.changes, last.loop)
            continue
        old = {k: v for k, v in before.get(stage.name, shared).items() if k not in (*ABOUT, *WHOLE)}
        differ = _Differ(recipe, stage.name, find_places(stage), old)
        changed = sorted(differ.walk(old, _keep_evaluation(old, body)), key=lambda change: len(change.path) > 1)
        touched = [change.path for change in changed] if base else []
        new = bool(base) and stage.name not in before
        loop = describe_loop(stage, body, touched)
        found.append((body, Stage(stage.name, 1, new, changed, loop)))
    return [stage for _, stage in found]


# ------------------------------------------------------------------------------------------------ what differs


@dataclass(frozen=True)
class _Differ:
    """Compares a stage of a recipe with `base`, the table of the stage that it is held against."""

    recipe: Recipe
    stage: str
    places: Places
    base: Mapping[str, Any]

    def walk(self, old: Mapping[str, Any], new: Mapping[str, Any], path: Path = ()) -> Iterator[Change]:
        """What differs between two tables that stand at one path."""
        for key, value in new.items():
            at = (*path, key)
            was: Any = old.get(key)
            if not _is_table(value):
                if key not in old or was != value:
                    yield self._set(at, value, was if key in old else self._find_default(at))
            elif _is_table(was) and _name(was, at) == _name(value, at):
                yield from self.walk(was, value, at)
            else:
                yield from self._put(value, at, was if _is_table(was) else {})
        for key in old:
            if key not in new:
                yield from self._remove(old[key], (*path, key))

    def _put(
        self, table: Mapping[str, Any], at: Path, was: Mapping[str, Any], within: bool = False
    ) -> Iterator[Change]:
        """All of a table that is new in its place, if it is a component's with its name first; `was`: the component
        that stood there. within: it stands in a component that is new itself, so that nothing stood there."""
        thing, chosen = find_component(self.places, at), "name" if _is_task(at) else "use"
        stood = bool(self.base) and not within and (bool(was) or (len(at) == 1 and at[0] in USE))
        if chosen in table or (thing is not None and "init" not in table and "same_as" not in table):
            name = _name(table, at)
            if not stood or name != _name(was, at):
                yield self._set((*at, chosen), name, _name(was, at) if stood else None, summarise(thing))
        for key, value in table.items():
            inner = (*at, key)
            if key == chosen or (not within and key in list_kept(at) and was.get(key) == value):
                continue
            if not _is_table(value):
                yield self._set(inner, value, None)
            elif (stood or was) and _strip(value, inner) == _strip(was, at):
                said = summarise(find_component(self.places, inner))
                yield self._set(inner, _name(value, inner), None, said, "kept")
            else:
                yield from self._put(value, inner, was, within=True)

    def _remove(self, value: Any, at: Path) -> Iterator[Change]:
        default = self._find_default(at)
        if len(at) == 1 and at[0] in NAMED and _is_table(value):
            for name, entry in value.items():
                yield from self._remove(entry, (*at, name))
        elif _is_table(value):
            yield self._set(at, None, _name(value, at), "", "removed")
        elif default is not None and default != value:
            yield self._set(at, default, value)
        elif default is None:
            yield self._set(at, None, value, "", "removed")

    def _set(self, at: Path, value: Any, base: Any, says: str | None = None, kind: str = "set") -> Change:
        if says is None:
            holder = find_holder(self.places, at)
            says = describe_setting(type(holder), at[-1]) if holder is not None else ""
        find = _find_remover if kind == "removed" else find_origin
        return Change(at, value, base, says, find(self.recipe, self.stage, at), kind)

    def _find_default(self, at: Path) -> Any:
        """What stands there if no file says anything; None if nothing does."""
        holder = find_holder(self.places, at)
        found = {f.name: f.default for f in fields(holder)} if holder is not None and is_dataclass(holder) else {}
        default = found.get(at[-1], MISSING)
        return None if default is MISSING or default == EMPTY else default


def find_origin(recipe: Recipe, stage: str, at: Path) -> str:
    """The file or method that a value of a stage comes from; of a table, the first that says anything of it."""
    for place in (*((*overlay, *at) for overlay in _list_overlays(recipe, stage)), at):
        if found := _find_source(recipe, place):
            return found
    return _find_last(recipe)


def _find_remover(recipe: Recipe, stage: str, at: Path) -> str:
    """Who took a value out of a stage: who says something of the table around it there, or else the last file."""
    for overlay in _list_overlays(recipe, stage):
        for n in range(len(at), 0, -1):
            if found := _find_source(recipe, (*overlay, *at[:n])):
                return found
    return _find_last(recipe)


def _list_overlays(recipe: Recipe, stage: str) -> list[Path]:
    """Where a recipe says what is a stage's own; one that is repeated is called `<name> 2` from the second time on."""
    names = recipe.tree.get("stage", EMPTY)
    return [("stage", name) for name in names if stage == name or stage.startswith(f"{name} ")]


def _find_source(recipe: Recipe, place: Path) -> str:
    sources = recipe.sources
    below = (origin for path, origin in sources.items() if path[: len(place)] == place)
    return sources.get(place) or next(below, "")


def _find_last(recipe: Recipe) -> str:
    laid = recipe.tree.get("laid", EMPTY)
    return f"with {' and '.join(laid)}" if laid else recipe.name


def _keep_evaluation(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what [evaluate] says so that it stays as the base's: how the base's training rolls out and samples."""
    tested, rollout = new.get("evaluate"), old.get("rollout") or EMPTY
    if not tested or old.get("evaluate") is None:
        return new
    same = {"rollout": _strip(rollout, ("rollout",)), "sampling": rollout.get("sampling", {})}
    left = {k: v for k, v in tested.items() if k in old["evaluate"] or k not in same or v != same[k]}
    return {**new, "evaluate": left}


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and not is_schedule(value)


def _is_task(at: Path) -> bool:
    return at[-1] == "task" or at[-2:-1] == ("tasks",)


def _name(table: Mapping[str, Any], at: Path) -> str:
    """The component that a table stands for; of a table that is none, its own name."""
    return str(table.get("name" if _is_task(at) else "use", USE.get(at[-1], at[-1])))


def _strip(table: Mapping[str, Any], at: Path) -> dict[str, Any]:
    """A component's table without what is asked of any rollout, and with its name."""
    return {"use": _name(table, at), **{k: v for k, v in table.items() if k not in list_kept(at)}}
