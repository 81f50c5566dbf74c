"""The sentence that describes a setting of a recipe, found by the setting's key: `train --dry-run --explain` prints it,
the board shows it, and the JSON schema has it; `components NAME` lists all that describe a setting of that name. No
component is made.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from shuhari.config.overlay import USE
from shuhari.data import EMPTY, Ramp

SECTIONS = {  # every key that a recipe may have at its top; a stage may have those that are marked
    "extends": "the recipe that this one builds on, by name or path; the file then has only what differs",
    "format": "the format of the file",
    "name": "what runs of it are called",
    "summary": "one line for `shuhari methods`",
    "alone": "why this recipe cannot be applied to another, as a method can",
    "seed": "the seed of all random draws",
    "threads": "number of torch's threads; 0 leaves it unchanged",
    "stop_when": "a condition that ends a stage before its budget is spent: `evaluate/greedy >= 200` or "
    "`evaluate/greedy not better for 5`",
    "micro_batch": "the most tokens in one forward of training; 0: a whole minibatch at once",
    "steps": "the budget, in steps of the loop",
    "decisions": "the budget, in collected decisions",
    "tokens": "the budget, in sampled tokens",
    "env_steps": "the budget, in environment steps",
    "updates": "the budget, in optimiser steps",
    "seconds": "the budget, in seconds, so that the run cannot be repeated exactly",
    "paper": "`title`, `arxiv`, `year` of the source; `changes`, what it does; `helps`, troubles it is against",
    "claim": "what the paper claims, and how it is measured: [claims-reference.md](claims-reference.md)",
    "laid": "written by `--with`: the methods that were applied to the recipe",
    "study": "a component that trains several runs of this recipe: [a study](#study)",
    "distributed": "[how the work is distributed](#distributed) over processes and machines",
    "task": "the problems or the environment: [a task](#task), by `name`",
    "models": "a table for each role: [a model](#model), or `init`, `same_as`, `from` ([roles](#roles))",
    "engine": "how models are sampled from: [an engine](#engine)",
    "curriculum": "how the next problems are chosen: [a curriculum](#curriculum)",
    "rollout": "how episodes are sampled: [a rollout](#rollout), with its [sampling settings](#sampling)",
    "reward": "a table for each grader: [a reward](#reward); `weights` and `beside`: name -> weight in the trained "
    "reward",
    "collect": "a table for each transform of collected groups, done once: [a transform](#transform), `before` another",
    "buffer": "the data that updates draw from: [a buffer](#buffer)",
    "transform": "a table for each transform of drawn batches, done at every draw: [a transform](#transform)",
    "part": "a table for each optimiser: its [part](#parts-and-terms), with its losses",
    "learner": "a table for each further [learner](#learner), with a `buffer`, `transform` and `part` of its own",
    "follow": "a table for each role whose weights follow another's: [a rule](#follow)",
    "evaluate": "[when and how held-out problems are played](#evaluation)",
    "store": "[which checkpoints and samples are kept](#store)",
    "stage": "a table for each section of the run, in order, with settings that differ there",
    "repeat": "how many times a stage runs",
    "block": "consecutive stages with the same `block` take turns",
}  # fmt: skip
ALONE = ("engine", "curriculum", "rollout", "buffer", "study")  # sections of one component, called by its kind
NAMED_USES = {  # section of named components -> (kind, the component if `use` is not set, or "" for the table's name)
    "models": ("model", "?"),
    "reward": ("reward", ""),
    "collect": ("transform", ""),
    "transform": ("transform", ""),
    "follow": ("follow", "ema"),
}
UNIONS = (typing.Union, types.UnionType)
ROLES = {  # keys of any role
    "init": "A role whose weights it starts with; without a `use`, also its architecture.",
    "same_as": "A role whose model, with its weights, plays this one too.",
    "from": "Another role, a run or a Hugging Face directory whose weights it gets.",
    "frozen": "Whether it is not trained; true if it has a `from`, else false.",
}
SCHEDULE = {  # keys of a schedule but `from`, whose sentence is that of the setting
    "to": "Schedule: the value at its end.",
    "over": "Schedule: its length, in steps or (below 1) as a share of the stage; by default to the end of the stage.",
    "after": "Schedule: how long the value stays at `from` first, in steps or (below 1) as a share of the stage.",
    "warm": "Schedule: how long the value climbs from 0 at first (a warm-up), in steps or (below 1) as a share of the "
    "stage.",
    "shape": "Schedule: `linear`, `cosine` or `exponential`.",
    "steps": "Schedule: pairs [step, value]; from each step on the value is that.",
    "period": "Schedule: number of steps after which all but `warm` begins again; 0: never.",
    "per": "Schedule: what it counts, `step` or `decision`; with the latter all lengths are in decisions.",
}


def list_meanings(setting: str) -> dict[str, list[str]]:
    """Return sentence -> its owners: each sentence that describes a setting of that name ("": none does), with what has
    the setting, in words: every term or part, a schedule, a table of the recipe, `kind name` of a component."""
    from shuhari.desk.components import describe_setting
    from shuhari.kernel import registry

    found: dict[str, list[str]] = {}
    for words, cls in _list_general().items():
        if setting in [f.name for f in fields(cls)]:
            found.setdefault(describe_setting(cls, setting), []).append(words)
    tables = {"a recipe, or a stage": SECTIONS, "a role (models.<role>)": ROLES,
              "a schedule ({from = .., to = ..})": SCHEDULE}  # fmt: skip
    for words, sentences in tables.items():
        if setting in sentences:
            found.setdefault(sentences[setting].rstrip("."), []).append(words)
    for kind in registry.KINDS:
        for name in registry.names(kind):
            with suppress(LookupError):  # of an installed package that cannot be imported
                cls = registry.find(kind, name)
                if is_dataclass(cls) and any(f.init and f.name == setting for f in fields(cls)):
                    found.setdefault(describe_setting(cls, setting), []).append(f"{kind} {name}")
    return found


def _list_general() -> dict[str, Any]:
    """Return words -> the class with the settings of what any recipe may have, whatever its components."""
    from shuhari.config.distributed import Distributed
    from shuhari.config.evaluation import Evaluation
    from shuhari.config.stage import Checkpointing
    from shuhari.data import Sampling
    from shuhari.learners.parts import Part, Term

    tables = {"evaluate": Evaluation, "store": Checkpointing, "distributed": Distributed}
    return {"every term (a loss of a part)": Term, "every part (an optimiser)": Part,
            **{f"[{name}]": cls for name, cls in tables.items()}, "rollout.sampling": Sampling}  # fmt: skip


def find_owners(setting: str) -> list[str]:
    """Return what has a setting of that name, in words, as `list_meanings`."""
    return [
        owner
        for owners in list_meanings(setting).values()
        for owner in owners
    ]  # fmt: skip


def find_sentence(tree: Mapping[str, Any], path: Sequence[str]) -> str:
    """The sentence of the setting at `path` of a recipe or a stage (a tree of tables); "" if it has none."""
    if path[0] == "stage" and len(path) > 2:
        own = tree.get("stage", EMPTY).get(path[1], EMPTY)
        return find_sentence({**tree, **own}, path[2:])
    if len(path) == 1:
        return SECTIONS.get(path[0], "")
    try:
        return _find(tree, path[0], tuple(path[1:]))
    except (LookupError, TypeError, AttributeError):  # no such component, or tables of another form
        return ""


def _find(tree: Mapping[str, Any], section: str, rest: tuple[str, ...]) -> str:
    from shuhari.config.distributed import Distributed
    from shuhari.config.evaluation import Evaluation
    from shuhari.config.stage import Checkpointing

    table: Any = tree.get(section, EMPTY)
    plain: dict[str, Any] = {"evaluate": Evaluation, "store": Checkpointing, "distributed": Distributed}
    if section == "evaluate" and rest[0] == "rollout" and len(rest) > 1:
        return _read_use("rollout", USE["rollout"], table["rollout"], rest[1:])
    if section == "task":
        return _read_task(table, rest)
    if section in ("rollout", "evaluate") and rest[0] == "sampling":
        return _read_sampling(rest[1:])
    if section in plain:
        return _read(plain[section], table, rest)
    if section == "rollout" and rest == ("n",):
        return "Number of samples of each problem (the group size)."
    if section in ALONE:
        return _read_use(section, USE.get(section, ""), table, rest)
    if section == "reward" and rest[0] in ("weights", "beside"):
        return f"Weight of a reward in the trained reward{', in addition to the others' * (rest[0] == 'beside')}."
    if section in ("collect", "transform") and rest[-1] == "before" and len(rest) == 2:
        return "The transform before which it is applied."
    if section in NAMED_USES and len(rest) == 1:  # an empty table
        return _summarise(NAMED_USES[section][0], rest[0])
    if section in NAMED_USES:
        if section == "models" and rest[1] in ROLES:
            return ROLES[rest[1]]
        kind, default = NAMED_USES[section]
        return _read_use(kind, default or rest[0], table[rest[0]], rest[1:])
    if section == "part" and len(rest) > 1:
        return _read_part(table[rest[0]], rest[1:])
    if section == "learner" and len(rest) > 2 and rest[1] in ("buffer", "transform", "part"):
        return _find(table[rest[0]], rest[1], rest[2:])
    return _read_use("learner", "gradient", table[rest[0]], rest[1:]) if section == "learner" else ""


def _read_part(table: Mapping[str, Any], rest: tuple[str, ...]) -> str:
    from shuhari.learners.parts import Part, Term

    if rest[0] == "optimiser" and len(rest) > 1:
        return _read_use("optimiser", USE["optimiser"], table["optimiser"], rest[1:])
    if rest[0] != "terms" or len(rest) < 3:
        return _read(Part, table, rest)
    return _read(Term, EMPTY, rest[2:]) or _read_use("objective", rest[1], table["terms"][rest[1]], rest[2:])


def _summarise(kind: str, name: str) -> str:
    """The first sentence of a component's docstring."""
    from shuhari.desk.components import summarise, take_sentence

    return take_sentence(str(summarise(kind, name)["summary"]))


