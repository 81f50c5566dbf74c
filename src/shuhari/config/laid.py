"""Methods laid over a recipe: over each stage that samples, in order; other stages stay as they are.

The result is a recipe as any other: the overlay of a changed stage holds the differences, and `laid` names the methods
and their needs. The order is: the base's resolved stage, all settings of the methods, their wraps; then `--set`, which
decides if two contradict each other. Evaluation stays the base's: if a method changes how training rolls out or
samples, [evaluate] keeps the base's rollout and sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shuhari.config.contradictions import decide, refuse_twice
from shuhari.config.methods import (
    REMOVED,
    Change,
    Places,
    Statement,
    Wrap,
    check_removal,
    drop_places,
    find_default,
    is_asking,
    is_sampling,
    list_statements,
)
from shuhari.config.overlay import (
    BUDGETS,
    PLACE,
    REMOVE,
    REPEAT,
    SCALARS,
    USE,
    Path,
    RecipeError,
    Sources,
    Tree,
    copy_tree,
    format_path,
    is_schedule,
    join,
    lay,
    list_kept,
    list_removed,
    look_up,
    nest,
    order_entries,
    walk_leaves,
)
from shuhari.data import EMPTY
from shuhari.kernel.registry import declared

ASIDE = (*(s for s in SCALARS if s not in BUDGETS), "laid", "paper", "study", "claim", "stage", "name")


def lay_methods(
    tree: Tree, sources: Sources, base: str, changes: Sequence[Change], sets: Sequence[tuple[Path, Any]],
    resolved: Mapping[str, Tree],
) -> tuple[Tree, Sources]:  # fmt: skip
    """Return the tree of `base` with methods laid over it, and where each value came from.

    `sets`: settings that will be laid over that, as (key, value); `resolved`: the whole table of each stage.
    RecipeError if the base lacks what a method changes, or if two contradict each other."""
    if there := tree.get("laid"):
        raise RecipeError("", f"{base} already has the methods {' and '.join(there)}: give all methods at once, with "
                          "its base")  # fmt: skip
    refuse_twice(changes)
    tree, sources = copy_tree(tree), dict(sources)
    chosen = [name for name, table in resolved.items() if is_sampling(table)]
    who = " and ".join(c.name for c in changes)
    if not chosen:
        raise RecipeError("", f"{who} changes stages that sample, and {base} has none: expected another base")
    for name in chosen:
        table, own = _change_stage(resolved[name], base, changes, [s for s in sets if s[0][0] != "stage"])
        if name:
            _set_stage(tree, sources, name, table, own)
        else:
            there = {p for p, _ in walk_leaves(table)}
            sources = {p: own.get(p) or sources.get(p) or f"with {who}" for p in there}
            tree = table
    for change in changes:
        tree = _bring_stages(tree, sources, change, chosen[0])
    tree["laid"] = {c.name: dict(c.needs) for c in changes}
    for gone in [p for p in sources if p[0] in ("laid", "paper", "claim")]:
        del sources[gone]
    sources |= {p: f"with {p[1]}" for p, _ in walk_leaves({"laid": tree["laid"]})}
    return {k: v for k, v in tree.items() if k not in ("paper", "claim")}, sources


def resolve(tree: Tree, stage: str) -> Tree:
    """Return the whole table of a stage; for a recipe without stages, that of the recipe."""
    table = copy_tree({k: v for k, v in tree.items() if k != "stage"})
    if stage:
        lay(table, {k: v for k, v in tree["stage"][stage].items() if k not in REPEAT}, stage, {})
    return table


def spread(tree: Tree, over: Mapping[str, Any]) -> Tree:
    """Return settings extended so that, on a tree of laid methods, they reach the changed stages too: a setting that a
    stage's overlay has is set there too, and one of a component that only the stage has (the base lacks it, or has
    another) only there."""
    out: Tree = copy_tree(dict(over))
    for name, stated in (tree.get("stage") or {}).items():
        stage = resolve(tree, name)
        if not is_asking(stage):
            continue
        more = _select_stated(stated, over, set(list_removed(stated)))
        for slot, new in _list_slots(over, stage, tree):
            here, below = _find_component(stage, slot), _find_component(tree, slot)
            whole = isinstance(new, Mapping) and "use" in new
            if (below is not None and (whole or here == below)) or (slot[0] == "reward" and here is None):
                continue  # a new grader stands where `reward.weights` does
            kept = list_kept(slot) if isinstance(new, Mapping) and below is not None else ()
            own = {k: v for k, v in new.items() if k not in kept} if isinstance(new, Mapping) else new
            join(more, nest(slot, own))
            _cut(out, slot, kept)
        if more:
            join(out, {"stage": {name: more}})
    return out


def spread_removal(tree: Tree, over: Mapping[str, Any]) -> Tree:
    """Return removals extended so that, on a tree of laid methods, they reach the changed stages too."""
    base, stages = list[str](), Tree()
    for path in list_removed(over):
        stating = [n for n, stated in (tree.get("stage") or {}).items()
                   if look_up(stated, path) is not None and is_asking(resolve(tree, n))]  # fmt: skip
        for name in stating:
            stages.setdefault(name, {}).setdefault(REMOVE, []).append(format_path(path))
        if not stating or look_up(tree, path) is not None:
            base.append(format_path(path))
    return {**({REMOVE: base} if base else {}), **({"stage": stages} if stages else {})}


def _list_slots(over: Mapping[str, Any], stage: Tree, base: Tree, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return (place, setting) of the components that settings concern, and of the roles and parts that the base
    lacks."""
    out: list[tuple[Path, Any]] = []
    for key, value in over.items():
        at = (*path, key)
        alone = len(at) == 2 and at[0] in ("models", "part") and look_up(base, at) is None
        if alone or (find_default(at) is not None and (len(at) > 1 or look_up(stage, at) is not None)):
            out.append((at, value))
        elif isinstance(value, Mapping) and key != "stage":
            out += _list_slots(value, stage, base, at)
    return out


