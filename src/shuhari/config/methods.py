"""What a method changes, as statements about a stage of any recipe.

A recipe with `on`, its usual base, is a method: it has only the changes of the paper (`laid` lays it over a recipe). In
it

- `part.policy` is the part that trains the role `policy`, whatever its name in the base, and its term `loss` the loss
  of the policy gradient, which the base must have;
- settings of a component come with its `use`: if the base has another component, the whole table replaces it, but
  `reduce`, `stream` and `weight` of a term, `n` and `sampling` of a rollout and the place of a transform stay. Without
  `use` they change the component of the base: by that name, or in the only place; if it has none, they are refused;
- `wraps = "<field>"` puts the component of the base into that field; `like = "<role>"` copies the architecture of a
  role; `remove` removes an entry, if it exists; a `[[stage]]` is put before the first that samples, or before the one
  that its `before` names;
- `extends` names another method, or a recipe that itself extends the method's usual base: the changes of that recipe,
  except for the base's own stages, then belong to the method (`list_tables`).

Left out: contradictions between the statements of two methods (`contradictions`). No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shuhari.config.overlay import (
    BUDGETS,
    KIND_IN,
    NEEDS,
    REMOVE,
    USE,
    Path,
    RecipeError,
    Tree,
    format_path,
    is_schedule,
    leave_learner,
    list_kept,
    list_removed,
    look_up,
    merge_overlays,
    walk_leaves,
)
from shuhari.data import EMPTY, nearest
from shuhari.kernel.kinds import LOSS
from shuhari.kernel.registry import declared

POLICY = "policy"
OWN = ("format", "name", "summary", "paper", "claim", "on", "extends", "needs", "stage")  # what is not laid
SECTIONS = ("models", "engine", "curriculum", "rollout", "reward", "collect", "transform", "buffer",
            "part", "follow", "evaluate")  # fmt: skip
REMOVED = object()  # the value of a place at which nothing is to stand
BEDS = "it is the base's to say; numbers of a test-bed stand in the claim's `settings`"


@dataclass(frozen=True, eq=False)
class Change:
    """The changes of a method: its `table`, what it `needs` of a base, and the `stages` that it adds, by name; `on`:
    its usual base."""

    name: str
    on: str
    table: Tree
    needs: Mapping[str, Any] = EMPTY
    stages: Mapping[str, Any] = EMPTY

    @classmethod
    def of(cls, name: str, chain: Sequence[Mapping[str, Any]]) -> Change:
        """Make the changes from the tables of a method and of those that it extends, youngest first, with their stages
        by name. RecipeError for a key that no method may have."""
        if not all("on" in one for one in chain):
            raise RecipeError("extends", f"the method {name} extends a recipe that is no method (it has no `on`): "
                              "expected a method")  # fmt: skip
        table = merge_overlays(
            {k: v for k, v in one.items() if k not in OWN or one is chain[0] or k in ("needs", "stage")}
            for one in reversed(chain)
        )
        for key in table:
            if key in (*BUDGETS, "task", "study", "threads", "seed", "micro_batch", "learner", "store"):
                raise RecipeError(key, f"in the method {name}: {BEDS}")
            if key not in (*SECTIONS, *OWN, REMOVE):
                raise RecipeError(key, f"no such key in a method; {nearest(key, (*SECTIONS, *OWN, REMOVE))}")
        for path in (("part", POLICY, "optimiser", "lr"), ("buffer", "size")):
            if look_up(table, path) is not None and "use" not in table.get("buffer", EMPTY):
                raise RecipeError(format_path(path), f"in the method {name}: {BEDS}")
        if not isinstance(on := table.get("on"), str):
            raise RecipeError("on", f"{on!r} in {name}: expected a recipe's name, or a path ending in .toml")
        needs = table.get("needs", EMPTY)
        for key in needs if isinstance(needs, Mapping) else ["needs"]:
            if key not in NEEDS:
                raise RecipeError(f"needs.{key}", f"no such need of a method; {nearest(key, NEEDS)}")
        own = {k: v for k, v in table.items() if k in (*SECTIONS, REMOVE)}
        return cls(name, on, own, {**derive_needs(own), **needs}, table.get("stage", {}))


def list_tables(chain: Sequence[tuple[str, Tree]]) -> list[Tree]:
    """Return the tables of a method and of those that it `extends`, youngest first, from a chain of (name, table). From
    a recipe that builds on the method's usual base, only its components: not its titles, nor its changes to stages of
    that base that do not sample."""
    on = chain[0][1].get("on")
    end = next((i for i, (name, _) in enumerate(chain) if name == on), len(chain))
    keys, tables = (*SECTIONS, REMOVE), list[Tree]()
    for _, table in chain[:end]:
        own = end < len(chain) and "on" not in table
        tables.append({"on": on, **{k: v for k, v in table.items() if k in keys}} if own else table)
    return tables


@dataclass(frozen=True)
class Statement:
    """A statement of the method `by`: `value` belongs at `path` of a stage. The value is a leaf (as are lists and
    schedules), REMOVED, or, if `whole`, all settings of a component. `key`: the place as written in the method; `slot`:
    the component concerned. `kept`: a setting that any component in that place has. `held`: the base has it already,
    and no other method may change it."""

    by: str
    path: Path
    value: Any
    key: Path
    slot: Path = ()
    whole: bool = False
    kept: bool = False
    held: bool = False


@dataclass(frozen=True)
class Wrap:
    """A statement of the method `by`: it puts the component at `slot` into the field `into` of another, `table`."""

    by: str
    slot: Path
    into: Path
    table: Tree


@dataclass
class Places:
    """The places in a resolved `stage` of the recipe `base` that a method refers to."""

    base: str
    stage: Mapping[str, Any]

    def find(self, path: Path) -> Path:
        """Translate a key of a method, or of a setting, into one of the stage. RecipeError if the base has no such
        place."""
        if path[:2] == ("part", POLICY):
            part = self.part
            if path[2:4] == ("terms", LOSS):
                self._check_loss(part)
            return part + path[2:]
        if path[0] == "part" and len(path) > 1:
            return self.part[:-2] + path
        if path[0] in ("buffer", "transform") and "part" not in self.stage and "learner" in self.stage:
            return self.part[:2] + path
        return path

    @cached_property
    def part(self) -> Path:
        """The part that trains the policy. RecipeError unless there is exactly one."""
        learners = self.stage.get("learner") or EMPTY
        tables: dict[Path, Any] = {(): self.stage, **{("learner", name): one for name, one in learners.items()}}
        names = [(*at, "part", p)
                 for at, one in tables.items()
                 for p, part in (one.get("part") or EMPTY).items()
                 if POLICY in part.get("trains", [p])]  # fmt: skip
        if len(names) != 1:
            has = f"{len(names)} parts" if names else "no part"
            raise RecipeError("part", f"{self.base} has {has} that train the role {POLICY!r}: expected one")
        return names[0]

    def _check_loss(self, part: Path) -> None:
        terms = (look_up(self.stage, part) or EMPTY).get("terms", EMPTY)
        if LOSS not in terms:
            place = format_path((*part, "terms", LOSS))
            message = f"{self.base} has no term of that name, which is the loss of the policy gradient"
            instead = "expected a recipe that has one, such as baselines/grpo or baselines/ppo_cartpole"
            raise RecipeError(place, f"{message}; its terms: {', '.join(terms) or '(none)'}; {instead}")


def derive_needs(table: Mapping[str, Any]) -> Tree:
    """Return the needs of a method that its components declare: `groups`, the most samples of a problem that one of
    them compares (`least_n`). One that depends on settings is no constant of its class, and is unknown here."""
    said = [declared(kind, name, "least_n") for kind, name in _list_components(table)]
    most = max((n for n in said if isinstance(n, int)), default=1)
    return {"groups": most} if most > 1 else {}


def _list_components(table: Mapping[str, Any], at: Path = ()) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the components in a table that may compare samples: transforms, objectives, the rollout."""
    default = find_default(at) if at else None
    if default is not None and _find_section(at) in KIND_IN:
        yield KIND_IN[_find_section(at)], table.get("use", default)
        return
    for key, value in table.items():
        if isinstance(value, Mapping) and not is_schedule(value):
            yield from _list_components(value, (*at, key))