def _read_use(kind: str, default: str, table: Any, rest: tuple[str, ...]) -> str:
    from shuhari.kernel import registry

    if rest == ("use",):
        return f"The {kind} (`shuhari components {kind}`)."
    if kind == "task":
        return _read_task(table, rest)
    name = table if isinstance(table, str) else table.get("use", default)
    return _read(registry.find(kind, name), table, rest)


def _read(cls: Any, table: Any, rest: tuple[str, ...]) -> str:
    """The sentence of a field of a class, or of what stands in it."""
    from shuhari import bounds
    from shuhari.kernel.field_docs import read_field_docs

    own = read_field_docs(cls).get(rest[0], "")
    if len(rest) == 1 or not own:
        return own
    hint = bounds.hints(cls, bare=True)[rest[0]]
    if told := _read_value(hint, table.get(rest[0], EMPTY), rest[0], rest[1:]):
        return told
    return SCHEDULE.get(rest[1], own) if len(rest) == 2 and Ramp in typing.get_args(hint) else own


def _read_value(hint: Any, value: Any, name: str, rest: tuple[str, ...]) -> str:
    """The sentence of a setting of the component or the dataclass that a field holds, or that a table `name` of it
    holds."""
    from shuhari import bounds
    from shuhari.config.settings import KINDS

    for one in typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,):
        origin = typing.get_origin(one)
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(rest) > 1:
            return _read_value(typing.get_args(one)[-1], value[rest[0]], rest[0], rest[1:])
        if one in KINDS and isinstance(value, Mapping):
            return _read_use(KINDS[one], name, value, rest)
        if isinstance(one, type) and is_dataclass(one):
            if told := _read(one, value, rest):
                return told
            flat = next((KINDS[h] for h in bounds.hints(one, bare=True).values() if h in KINDS), "")
            return _read_use(flat, name, value, rest) if flat else ""  # whose settings stand beside its own
    return ""


def _read_sampling(rest: tuple[str, ...]) -> str:
    from shuhari.data import Sampling

    return _read(Sampling, EMPTY, rest) if rest else ""


def _read_task(table: Mapping[str, Any], rest: tuple[str, ...]) -> str:
    from shuhari.kernel import registry

    if rest == ("name",):
        return "The task, or gym/ID, file/PATH."
    name = str(table["name"])
    cls = registry.find("task", name if name in registry.names("task") else name.partition("/")[0])
    return _read(cls, table, rest)