def _find_component(tree: Mapping[str, Any], slot: Path) -> Any:
    """Return the name of the component at a place; None if there is none."""
    there = look_up(tree, slot)
    if there is None and len(slot) > 1:
        return None
    return (there or EMPTY).get("use", find_default(slot)) or "a role"


def _cut(tree: Tree, path: Path, kept: Sequence[str]) -> None:
    """Remove what is at a path, except the kept keys, and tables that are then empty."""
    first, *rest = path
    if first not in tree:
        return
    if rest:
        _cut(tree[first], tuple(rest), kept)
    elif kept and isinstance(tree[first], Mapping):
        tree[first] = {k: v for k, v in tree[first].items() if k in kept}
    else:
        del tree[first]
    if first in tree and tree[first] == {}:
        del tree[first]


def _select_stated(stated: Mapping[str, Any], over: Mapping[str, Any], gone: set[Path], path: Path = ()) -> Tree:
    """Return the part of `over` that a stage sets itself, or removes (`gone`)."""
    out: Tree = {}
    for key, value in over.items():
        here: Any = stated.get(key)
        at = (*path, key)
        if at == ("stage",) or (key not in stated and at not in gone):
            continue
        table = at not in gone and isinstance(value, Mapping) and isinstance(here, Mapping) and not is_schedule(value)
        if table and not is_schedule(here) and "use" not in value and "name" not in value:
            if inner := _select_stated(here, value, gone, at):
                out[key] = inner
        else:
            out[key] = value
    return out


# ------------------------------------------------------------------------------------------------ one stage


def _change_stage(
    stage: Tree, base: str, changes: Sequence[Change], sets: Sequence[tuple[Path, Any]]
) -> tuple[Tree, Sources]:
    """Return a resolved stage after the methods, and where their values came from."""
    places = Places(base, stage)
    statements = [
        one
        for change in changes
        for one in list_statements(change, places)
    ]
    table, sources = copy_tree(stage), Sources()
    decided = decide(statements, [(places.find(path), value) for path, value in sets])
    for one in decided:
        if isinstance(one, Wrap):
            _wrap(table, one, sources)
        elif not one.held:
            check_removal(one, places)
            _put(table, one, sources)
    _keep_evaluation(table, stage, decided, sources)
    for path in drop_places(table, places):
        sources.pop(path, None)
    return table, sources


def _put(table: Tree, one: Statement, sources: Sources) -> None:
    """Lay a statement; removing something that is missing has no effect."""
    path, value, origin = one.path, one.value, f"with {one.by}"
    if value is REMOVED:
        if look_up(table, path) is not None:
            lay(table, {REMOVE: [format_path(path)]}, origin, sources)
        return
    if path[:2] == ("reward", "weights") and "weights" not in (table.get("reward") or EMPTY):
        path = ("reward", "beside", *path[2:])  # the base's own, whatever they are, stay
    if one.whole:
        old = look_up(table, path) or EMPTY
        _take_place(table, path, {**value, **{k: old[k] for k in list_kept(path) if k in old}}, origin, sources)
    else:
        lay(table, nest(path, value), origin, sources)


def _take_place(table: Tree, path: Path, new: Tree, origin: str, sources: Sources) -> None:
    gone = [format_path(path)] if look_up(table, path) is not None else []
    lay(table, {REMOVE: gone, **nest(path, new)}, origin, sources)