def drop_places(table: Tree, places: Places) -> list[Path]:
    """Remove, in place, each `before` of a changed stage that names an entry missing in this base; return their paths.
    An entry without a place goes to the end. RecipeError for a name that no base could have."""
    dropped = []
    for at in [(), *(("learner", name) for name in table.get("learner") or EMPTY)]:
        for section in ("collect", "transform"):
            entries: Any = look_up(table, (*at, section)) or EMPTY
            for name, entry in entries.items():
                if isinstance(entry, dict) and "before" in entry and entry["before"] not in entries:
                    path = (*at, section, name, "before")
                    there = {*entries, *(look_up(places.stage, path[:-2]) or EMPTY)} - {name}
                    _check_known("transform", entry.pop("before"), path, there, places.base)
                    dropped.append(path)
    return dropped


def check_removal(one: Statement, places: Places) -> None:
    """Raise RecipeError if a method removes a transform or a term by a name that no base could have."""
    section = _find_section(one.path)
    if one.value is REMOVED and section in KIND_IN and one.path == one.slot and len(one.path) > 1:
        there = look_up(places.stage, one.path[:-1]) or EMPTY
        _check_known(KIND_IN[section], one.path[-1], one.key, there, places.base)


def _check_known(kind: str, name: Any, where: Path, there: Collection[str], base: str) -> None:
    """Raise RecipeError for the name of an entry that is neither `there` nor a component: an entry without another name
    has that of its component."""
    from shuhari.kernel import registry

    if name not in there and name not in (components := registry.names(kind)):
        message = f"{name!r} is no {kind}, and {base} has no entry of that name"
        raise RecipeError(format_path(where), f"{message}; {nearest(str(name), {*there, *components})}")


