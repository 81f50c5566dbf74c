"""Replays of a run's stored data: its rollouts under another grader, the update of a step under other settings.

Both are commands of the terminal, run one at a time in a process of their own (`child`). A user's code can be named
only as `file.py:function`, in requests from this machine, and below the folder where the board was started.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shuhari.config.overlay import USE, RecipeError, format_path, look_up, parse_setting, walk_leaves
from shuhari.data import EMPTY, nearest
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.child import Desk
from shuhari.desk.components import describe, describe_settings
from shuhari.desk.serving.refusals import Refused, read_text, show
from shuhari.kernel import registry
from shuhari.store import Run

DESK = Desk()
SETTINGS, LONGEST = 50, 2000  # of one request; characters of one
LISTED = 20  # groups that change
GROUPS, EPISODES, POINTS = 20, 64, 2000  # groups whose advantages are returned, episodes of one, and points of all
SHORT = 200  # characters of a value
MODULE = re.compile(r"[\w-]+(\.[\w-]+)+(:.*)?|[\w-]+:\S.*", re.DOTALL)
SECTIONS = {"collect": "transform", "transform": "transform", "terms": "objective"}  # section -> kind of its components

Step = Annotated[int, Field(ge=0, le=10**12)]


def describe_replay(runs: Catalogue, run: str) -> dict[str, Any]:
    """Return {run, steps, again, local, folder, stage, rewards, settings}: the steps with stored groups; those whose
    update can be repeated (`again`), because a checkpoint before them is stored; whether files may be named, and below
    which folder; and for the stage of the last of these steps its graders, name -> use, and the settings that an update
    depends on, dotted key -> value as text."""
    from shuhari.loop.opening import read_recipe

    path = runs.find(run)
    stored, recipe = Run(path), read_recipe(path)
    steps, stages = stored.kept_steps(), {str(stage["name"]): stage for stage in recipe.stages}
    name = [*stages][-1]
    if len(stages) > 1 and steps:
        name = next(iter(stored.metrics(after=steps[-1] - 1)["stage"]), name)
    graders, over = stages[name].get("reward", EMPTY), look_up(recipe.tree, ("stage", name)) or EMPTY
    rewards = {n: str(r.get("use", n) if isinstance(r, Mapping) else r) for n, r in graders.items()
               if n not in ("weights", "beside")}  # fmt: skip
    settings = {format_path(("stage", name, *key) if look_up(over, key) is not None else key): _write(value)
                for key, value in _list_settings(stages[name])}  # fmt: skip
    folder, again = str(Path.cwd()) if runs.local else "", _find_again(stored, steps)
    return {"run": run, "steps": steps, "again": again, "local": runs.local, "folder": folder,
            "stage": name, "rewards": rewards, "settings": settings}  # fmt: skip


def _find_again(stored: Run, steps: Sequence[int]) -> list[int]:
    """Return the steps that `shuhari what-if` has a checkpoint for."""
    from shuhari.desk.replay.update import choose_start

    there, fresh = [c["step"] for c in stored.checkpoints()], not stored.get("init")
    with stored._open() as db:
        spans = db.execute("select min(step), max(step) from steps group by stage").fetchall()
    firsts = {
        step: max((low for low, high in spans if low <= step <= high), default=step)
        for step in steps
    }
    return [step for step, first in firsts.items() if choose_start(there, first, step, fresh) is not None]


def _write(value: Any) -> str:
    """Return a value as in a setting, cut."""
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:SHORT]


def list_graders(runs: Catalogue) -> list[dict[str, Any]]:
    """Return the registered rewards: {name, doc, settings: [{name, type, bounds, default, required}]}."""
    found = [describe("reward", name) for name in registry.names("reward") if name != "function"]
    return [
        {key: one[key] for key in ("name", "doc", "settings")}
        for one in found
    ]


async def regrade(
    runs: Catalogue,
    run: str,
    grader: str = "",
    name: str = "",
    first: Step | None = None,
    last: Step | None = None,
    settings: Sequence[str] = (),
    limit: Annotated[int, Field(ge=0, le=100)] = 20,
) -> dict[str, Any]:
    """Return the result of `shuhari regrade` with a `grader` (a registered reward, or `file.py:function`; empty: those
    of the run) called `name`, with settings `reward.*=value`, for steps `first` to `last`. Groups have the `id` for the
    view `group`; `to_mixed` and `to_alike` are cut, with their lengths in `mixed_now` and `alike_now`."""
    words = [f"--limit={limit}", f"--steps={'' if first is None else first}..{'' if last is None else last}"]
    path = await asyncio.to_thread(_prepare, runs, run, settings)
    if grader:
        await asyncio.to_thread(_check_grader, grader, runs.local)
        if name and not re.fullmatch(r"[A-Za-z_][\w-]{0,60}", name):
            raise Refused(f"name is {show(name)}: expected a word for the grader", "name")
        words.append(f"--reward={name}={grader}" if name else f"--reward={grader}")
    found = await DESK.run(["regrade", *words, *_as_words(settings), str(path)], f"regrading {run}")
    cut = {key: found[key][:LISTED] for key in ("to_mixed", "to_alike")}
    await asyncio.to_thread(_add_ids, path, [*found["changes"], *cut["to_mixed"], *cut["to_alike"]])
    counts = {"mixed_now": len(found["to_mixed"]), "alike_now": len(found["to_alike"])}
    return {**found, **cut, **counts, "run": run}


async def what_if(runs: Catalogue, run: str, step: Step, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the result of `shuhari what-if` for a step with `settings`: `groups`, cut, with those first whose
    advantages differ; `points`: [as configured, with the settings] advantages of all; `all`: {groups, episodes}."""
    path = await asyncio.to_thread(_prepare, runs, run, settings)
    found = await DESK.run(["what-if", *_as_words(settings), f"{path}@{step}"], f"what-if of {run}, step {step},")
    groups = sorted(found["groups"], key=lambda g: all(len({*e["advantage"]}) == 1 for e in g["episodes"]))
    pairs = [
        e["advantage"]
        for g in groups
        for e in g["episodes"]
        if len(e["advantage"]) == 2
    ]
    cut = [{**g, "step": step, "episodes": g["episodes"][:EPISODES], "of": len(g["episodes"])} for g in groups[:GROUPS]]
    await asyncio.to_thread(_add_ids, path, cut)
    whole = {"groups": len(groups), "episodes": sum(len(g["episodes"]) for g in groups)}
    return {**found, "run": run, "groups": cut, "points": pairs[:: len(pairs) // POINTS + 1], "all": whole}


def _add_ids(path: Path, groups: Sequence[dict[str, Any]]) -> None:
    """Add its `id` to each group {step, group} that is still stored."""
    stored = Run(path)
    for step in {g["step"] for g in groups}:
        ids = {str(g["group"]): g["id"] for g in stored.find_groups("step", step=step, limit=10_000)}
        for g in groups:
            if g["step"] == step:
                g["id"] = ids.get(g["group"])


# ---------------------------------------------------------------- what a request may contain


def _prepare(runs: Catalogue, run: str, settings: Sequence[str]) -> Path:
    """Check a run's settings, and return its directory."""
    if len(settings) > SETTINGS:
        raise Refused(f"{len(settings)} settings: expected at most {SETTINGS}", "settings")
    for text in settings:
        _check_setting(text, runs.local)
    return runs.find(run).resolve()


def _as_words(settings: Sequence[str]) -> list[str]:
    return [f"--set={text}" for text in settings]


def _check_setting(text: str, local: bool) -> None:
    """Raises Refused for an invalid setting, and for one that names code not allowed here."""
    read_text("settings", text)
    if text.startswith("-") or not text.isprintable() or len(text) > LONGEST:
        raise Refused(f"settings is {show(text)}: expected key=value of at most {LONGEST} characters", "settings")
    try:
        path, value = parse_setting(text)
        leaves = [*path, *_list_texts(value)]
    except RecipeError as error:
        raise Refused(str(error), "settings") from None
    except RecursionError:
        raise Refused(f"settings is {show(text)}: it is nested too deep", "settings") from None
    for leaf in leaves:
        if ".py:" in leaf:
            _check_file(leaf, local, "settings")
        elif MODULE.fullmatch(leaf) or (not local and not {*leaf}.isdisjoint(".:")):
            raise Refused(f"settings has {show(leaf)}, which names code: {_list_ways(local)}", "settings", status=403)


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (str(key), *_list_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_texts(inner)


def _check_grader(grader: str, local: bool) -> None:
    known = registry.names("reward")
    if grader in known:
        return
    if ".py:" not in grader:
        raise Refused(f"no grader {show(grader)}; {nearest(grader[:60], known)}; {_list_ways(local)}", "grader")
    _check_file(grader, local, "grader")


def _check_file(text: str, local: bool, field: str) -> None:
    """Raises Refused unless `text` is `file.py:function` of a file below the folder where the board was started, and
    the client may name it."""
    if not local:
        raise Refused(f"{field} names code: {_list_ways(local)}", field, status=403)
    name, _, function = read_text(field, text).partition(":")
    folder, parts = Path.cwd().resolve(), Path(name).parts
    if not name.endswith(".py") or not function.isidentifier() or not text.isprintable() or text.startswith("-"):
        raise Refused(f"{field} is {show(text)}: expected file.py:function", field)
    if ".." in parts or not (folder / name).resolve().is_relative_to(folder):
        raise Refused(f"{field} is {show(text)}: expected a file below {folder}", field, status=403)
    if not (folder / name).is_file():
        raise Refused(f"{field} is {show(text)}: there is no such file below {folder}", field)


def _list_ways(local: bool) -> str:
    if local:
        return "of your own, file.py:function below the folder where the board was started"
    return "a board that listens beyond loopback takes registered graders and plain values alone"


# ---------------------------------------------------------------- what may be set


def _list_settings(stage: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (key, value) of the settings that an update of a stage depends on: defaults of registered components, then
    those in the recipe."""
    from shuhari.desk.replay.what_if import TAKEN
    from shuhari.learners.parts import Part

    taken = {name: stage[name] for name in TAKEN if name in stage}
    for where, table in _list_tables(taken):
        if where[-2:-1] == ("part",):
            yield from _list_defaults(where, Part, table)
        kind = "optimiser" if where[-1] == "optimiser" else SECTIONS.get(where[-2] if len(where) > 1 else "", "")
        use = table.get("use", USE.get(where[-1], where[-1]))
        if kind and use in registry.names(kind):
            yield from _list_defaults(where, registry.find(kind, use), table, registry.preset(kind, use))
    yield from ((path, value) for path, value in walk_leaves(taken) if "buffer" not in path and value != {})
    yield from ((("reward", *path), value)
                for path, value in walk_leaves({"weights": stage.get("reward", EMPTY).get("weights", EMPTY)})
                if value != {})  # fmt: skip


def _list_tables(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield (*path, key), value
            yield from _list_tables(value, (*path, key))


def _list_defaults(
    where: tuple[str, ...], cls: Any, said: Mapping[str, Any], preset: Mapping[str, Any] = EMPTY
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the defaults of settings that a table does not set."""
    for one in describe_settings(cls, preset):
        if one["name"] not in said and one["default"] is not None and not isinstance(one["default"], Mapping):
            yield (*where, one["name"]), one["default"]
