"""Rows, rewards and environments that a program passes to `train`, and the names that a recipe records for them.

A function or class that other processes can import is recorded by its dotted path or as `file.py:name`; any other as
`given/<name>-<digest of its code>`, which only a process holding it can resolve. Rows become a file in the run's
folder, named by its content, so that the run does not depend on the folder and can be moved. Left out: pickling;
digests of what a function calls or an instance keeps in objects.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe
from shuhari.data import EMPTY
from shuhari.kernel import registry
from shuhari.rollouts.function_tool import FunctionTool
from shuhari.store.files import replace_file
from shuhari.tasks.messages import freeze_value

ROW = "a mapping with `prompt` or `messages`, and `answer`, `completion`, or `chosen` and `rejected`"

SEVERAL = "give the prompt several times, in a list, with greedy=False"
GENERATE = {  # arguments of generate in other libraries -> what is meant here
    **dict.fromkeys(("max_new_tokens", "max_tokens", "max_length", "max_completion_length"), "it is max_new here"),
    **dict.fromkeys(("n", "num_return_sequences", "num_generations"), SEVERAL),
    "do_sample": "greedy=False samples",
    "temperature": "greedy=False samples, at the temperature of the run",
}


@dataclass(frozen=True)
class Handed:
    """Arguments of `train` as parts of a recipe: `settings` by section; `files`: name -> text, for the run's folder."""

    settings: Mapping[str, Any] = EMPTY
    files: Mapping[str, str] = field(default=EMPTY, repr=False)

    @contextmanager
    def placed(self, folder: Path) -> Iterator[None]:
        """Write the files that do not exist yet, and remove them again if no run in the folder uses them. Raises
        RecipeError if an existing file does not match its name."""
        made = [p for p in (folder, *folder.parents) if self.files and not p.exists()]
        new = [folder / name for name in self.files if not (folder / name).is_file()]
        for name, text in self.files.items():
            path = folder / name
            if path not in new and path.read_text(encoding="utf-8") != text:
                raise RecipeError("dataset", f"{path} was changed after it was written: move it away")
            registry.hold(name, path)
        try:
            for path in new:
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(path, [self.files[path.name].encode()])
            yield
        finally:
            recipe = folder / "recipe.toml"
            taken = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
            with suppress(OSError):  # a folder that is not empty stays
                for path in new:
                    if path.name not in taken:
                        path.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()


@contextmanager
def without_functions(recipe: Recipe) -> Iterator[None]:
    """Replace missing functions of rewards and tools by stubs while inside, so that a policy can be loaded without
    them."""
    tables = [recipe.tree, *recipe.tree.get("stage", {}).values()]
    used = {
        str(t["use"])
        for s in tables
        for t in s.get("reward", {}).values()
        if isinstance(t, dict) and "use" in t
    }
    worlds = [s.get("rollout", {}).get("environments", {}) for s in tables]
    called = {
        str(name)
        for w in worlds
        if isinstance(w, dict) and w.get("use") == "tools"
        for name in w["tools"]
    }
    lost = []
    for name in (*used, *called):
        try:
            registry.find("reward" if name in used else "environments", name)
        except LookupError:
            lost.append(name)
            registry.hold(name, _not_found if name in used else _make_lost_tool(len(lost)))
    try:
        yield
    finally:
        for name in lost:
            registry.hold(name, None)


def _not_found(**columns: Any) -> Any:
    raise RuntimeError("the function of this reward was not found as the policy was loaded")


def _make_lost_tool(number: int) -> Any:
    def lost() -> str:
        """A tool that was not found as the policy was loaded."""
        raise RuntimeError(lost.__doc__)

    lost.__name__ = f"lost{number}"
    return lost