def _wrap(table: Tree, one: Wrap, sources: Sources) -> None:
    """Put the component at a place into a field of another; settings that any rollout has stay outside."""
    old = dict(look_up(table, one.slot) or EMPTY)
    kept = {k: old.pop(k) for k in list_kept(one.slot) if k in old}
    inner = {"use": find_default(one.slot) or USE[one.slot[-1]], **old}
    new: Tree = {**copy_tree(one.table), **kept}
    at = new
    for key in one.into[:-1]:
        at = at.setdefault(key, {})
    beside = {k: at.pop(k) for k in list(at) if len(one.into) > 1}
    at |= {one.into[-1]: inner, **beside}
    _take_place(table, one.slot, new, f"with {one.by}", sources)


def _keep_evaluation(table: Tree, before: Tree, statements: Sequence[Statement | Wrap], sources: Sources) -> None:
    """Fill in how [evaluate] rolled out and sampled, if a method changes that for training."""
    rollout = before.get("rollout") or {}
    lanes = declared("rollout", rollout.get("use", USE["rollout"]), "unit") == "decision"
    if not before.get("evaluate") or lanes:  # which evaluation replays one by one as it is
        return
    by = [s for s in statements if (s.slot if isinstance(s, Wrap) else s.path)[:1] == ("rollout",)]
    filled: Tree = {}
    if any(isinstance(s, Wrap) or not (s.kept or s.held) for s in by):
        filled["rollout"] = {"use": USE["rollout"], **{k: v for k, v in rollout.items() if k not in ("n", "sampling")}}
    if any(isinstance(s, Statement) and "sampling" in s.path for s in by):
        filled["sampling"] = copy_tree(rollout.get("sampling", {}))
    for key in [k for k in filled if k in (table.get("evaluate") or EMPTY)]:
        del filled[key]
    if filled:
        lay(table, {"evaluate": filled}, f"with {by[-1].by}", sources)


# ------------------------------------------------------------------------------------------------ the recipe's tree


def _set_stage(tree: Tree, sources: Sources, name: str, table: Tree, own: Sources) -> None:
    """Set the overlay of a stage so that it resolves to `table`; `own`: where that came from, if a method brought
    it."""
    old = tree["stage"][name]
    base, there = (
        {k: v for k, v in x.items() if k not in (*ASIDE, *BUDGETS)}
        for x in (tree, table)
    )
    over: Tree = {k: v for k, v in old.items() if k in (*BUDGETS, *REPEAT)} | find_difference(base, there)
    tree["stage"][name] = over
    before = {p[2:]: by for p, by in sources.items() if p[:2] == ("stage", name)}
    for path in before:
        del sources["stage", name, *path]
    last = next(reversed(own.values()), name)
    for path, _ in walk_leaves(over):
        sources["stage", name, *path] = own.get(path) or before.get(path) or sources.get(path) or last


def find_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Tree:
    """Return the overlay that turns the stage's table `old` into `new`, in the order of `new`."""
    gone, over = _differ(old, new, ())
    return {**({REMOVE: [format_path(path) for path in gone]} if gone else {}), **over}


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> tuple[list[Path], Tree]:
    """Return (what to remove, what to lay over that) so that `old`, at a path of a stage, becomes `new`."""
    gone: list[Path] = [(*path, key) for key in old if key not in new]
    over: Tree = {}
    for key, value in new.items():
        was, at = old.get(key), (*path, key)
        if key in old and _is_same(was, value):
            continue
        if isinstance(was, Mapping) and isinstance(value, Mapping) and not (is_schedule(was) or is_schedule(value)):
            less, inner = _differ(was, value, at)
            tried: Tree = nest(at, copy_tree(dict(was)))
            lay(tried, {REMOVE: [format_path(p) for p in less], **nest(at, inner)}, "", {})
            if _is_same(look_up(tried, at), value):
                gone, over[key] = gone + less, inner
                continue
            gone.append(at)
        over[key] = copy_tree(value)
    return gone, over


def _is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal, with their entries in the same order."""
    both = isinstance(a, Mapping) and isinstance(b, Mapping)
    return list(walk_leaves(a)) == list(walk_leaves(b)) if both else bool(a == b and type(a) is type(b))


def _bring_stages(tree: Tree, sources: Sources, change: Change, first: str) -> Tree:
    """Put the stages that a method brings before the first that samples, or before the one that they name."""
    if not change.stages:
        return tree
    stages, places = dict(tree.get("stage") or {"main": {}}), dict[str, str]()
    for name, stage in change.stages.items():
        if name in stages:
            message = f"{change.name} brings a stage {name!r}, and there is one: a method changes those that sample"
            raise RecipeError(f"stage.{format_path((name,))}", message)
        stages[name] = {k: copy_tree(v) for k, v in stage.items() if k != PLACE}
        places[name] = stage.get(PLACE, first or "main")
        sources |= {("stage", name, *p): f"with {change.name}" for p, _ in walk_leaves(stages[name])}
    if not first:
        sources["stage", "main"] = f"with {change.name}"
    return {**tree, "stage": order_entries(stages, places, "stage", "stage")}
