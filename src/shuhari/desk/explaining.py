"""What a recipe changes compared to its base, and the resulting algorithm in words, as plain values.

A method is compared with the recipe that it is applied to, a recipe with `extends` with that recipe. One with neither
is compared with itself before the changes of --set and --remove; without those every setting is listed. Stages are
compared as resolved, each with the stage of the same name, so it does not matter how the file writes a change. A
component is described by the first sentence of its docstring, a setting by `components.describe_setting`.

Left out: values that no file sets (`train --dry-run`), and the text for the terminal (`cli.explaining`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from shuhari.config.build import build_stages
from shuhari.config.files import read_chain
from shuhari.config.overlay import Path, RecipeError
from shuhari.config.recipe import Recipe, find_file, find_usual_base, load
from shuhari.data import EMPTY
from shuhari.desk.algorithm import Line, Places, describe_loop, find_places
from shuhari.desk.differing import Change, Differ, keep_evaluation
from shuhari.desk.naming import find_named
from shuhari.desk.origins import Removals, list_removals, list_undone

__all__ = ["Change", "Explanation", "Method", "Stage", "explain"]

ABOUT = ("format", "name", "summary", "alone", "laid", "paper", "claim", "stage")  # not settings of a stage
WHOLE = ("seed", "threads", "study", "distributed")  # settings of the whole run


@dataclass(frozen=True)
class Stage:
    """A stage: how many `times` it is repeated, whether it is `new` (the base has none of its name), its changes, and
    its loop, a line a section."""

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
    """`base`: the name of the recipe that it is compared with, "" for none; `run`: changes of the whole run; `gone`:
    stages of the base that are left out. `stages` is empty for a study that trains nothing. `command`: the command that
    trains it; `notes`: oddities; `refused`: why it would not be trained, "" if these checks find nothing."""

    name: str
    summary: str
    base: str
    run: Sequence[Change]
    stages: Sequence[Stage]
    gone: Sequence[str]
    methods: Sequence[Method]
    command: str
    notes: Sequence[str]
    refused: str


def explain(
    reference: str, sets: Sequence[str] = (), methods: Sequence[str] = (), remove: Sequence[str] = ()
) -> Explanation:
    """Explain a recipe with changes, given as for `load`. Raises RecipeError."""
    reference, more = find_named(reference, sets, remove)
    methods = [*more, *methods]
    recipe = load(reference, sets, methods=methods, remove=remove)
    base = _find_base(reference, methods, changed=bool(sets or remove))
    method = bool(find_usual_base(reference))
    shown = [*([reference] if method else []), *methods]
    removals = list_removals(reference, sets, methods, remove, method)
    run, trains = _explain_run(recipe, base)
    stages = _explain_stages(recipe, base, removals) if trains else []
    here = {str(table["name"]) for table in recipe.stages}
    gone = [str(table["name"]) for table in base.stages if table["name"] not in here] if base and trains else []
    return Explanation(
        name=recipe.name,
        summary="" if methods else str(recipe.tree.get("summary", "")),
        base=base.name if base else "",
        run=run,
        stages=stages,
        gone=gone,
        methods=[_read_method(m) for m in shown],
        command=_write_command(reference, sets, methods, remove, method),
        notes=list_undone(recipe, shown),
        refused=_find_refusal(recipe) if trains else "",
    )


def _write_command(
    reference: str, sets: Sequence[str], methods: Sequence[str], remove: Sequence[str], method: bool
) -> str:
    """Return the command that trains the recipe; for a method alone, the one that applies it to another recipe."""
    if method and not (sets or methods or remove):
        return f"shuhari train my_recipe.toml --with {shlex.quote(reference)}"
    given = [*(("--with", name) for name in methods),
             *(("--set", text) for text in sets),
             *(("--remove", key) for key in remove)]  # fmt: skip
    return shlex.join([
        "shuhari",
        "train",
        reference,
        *(
            word
            for pair in given
            for word in pair
        ),
    ])


def _find_refusal(recipe: Recipe) -> str:
    """Return why `train` would refuse the recipe before making a model; "" if it would not."""
    from shuhari.loop.checks import make_stages

    try:
        make_stages(recipe)
    except RecipeError as error:
        return str(error)
    return ""


def _find_base(reference: str, methods: Sequence[str], *, changed: bool) -> Recipe | None:
    """Return the recipe to compare with: the one that methods are applied to, otherwise the one that it extends; for
    one that extends none and is `changed` by --set or --remove, itself without these changes."""
    if on := find_usual_base(reference):
        return load(on)
    if methods:
        return load(reference)
    extends = next(read_chain(reference))[1].get("extends")
    return load(extends) if extends else load(reference) if changed else None


def _read_method(reference: str) -> Method:
    paper, file = load(reference).tree.get("paper", EMPTY), find_file(reference)
    page = file.parent / "README.md" if file is not None and file.name == "recipe.toml" else File()
    changes, title, arxiv = (str(paper.get(key, "")) for key in ("changes", "title", "arxiv"))
    return Method(reference, changes, title, arxiv, str(page) if page.is_file() else "")


def _explain_run(recipe: Recipe, base: Recipe | None) -> tuple[list[Change], bool]:
    """Return the changes of the whole run, and whether the recipe trains: some studies only simulate."""
    from shuhari.loop.study import make_study, trains_runs

    study = make_study(recipe) if "study" in recipe.tree else None
    trains = study is None or trains_runs(study)
    places: dict[Path, tuple[Any, ...]] = {} if study is None else {("study",): (study,)}
    keys = WHOLE if trains else ("seed", "study")
    old, new = (
        {k: r.tree[k] for k in keys if k in r.tree} if r else {}
        for r in (base, recipe)
    )
    return list(Differ(recipe, base, "", places, {}, {}).walk(old, new)), trains


def _build_base(base: Recipe | None) -> dict[str, Places]:
    """Return the components of each stage of the base by place; empty if the base is not a complete recipe."""
    try:
        return {stage.name: find_places(stage) for stage in build_stages(base.stages)} if base else {}
    except RecipeError:
        return {}


def _explain_stages(recipe: Recipe, base: Recipe | None, removals: Removals) -> list[Stage]:
    tables, found, stood = recipe.stages, list[tuple[Any, Stage]](), _build_base(base)
    before = {str(table["name"]): table for table in base.stages} if base else {}
    shared = {k: v for k, v in base.tree.items() if k != "stage"} if base else {}
    for table, stage in zip(tables, build_stages(tables), strict=True):
        body = {k: v for k, v in table.items() if k not in (*ABOUT, *WHOLE)}
        if found and found[-1][0] == body and stage.name.startswith(f"{found[-1][1].name} "):  # a repetition
            last = found[-1][1]
            found[-1] = body, Stage(last.name, last.times + 1, last.new, last.changes, last.loop)
            continue
        old = {k: v for k, v in before.get(stage.name, shared).items() if k not in (*ABOUT, *WHOLE)}
        new = bool(base) and stage.name not in before
        there = (recipe, base, stage.name, find_places(stage), stood.get(stage.name, {}))
        differ = Differ(*there, old, new, removals)
        changed = sorted(differ.walk(old, keep_evaluation(old, body)), key=lambda change: len(change.path) > 1)
        touched = [change.path for change in changed] if base else []
        loop = describe_loop(stage, body, touched)
        found.append((body, Stage(stage.name, 1, new, changed, loop)))
    return [stage for _, stage in found]