def take(
    dataset: Any = None, reward: Any = None, env: Any = None, beside: Collection[str] = (), tools: Sequence[Any] = ()
) -> Handed:
    """Convert the arguments of `train`, and hold them in this process under names. beside: the keys of the other
    settings. Raises RecipeError for arguments that cannot be trained on."""
    tables: dict[str, Any] = {}
    files: dict[str, str] = {}
    if dataset is not None and env is not None:
        raise RecipeError("env", "given beside dataset: expected one of them, the problems or the environment")
    if env is not None and reward is not None:
        message = "given beside env, whose own reward is trained: wrap the environment (gymnasium.RewardWrapper)"
        raise RecipeError("reward", message)
    if env is not None and tools:
        raise RecipeError("tools", "given beside env: expected one of them; an environment brings its own tools")
    if isinstance(dataset, str | Path):
        tables["task.name"] = f"file/{dataset}"
    elif dataset is not None:
        text = "".join(f"{json.dumps(row)}\n" for row in _list_rows(dataset))
        name = f"dataset-{_digest(text)}.jsonl"
        files[name], tables["task"] = text, {"name": f"file/{name}"}
    if isinstance(env, str):
        tables["task.name"] = env if env.startswith("gym/") else f"gym/{env}"
    elif env is not None:
        tables["task"] = {"name": "gym", "path": f"world/{hold_environment(env)}"}
    if reward is not None:
        tables["reward"] = _list_rewards(reward)
    if tools:
        tables["rollout.use"] = "episode"  # dotted, so that other settings of `rollout` are laid over it
        tables["rollout.environments"] = {"use": "tools", "tools": _list_tools(tools)}
    keys = ("task", "task.name")
    if {*keys} & tables.keys() and (given := next((key for key in keys if key in beside), "")):
        taken = "dataset" if env is None else "env"
        raise RecipeError(given, f"given together with {taken}, which would replace it: expected one of them")
    return Handed(tables, files)


# ------------------------------------------------------------------------------------------------ rows


