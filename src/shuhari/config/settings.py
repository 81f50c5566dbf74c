"""From a recipe's table to a component: a dataclass whose init fields are the settings, coerced by their annotations.

A field may be a plain value, a schedule (`Ramp`), a `Sampling`, another plain dataclass, a component of a port
(`Buffer`, `Objective`, ...), or a tuple or mapping of those. A plain dataclass whose only required field is a
component (`Term`, `Member`) is written flat: the component's settings are beside its own. The text of a recipe is never
evaluated; `use` may name user code by dotted path or `file.py:Class`, which is imported.
"""

from __future__ import annotations

import json
import re
import traceback
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Union

from shuhari import bounds, ports
from shuhari.config.overlay import USE, RecipeError
from shuhari.config.values import join_key, read_plain, read_ramp
from shuhari.config.words import find_meanings
from shuhari.data import EMPTY, Ramp, Sampling, nearest, with_article
from shuhari.kernel import registry
from shuhari.kernel.abilities import explain_misfit

RENAMED = {("transform 'advantage'", "apart"): "exclude"}  # a setting as it was called before
Table = Mapping[str, Any]
Names = Mapping[str, str]
NOTHING = ("none", "None", "null")  # what people write for a setting that is not set, where it may be that
_PLAIN_CLASS = "is not a dataclass: its init fields are its settings"
DATA = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # ends of files of problems
KINDS: dict[Any, str] = {  # what an annotation asks for
    ports.Task: "task",
    ports.Reward: "reward",
    ports.Curriculum: "curriculum",
    ports.Predictor: "predictor",
    ports.Rollout: "rollout",
    ports.VectorRollout: "rollout",
    ports.Environments: "environments",
    ports.Window: "window",
    ports.Engine: "engine",
    ports.Model: "model",
    ports.Policy: "model",
    ports.Buffer: "buffer",
    ports.Recording: "recording",
    ports.Transform: "transform",
    ports.Objective: "objective",
    ports.Optimiser: "optimiser",
    ports.Learner: "learner",
    ports.Follow: "follow",
    ports.Metric: "metric",
    ports.Study: "study",
    ports.Analysis: "analysis",
    ports.RunAnalysis: "run_analysis",
}


