"""The differences between a stage of a recipe and another stage, setting by setting, as plain values.

If a component is replaced, its new name is shown, and what happens to its settings. Left out: the choice of the stages
to compare (`explaining`), and the text for the terminal (`cli.explaining`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from shuhari.config.overlay import NAMED, USE, Path, format_path, is_schedule, list_kept, look_up, walk_leaves
from shuhari.config.recipe import Recipe
from shuhari.data import EMPTY
from shuhari.desk.algorithm import Places, find_component, find_holder, summarise
from shuhari.desk.components import describe_setting
from shuhari.desk.origins import Removals, find_origin, find_remover


@dataclass(frozen=True)
class Change:
    """A setting that differs: its `value` and the `base`'s (None: it has none), its description (`says`), and its
    `origin`. `kind`: "set", "removed" (a table of the base is gone), or "kept" (the base's component is moved here).
    `note`, `base_note`: origins of the two values, if not from a file or unclear ("the default").
    """

    path: Path
    value: Any
    base: Any
    says: str
    origin: str
    kind: str = "set"
    note: str = ""
    base_note: str = ""

    @property
    def key(self) -> str:
        return format_path(self.path)


@dataclass(frozen=True)
class Differ:
    """Compares a stage of a recipe with `table`, the corresponding stage of `base`; for a stage that is `new`, with the
    base's sections. `places`, `stood`: the components of the two stages by place."""

    recipe: Recipe
    base: Recipe | None
    stage: str
    places: Places
    stood: Places
    table: Mapping[str, Any]
    new: bool = False
    removals: Removals = ()

    def walk(self, old: Mapping[str, Any], new: Mapping[str, Any], path: Path = ()) -> Iterator[Change]:
        """Yield the differences between two tables at one path."""
        for key, value in new.items():
            at = (*path, key)
            was: Any = old.get(key)
            if not _is_table(value):
                if key not in old or was != value:
                    yield self._set_over(at, value, old)
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
        """Yield everything in a table that is new in its place, the name of a component first. `was`: the component
        that it replaces. within: it belongs to a component that is itself new, so it replaces nothing."""
        thing, chosen = find_component(self.places, at), "name" if _is_task(at) else "use"
        stood = bool(self.table) and not within and (bool(was) or (len(at) == 1 and at[0] in USE))
        other = False
        if chosen in table or (thing is not None and "init" not in table and "same_as" not in table):
            name = _name(table, at)
            other = stood and name != _name(was, at)
            if not stood or other:
                yield self._set((*at, chosen), name, _name(was, at) if stood else None, summarise(thing))
        for key, value in table.items():
            inner = (*at, key)
            if key == chosen or (not within and key in list_kept(at) and was.get(key) == value):
                continue
            if not _is_table(value):
                yield self._set_over(inner, value, was) if stood else self._set(inner, value, None)
            elif (stood or was) and _strip(value, inner) == _strip(was, at):
                said = summarise(find_component(self.places, inner))
                yield self._set(inner, _name(value, inner), None, said, "kept")
            else:
                yield from self._put(value, inner, was, within=True)
        if other and not _holds(table, _strip(was, at), at):
            yield from self._drop(table, at, was, chosen)

    def _drop(self, table: Mapping[str, Any], at: Path, was: Mapping[str, Any], chosen: str) -> Iterator[Change]:
        """Yield what happens to the settings of a replaced component: those set in a file are removed or get the new
        default, and defaults that no file sets are shown if they differ."""
        new, old = find_component(self.places, at), find_component(self.stood, at)
        by, default = find_origin(self.recipe, self.stage, (*at, chosen)), f"the default of {_name(table, at)}"
        said = {p: v for p, v in walk_leaves(was, whole=is_schedule) if p[0] != chosen and p[0] not in list_kept(at)}
        for path, value in said.items():
            if look_up(table, path) is not None:
                continue
            place = (*at, *path)
            whose = f"of {find_origin(self.base, self.stage, place)}" if self.base else ""
            if (now := _read(new, path)) is None:
                yield Change(place, None, value, "", by, "removed", base_note=whose)
            elif now != value:
                yield Change(place, now, value, self._describe(place), by, note=default, base_note=whose)
        for name in _list_fields(new):
            now, before = _read(new, (name,)), _read(old, (name,))
            silent = name not in table and not any(path[0] == name for path in said)
            if silent and None not in (now, before) and now != before:
                place = (*at, name)
                yield Change(place, now, before, self._describe(place), by, note=default, base_note="the default")

    def _remove(self, value: Any, at: Path) -> Iterator[Change]:
        default = self._find_default(self.places, at)
        if len(at) == 1 and at[0] in NAMED and _is_table(value):
            for name, entry in value.items():
                yield from self._remove(entry, (*at, name))
        elif _is_table(value):
            yield self._set(at, None, _name(value, at), "", "removed")
        elif default is None:
            yield self._set(at, None, value, "", "removed")
        elif default != value:
            by = find_remover(self.recipe, self.stage, at, self.removals)
            yield Change(at, default, value, self._describe(at), by, note="the default", base_note=self._whose)

    def _set_over(self, at: Path, value: Any, was: Mapping[str, Any]) -> Change:
        """Return the change of a value, from the one in `was`, or from the default of the base's component."""
        if at[-1] in was:
            return self._set(at, value, was[at[-1]], base_note=self._whose)
        default = self._find_default(self.stood if self.stood else self.places, at)
        return self._set(at, value, default, base_note="" if default is None else "the default")

    @property
    def _whose(self) -> str:
        return "at its top" if self.new else ""

    def _set(
        self, at: Path, value: Any, base: Any, says: str | None = None, kind: str = "set", base_note: str = ""
    ) -> Change:
        says = self._describe(at) if says is None else says
        removed = kind == "removed"
        by = (find_remover(self.recipe, self.stage, at, self.removals) if removed
              else find_origin(self.recipe, self.stage, at))  # fmt: skip
        return Change(at, value, base, says, by, kind, base_note=base_note)

    def _describe(self, at: Path) -> str:
        holder = find_holder(self.places, at)
        return describe_setting(type(holder), at[-1]) if holder is not None else ""

    def _find_default(self, places: Places, at: Path) -> Any:
        """Return the default of a setting; None if it has none."""
        holder = find_holder(places, at)
        found = {f.name: f.default for f in fields(holder)} if holder is not None and is_dataclass(holder) else {}
        default = found.get(at[-1], MISSING)
        return None if default is MISSING or default == EMPTY else default


def _list_fields(thing: Any) -> list[str]:
    return [f.name for f in fields(thing) if f.init] if is_dataclass(thing) else []


def _read(thing: Any, path: Path) -> Any:
    """Read a plain setting of a made component, also inside its fields; None if it has none."""
    for key in path:
        if isinstance(thing, Mapping):
            thing = thing.get(key)
        else:
            thing = getattr(thing, key, None) if key in _list_fields(thing) else None
    return thing if isinstance(thing, bool | int | float | str) else None


def _holds(table: Mapping[str, Any], was: Mapping[str, Any], at: Path) -> bool:
    """Whether a component is in a field of another."""
    inner = ((value, (*at, key)) for key, value in table.items() if _is_table(value))
    return any(_strip(value, place) == was or _holds(value, was, place) for value, place in inner)


def keep_evaluation(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stage without those settings of [evaluate] that merely repeat the base's own rollout and sampling."""
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
    """Return the name of the component of a table; for other tables, their own name."""
    return str(table.get("name" if _is_task(at) else "use", USE.get(at[-1], at[-1])))


def _strip(table: Mapping[str, Any], at: Path) -> dict[str, Any]:
    """Return a component's table with its name, without settings that any component in that place has."""
    return {"use": _name(table, at), **{k: v for k, v in table.items() if k not in list_kept(at)}}