def _list_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows as JSON; those of a mapping of data sets (split -> rows) with their `split`."""
    if isinstance(dataset, Mapping):
        for split, rows in dataset.items():
            if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
                raise RecipeError("dataset", f"{split!r} is {_shorten(rows)}: expected a list of rows, each {ROW}")
            yield from ({"split": str(split), **row} for row in _list_rows(list(rows)))
        return
    if not isinstance(dataset, Iterable):
        raise RecipeError("dataset", f"{_shorten(dataset)}: expected a list of rows, each {ROW}")
    count = 0
    for count, row in enumerate(dataset, 1):
        if not isinstance(row, Mapping):
            frame = "; of a pandas frame: frame.to_dict('records')" if type(dataset).__name__ == "DataFrame" else ""
            raise RecipeError("dataset", f"row {count} is {_shorten(row)}: expected {ROW}{frame}")
        yield {str(key): _to_json(value, f"row {count}", str(key)) for key, value in row.items()}
    if not count:
        raise RecipeError("dataset", f"it has no rows: expected a list of them, each {ROW}")


def _to_json(value: Any, place: str, key: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _to_json(v, place, key) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(v, place, key) for v in value]
    try:
        plain = freeze_value(value, key)
    except ValueError as error:
        raise RecipeError("dataset", f"{place}: {error}") from None
    if isinstance(plain, bytes):
        raise RecipeError("dataset", f"{place}: `{key}` is of type bytes: expected numbers, text, lists or objects; "
                          "leave the column out")  # fmt: skip
    return plain


# ------------------------------------------------------------------------------------------------ functions and classes


def _list_rewards(reward: Any) -> dict[str, Any]:
    """Return the [reward] table for a function, several, or name -> function; tables and texts in a mapping are
    kept."""
    if isinstance(reward, Mapping):
        return {str(k): {"use": hold(v)} if callable(v) else v for k, v in reward.items()}
    found: dict[str, Any] = {}
    for one in reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]:
        if isinstance(one, str | Path) and (Path(one).expanduser() / "config.json").is_file():
            found["reward_model"] = {"path": str(one)}
            continue
        if not callable(one):
            form = "a function f(completions, **columns) that returns a number or None for each sample, a list of such"
            raise RecipeError("reward", f"{_shorten(one)}: expected {form}, name -> function, or the directory of a "
                              "reward model")  # fmt: skip
        name = _name(one) if _name(one).isidentifier() else "own"
        if name in found:
            raise RecipeError("reward", f"two are called {name!r}: name them, reward={{'a': f, 'b': g}}")
        found[name] = {"use": hold(one)}
    return found


def _list_tools(tools: Any) -> list[str]:
    """Return the names of functions that a model may call. Raises RecipeError if a function cannot be a tool."""
    many = [tools] if callable(tools) else list(tools)
    for one in many:
        try:
            FunctionTool.of(one)
        except ValueError as error:
            raise RecipeError("tools", str(error)) from None
    return [hold(one) for one in many]


def is_environment(given: Any) -> bool:
    """Whether a program has passed an environment of Gymnasium, its class, or a function that makes one."""
    whole = isinstance(given, gymnasium.Env) or (isinstance(given, type) and issubclass(given, gymnasium.Env))
    return whole or isinstance(given, types.FunctionType)


def hold_environment(env: Any) -> str:
    """Return the name of an environment class, a factory, or an environment, which each lane copies."""
    if isinstance(env, gymnasium.Env):
        try:
            deepcopy(env).close()
        except Exception as error:
            message = "hand over its class, or a function that makes one, instead"
            raise RecipeError("env", f"{type(env).__name__} cannot be copied ({error}): {message}") from None
        name = f"{registry.GIVEN}{type(env).__name__}-{_digest(_spell(env))}"
        registry.hold(name, partial(_copy, deepcopy(env)))
        return name
    if isinstance(env, str):
        raise RecipeError("env", f"{env!r}: a recipe names it; expected a class, a factory or an environment")
    if not callable(env):
        raise RecipeError("env", f"{_shorten(env)}: expected a gymnasium.Env, its class, or a function that makes one")
    if isinstance(env, type) and not issubclass(env, gymnasium.Env):
        raise RecipeError("env", f"the class {env.__name__} is not a gymnasium.Env: derive it from that")
    return hold(env)


def _copy(env: Any) -> Any:
    return deepcopy(env)


def hold(thing: Any) -> str:
    """Hold a function, a class or another callable in this process, and return its name: its import path if it has one,
    otherwise one with a digest of its code."""
    name = _find_import(thing) or f"{registry.GIVEN}{_name(thing).strip('<>')}-{_digest(_spell(thing))}"
    registry.hold(name, thing)
    return name


def _find_import(thing: Any) -> str:
    """Return `module.name`, or `file.py:name` for a script that is being run; "" if it cannot be imported."""
    name = _name(thing)
    if not isinstance(thing, type | types.FunctionType) or thing.__qualname__ != name or not name.isidentifier():
        return ""
    module = sys.modules.get(thing.__module__)
    if module is None or vars(module).get(name) is not thing:
        return ""
    if module.__name__ != "__main__" and not module.__name__.startswith(registry.USERS):
        return f"{module.__name__}.{name}"
    file = Path(vars(module).get("__file__") or "")
    if file.suffix != ".py" or not file.is_file():  # a notebook or interactive input
        return ""
    file, here = file.resolve(), Path.cwd().resolve()
    return f"{file.relative_to(here) if file.is_relative_to(here) else file}:{name}"


def _name(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type | types.FunctionType) else type(thing).__name__


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _spell(thing: Any, depth: int = 6) -> str:
    """Return the text that is hashed: the code of functions and methods with constants, defaults and closures; plain
    values; for an object its class and its plain attributes; for anything deeper only the type."""

    def spell(values: Iterable[Any]) -> list[str]:
        return [_spell(v, depth - 1) for v in values]

    def spell_table(table: Mapping[Any, Any]) -> list[str]:
        return sorted(f"{k}={_spell(v, depth - 1)}" for k, v in table.items())

    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        return repr(thing)
    if isinstance(thing, np.ndarray | np.generic):
        return f"array{thing.dtype}{thing.shape}{hashlib.blake2b(thing.tobytes()).hexdigest()}"
    if depth == 0:
        return type(thing).__qualname__
    if isinstance(thing, types.CodeType):
        return f"code{[thing.co_code.hex(), thing.co_names, *spell(thing.co_consts)]}"
    if isinstance(thing, types.FunctionType):
        closed = [c.cell_contents for c in thing.__closure__ or () if c != types.CellType()]
        return f"function{spell([thing.__code__, thing.__defaults__, thing.__kwdefaults__, *closed])}"
    if isinstance(thing, partial):
        return f"partial{spell([thing.func, thing.args, dict(thing.keywords)])}"
    if isinstance(thing, list | tuple):
        return f"{type(thing).__name__}{spell(thing)}"
    if isinstance(thing, set | frozenset):
        return f"set{sorted(spell(thing))}"
    if isinstance(thing, Mapping):
        return f"table{spell_table(thing)}"
    if isinstance(thing, type):
        inner = {k: v for k, v in vars(thing).items() if isinstance(v, types.FunctionType | int | float | str)}
        return f"class{[thing.__qualname__, *spell_table(inner)]}"
    kept = (bool, int, float, str, list, tuple, dict, np.ndarray)
    with suppress(TypeError):  # it has no attributes
        own = {k: v for k, v in vars(thing).items() if isinstance(v, kept)}
        return f"object{[_spell(type(thing), depth - 1), *spell_table(own)]}"
    return type(thing).__qualname__


def _shorten(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:60]}...'} ({type(value).__name__})"


def refuse_arguments(unknown: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument that `generate` does not take, with what another library's name means here."""
    for name in unknown:
        raise TypeError(f"generate takes no {name!r}: {GENERATE.get(name, 'expected greedy and max_new')}")