def is_sampling(stage: Mapping[str, Any]) -> bool:
    """Whether some learner of a stage learns from what the loop samples."""
    return any(declared("buffer", use, "samples") is not False for use in _list_buffers(stage))


def is_asking(stage: Mapping[str, Any]) -> bool:
    """Whether the loop or a buffer uses the rollout of a stage."""
    return is_sampling(stage) or any(declared("buffer", use, "asks") for use in _list_buffers(stage))


def _list_buffers(stage: Mapping[str, Any]) -> list[str]:
    own = stage.get("buffer") or EMPTY
    buffers = [own] if stage.get("part") else []
    buffers += [one.get("buffer") or own for one in (stage.get("learner") or EMPTY).values()]
    return [b.get("use", USE["buffer"]) for b in buffers or [own]]


# ------------------------------------------------------------------------------------------------ statements


def list_statements(change: Change, places: Places) -> list[Statement | Wrap]:
    """Return the changes that a method makes to a stage, in order. Raises RecipeError, naming the method, if the base
    lacks a component that the method changes."""
    try:
        removed = [Statement(change.name, at := places.find(key), REMOVED, key, at if find_default(at) else ())
                   for key in list_removed(change.table)]  # fmt: skip
        rest = [(key, value) for key, value in change.table.items() if key != REMOVE]
        return removed + [
            one
            for key, value in rest
            for one in _read_stage((key,), value, change.name, places)
        ]
    except RecipeError as error:
        if change.name in str(error):
            raise
        raise RecipeError(error.where, f"{error.problem} (with {change.name})") from None