class Settings:
    """A maker of components, which records, by dotted key, the defaults that a recipe did not set.

    `shared` keeps the components made, by place and settings: a later stage with the same settings gets the same
    object. `given`: kind -> plain values for fields of all its components that the class has and the table does not
    set. `in_steps`: whether the stage's budget is in steps, which schedules may need. `whole`: for a run, so that each
    component must have all of its port.
    """

    def __init__(
        self,
        shared: dict[str, Any] | None = None,
        given: Mapping[str, Mapping[str, Any]] = EMPTY,
        *,
        in_steps: bool = True,
        whole: bool = False,
    ) -> None:
        self.shared: dict[str, Any] = {} if shared is None else shared
        self.given, self.in_steps, self.whole = given, in_steps, whole
        self.defaults: dict[str, Any] = {}
        self._beside: dict[str, Collection[str]] = {}  # place of a component -> settings that stand in its table

    # ---------------------------------------------------------------- components

    def make_component(
        self,
        kind: str,
        table: Any,
        where: str,
        default: str | None = None,
        given: Table = EMPTY,
        places: Names = EMPTY,
    ) -> Any:
        """Make the component of a table; `use` picks the class (`default` if it is missing). `given`: plain values for
        fields that the class has and the table does not set; `places`: field -> the dotted key that errors name for it.
        A task is chosen by `name` instead. Raises RecipeError."""
        chosen = "name" if kind == "task" else "use"
        table = {chosen: table} if isinstance(table, str) else table
        if not isinstance(table, Mapping):
            raise RecipeError(where, f"{table!r}: expected a table of settings of {with_article(kind)}, or its name")
        if kind == "task":
            return self.make_task({**({} if default is None else {"name": default}), **table}, where)
        name = table.get("use", default)
        if not isinstance(name, str):
            problem = f"`use` is missing; {_list_names(kind)}" if name is None else f"use = {name!r}: expected a name"
            raise RecipeError(where, problem)
        cls = look_up(kind, name, f"{where}.use" if "use" in table else where)
        rest = {k: v for k, v in table.items() if k != "use"}
        if not isinstance(cls, type) and "function" in registry.names(kind):  # which adapts a function to its port
            cls, rest = look_up(kind, "function", where), {"function": name, **rest}
        given = {**registry.preset(kind, name), **given}
        return self._make_once(kind, cls, rest, where, f"{kind} {name!r}", given, places)

    def make_task(self, table: Mapping[str, Any], where: str = "task") -> Any:
        """Make the task of a table; what follows the first slash of `name` is the task's `path`."""
        name = table.get("name")
        if not isinstance(name, str):
            raise RecipeError(f"{where}.name", f"{name!r}: expected a task's name; {_list_names('task')}")
        rest = {k: v for k, v in table.items() if k != "name"}
        an_id = bool(re.search(r"-v\d+$", name))
        world = name.startswith("gym/") and not an_id and not Path(name.partition(":")[0]).is_file()
        of_file = ".py:" in name and not world
        if name not in registry.names("task") and "/" in name and not of_file:
            name, _, path = name.partition("/")
            of_class = world and ".py:" in path and not path.startswith("world/")
            rest = {"path": f"world/{path}" if of_class else path, **rest}
        if "path" not in rest and an_id:
            meant = re.sub(r"^gym/|\.py(?=:)", "", name)
            raise RecipeError(f"{where}.name", f"no task {name!r}; did you mean 'gym/{meant}'?")
        if name.lower().endswith(DATA) and name not in registry.names("task"):
            raise RecipeError(f"{where}.name", f"no task {name!r}; did you mean 'file/{name}'?")
        cls = look_up("task", name, f"{where}.name")
        if not is_dataclass(cls):
            from gymnasium import Env  # of which only this message knows

            if isinstance(cls, type) and issubclass(cls, Env):
                form = name if ".py:" in name else f"world/{name.replace(':', '.')}"
                message = f"{name!r} is a Gymnasium environment: expected it as 'gym/{form}'"
                raise RecipeError(f"{where}.name", message)
            raise RecipeError(where, f"task {name!r} {_PLAIN_CLASS}")
        return self._make_once("task", cls, rest, where, f"task {name!r}")

    def _make_once(
        self, kind: str, cls: type, table: Table, where: str, what: str, given: Table = EMPTY, places: Names = EMPTY
    ) -> Any:
        given = {**self.given.get(kind, EMPTY), **given}
        if kind == "optimiser":  # its memory belongs to the parameters of one learner
            return self._fit(kind, cls, table, where, what, given, places)
        key = json.dumps([where, f"{cls.__module__}.{cls.__qualname__}", list(table.items()), given], default=str)
        if key not in self.shared:
            before, self.defaults = self.defaults, {}
            self.shared[key] = self._fit(kind, cls, table, where, what, given, places), self.defaults
            self.defaults = before
        made, defaults = self.shared[key]
        self.defaults.update(defaults)
        return made

    def _fit(self, kind: str, cls: type, table: Mapping[str, Any], where: str, *rest: Any) -> Any:
        made = self.make(cls, table, where, *rest)
        if self.whole and (message := explain_misfit(kind, made) or registry.other(kind, cls)):
            raise RecipeError(where, f"{cls.__name__} {message}")
        if self.whole and kind == "task":
            _check_source(made, where)
        return made

    # ---------------------------------------------------------------- dataclasses

    def make(self, cls: Any, table: Table, where: str, what: str, given: Table = EMPTY, places: Names = EMPTY) -> Any:
        """Make `cls` with the settings of a table; RecipeError with the key of what is unknown, wrong or missing."""
        if not is_dataclass(cls) or not isinstance(cls, type):
            raise RecipeError(where, f"{what} {_PLAIN_CLASS}")
        if not isinstance(table, Mapping):
            raise RecipeError(where, f"{table!r}: expected a table of settings of {what}")
        own = {f.name: f for f in fields(cls) if f.init}
        hints = bounds.hints(cls, bare=True)
        for key in table:
            if key not in own:
                known = [*own, *self._beside.get(where, ())]
                raise RecipeError(join_key(where, key), f"no setting of {what}; {_suggest(what, key, known)}")
        values = {k: v for k, v in given.items() if k in own and k not in table}
        for key, raw in table.items():
            per = "decision" if cls is Sampling and key == "temperature" else "step"
            at = places.get(key) or join_key(where, key)
            values[key] = self.convert(hints[key], raw, at, per)
            if values[key] != own[key].default and (message := bounds.wrong(bounds.hints(cls)[key], values[key])):
                raise RecipeError(at, f"{raw!r}: {message}")
        for name, f in own.items():
            if name not in values:
                self._note_default(f, hints[name], join_key(where, name), what)
        try:
            return cls(**values)
        except MemoryError as error:
            message = f"{what} wants more memory than there is: expected smaller sizes ({error})"
            raise RecipeError(where, message) from error
        except (ValueError, TypeError, LookupError, OSError, ArithmeticError) as error:
            why = error.args[0] if isinstance(error, LookupError) and error.args else error
            raise RecipeError(where, str(why)) from error

    def check(self, hint: Any, raw: Any, where: str) -> Any:
        """Convert a setting to the type of `hint`; RecipeError if it is not within its bounds."""
        value = self.convert(bounds.bare(hint), raw, where)
        if message := bounds.wrong(hint, value):
            raise RecipeError(where, f"{raw!r}: {message}")
        return value

    def _make_plain(self, cls: type, table: Mapping[str, Any], where: str, given: Mapping[str, Any] = EMPTY) -> Any:
        """Make a dataclass that is not itself a component; its table is flat if it requires only one component."""
        own, hints = {f.name: f for f in fields(cls) if f.init}, bounds.hints(cls, bare=True)
        flat = _find_flat(own, hints)
        if flat and flat not in table:
            inner = {k: v for k, v in table.items() if k not in own}
            self._beside[where] = own.keys() - {flat}
            given = {**given, flat: self.make_component(KINDS[hints[flat]], inner, where, where.rpartition(".")[2])}
            table = {k: v for k, v in table.items() if k in own}
        return self.make(cls, table, where, cls.__name__, given)

    def _note_default(self, f: Field[Any], hint: Any, where: str, what: str) -> None:
        if f.default is not MISSING:
            if f.default != EMPTY and (not is_dataclass(f.default) or isinstance(f.default, Ramp | Sampling)):
                self.defaults[where] = f.default
        elif f.default_factory is MISSING:
            usual = USE.get(KINDS.get(hint, ""))
            more = f"; --set {where}.use={usual} gives the usual one" if usual else ""
            raise RecipeError(where, f"{what} needs {f.name!r} ({f.type}), which the recipe does not give{more}")

    # ---------------------------------------------------------------- values

    def convert(self, hint: Any, raw: Any, where: str, per: str = "step") -> Any:
        """Convert a raw TOML value to the type of the annotation."""
        choices = [h for h in _list_choices(hint) if h is not type(None)]
        if raw in NOTHING and len(choices) < len(_list_choices(hint)) and not any(map(_is_text, choices)):
            return None
        if hint is Any or object in choices:
            return raw
        for h in choices:
            if h in KINDS:
                return self.make_component(KINDS[h], raw, where, USE.get(KINDS[h]))
        if isinstance(raw, Mapping):
            if Ramp in choices:
                return read_ramp(raw, where, per, in_steps=self.in_steps)
            for h in choices:
                if is_dataclass(h) and isinstance(h, type):
                    return self._make_plain(h, raw, where)
        elif choices and all(is_dataclass(h) and h is not Ramp for h in choices):
            keys = ", ".join(f"{f.name} = .." for f in fields(choices[0]) if f.init)
            raise RecipeError(where, f"{raw!r}: expected a table {{{keys}}}")
        for h in choices:
            origin, inner = typing.get_origin(h), typing.get_args(h)
            table = isinstance(raw, Mapping) and isinstance(origin, type) and issubclass(origin, Mapping)
            if table and _is_structured(inner[-1]):
                return {k: self._convert_named(inner[-1], v, join_key(where, k), k, raw) for k, v in raw.items()}
            if isinstance(raw, list) and origin is tuple and _is_structured(inner[0]):
                return tuple(self.convert(inner[0], v, f"{where}.{i}") for i, v in enumerate(raw))
        return read_plain([h for h in choices if h is not Ramp], raw, where)

    def _convert_named(self, hint: Any, raw: Any, where: str, name: str, beside: Collection[str]) -> Any:
        """Convert an entry of a table of named things; one that lacks a required setting may be a misspelt name of
        another."""
        if hint in KINDS:
            return self.make_component(KINDS[hint], raw, where, name)
        if not isinstance(raw, Mapping):
            raise RecipeError(where, f"{raw!r}: expected a table")
        own, hints = {f.name: f for f in fields(hint) if f.init}, bounds.hints(hint, bare=True)
        given = {"trains": (name,)}
        lost = [n for n in _list_required(own) if n not in {**given, **raw}] if _find_flat(own, hints) is None else []
        near = nearest(name, {*beside} - {name})
        if lost and near.startswith("did you mean"):
            raise RecipeError(where, f"it has no {lost[0]!r}, which a new entry needs; {near}")
        return self._make_plain(hint, raw, where, given)