def _read_stage(key: Path, value: Any, by: str, places: Places) -> Iterator[Statement | Wrap]:
    at = places.find(key)
    table = isinstance(value, Mapping) and not is_schedule(value)
    default = find_default(at)
    if not table:
        yield Statement(by, at, value, key, at if default else ())
    elif default is not None:
        yield from _read_component(at, dict(value), key, by, places, default)
    elif at[:1] == ("models",) and len(at) == 2 and look_up(places.stage, at) is None:
        yield Statement(by, at, _fill_role(value, key, places), key, at, whole=True)
    elif at[-2:-1] == ("part",) and look_up(places.stage, at) is None:
        yield Statement(by, at, dict(value), key, at, whole=True)
    elif not value:
        yield Statement(by, at, {}, key)
    else:
        for name, one in value.items():
            yield from _read_stage((*key, name), one, by, places)


def find_default(at: Path) -> str | None:
    """Return the default component at a place; None if no component belongs there."""
    at = leave_learner(at)
    if len(at) == 1:
        return USE.get(at[0])
    if len(at) == 2 and at[0] in ("collect", "transform", "reward", "follow") and at != ("reward", "weights"):
        return "ema" if at[0] == "follow" else at[1]
    return at[3] if len(at) == 4 and at[0] == "part" and at[2] == "terms" else None


def _read_component(
    at: Path, table: Tree, key: Path, by: str, places: Places, default: str
) -> Iterator[Statement | Wrap]:
    names = list_kept(at)
    kept = {k: table.pop(k) for k in names if k in table}
    use, wraps = table.pop("use", None), table.pop("wraps", None)
    there = look_up(places.stage, at)
    if use is None and table and key[0] != "follow":
        at = _find_entry(at, default, table, key, by, places)
    elif wraps is not None:
        yield Wrap(by, at, tuple(str(wraps).split(".")), {"use": use or default, **table})
        table = {}
    elif use is not None or not kept or (there is None and names == ("before",)):
        use = use or default
        if (there is None and len(at) > 1) or use != (there or EMPTY).get("use", default):
            yield Statement(by, at, {"use": use, **table}, key, at, whole=True)
            table = {}
        else:
            yield Statement(by, (*at, "use"), use, (*key, "use"), at, held=True)
    for path, value in walk_leaves(table, whole=is_schedule):
        yield Statement(by, (*at, *path), value, (*key, *path), at)
    for path, value in walk_leaves(kept, whole=is_schedule):
        yield Statement(by, (*at, *path), value, (*key, *path), at, kept=True)


def _find_entry(at: Path, default: str, table: Tree, key: Path, by: str, places: Places) -> Path:
    """Return where the base has the component that a method changes; in a section with a single place, that place."""
    if at[-2:] == ("terms", LOSS):  # whichever loss the base has there
        return at
    if len(at) == 1:
        return at
    above = look_up(places.stage, at[:-1]) or EMPTY
    found = {k: v.get("use", k) for k, v in above.items() if isinstance(v, Mapping)}
    same = [k for k, use in found.items() if use == default]
    if len(same) != 1:
        has = ", ".join(found.values()) or "nothing"
        message = f"{by} sets {', '.join(table)} of {default!r}, which {places.base} has not (there is {has})"
        raise RecipeError(format_path(key), f"{message}; to add one, write use = {default!r}")
    return (*at[:-1], same[0])


def _fill_role(table: Mapping[str, Any], key: Path, places: Places) -> Tree:
    """Return the model of a role, with the architecture of another if it is `like` it."""
    if (like := table.get("like")) is None:
        return dict(table)
    of = look_up(places.stage, ("models", like))
    if not isinstance(of, Mapping):
        known = nearest(str(like), places.stage.get("models", EMPTY))
        raise RecipeError(f"{format_path(key)}.like", f"{like!r}: no such role in {places.base}; {known}")
    copied = {k: v for k, v in of.items() if k not in ("use", "init", "same_as", "from", "frozen", "lora")}
    return {**copied, **{k: v for k, v in table.items() if k != "like"}}


def _find_section(at: Path) -> str:
    at = leave_learner(at)
    return "terms" if at[-2:-1] == ("terms",) else at[0]