# ------------------------------------------------------------------------------------------------ helpers


def look_up(kind: str, name: str, where: str) -> type:
    """Return the class that `use = name` means; RecipeError with the nearest name, or why user code cannot be
    imported."""
    try:
        return registry.find(kind, name)
    except LookupError as error:
        raise RecipeError(where, str(error.args[0] if error.args else error)) from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f" ({last.filename}, line {last.lineno})" if last.filename.endswith(".py") else ""
        raise RecipeError(where, f"{name!r} cannot be imported: {type(error).__name__}: {error}{at}") from error


def _check_source(task: Any, where: str) -> None:
    """Raise RecipeError if the training problems of a task are not a Source; the problems are not read, as that is
    costly."""
    source = task.problems("train")
    if lack := explain_misfit("source", source):
        given = f"{type(task).__name__}.problems('train') gave {with_article(type(source).__name__)}, which {lack}"
        raise RecipeError(where, f"{given}; expected a Source, such as shuhari.tasks.source.Listed(problems)")


def _find_flat(own: Mapping[str, Field[Any]], hints: Mapping[str, Any]) -> str | None:
    """Return the only required setting, if it is a component: its settings are beside the others."""
    required = _list_required(own)
    return required[0] if len(required) == 1 and hints[required[0]] in KINDS else None


def _list_required(own: Mapping[str, Field[Any]]) -> list[str]:
    return [n for n, f in own.items() if f.default is MISSING and f.default_factory is MISSING]


def _list_choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_text(hint: Any) -> bool:
    """Whether a word can be a value of an annotation, so that it cannot mean "none"."""
    return hint is str or typing.get_origin(hint) is typing.Literal


def _is_structured(hint: Any) -> bool:
    return hint in KINDS or (is_dataclass(hint) and isinstance(hint, type))


def _suggest(what: str, key: str, own: Collection[str]) -> str:
    """Return what to write instead of an unknown setting, also if it is another library's name for one."""
    if (what, key) in RENAMED:
        return f"it is called {RENAMED[what, key]!r} now"
    near, meant = nearest(key, own), find_meanings((key,))
    return near if near.startswith("did you mean") or not meant else f"what others call so is {' or '.join(meant)} here"


def _list_names(kind: str) -> str:
    return f"known: {', '.join(registry.names(kind)) or 'none'}"
