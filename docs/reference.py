"""The reference pages as far as the code knows them, for `tables.py`: public names, and the settings of recipes."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from shuhari.desk.components import take_sentence
from shuhari.desk.sentences import SECTIONS

PUBLIC = {  # module -> its public names; (): all that it says or defines
    "shuhari": (),
    "shuhari.ports": (),
    "shuhari.ports.answers": (),
    "shuhari.data": (),
    "shuhari.batch": (),
    "shuhari.needs": (),
    "shuhari.events": (),
    "shuhari.kernel.ratio": (),
    "shuhari.kernel.reduce": (),
    "shuhari.testing": (),
    "shuhari.lab.diagnosis": ("diagnose", "RULES", "Rule", "Finding", "Watch"),
    "shuhari.config.recipe": ("load", "Recipe", "RecipeError"),
    "shuhari.config.build": ("make_component",),
    "shuhari.store.codec": ("dumps", "loads"),
    "shuhari.kernel.pack": ("pack",),
    "shuhari.learners.parts": ("Part", "Term"),
    "shuhari.models.categorical": ("Categorical", "sample_rows", "score_rows"),
    "shuhari.models.mlp": ("Ensemble",),
    "shuhari.models.readout": ("Values",),
    "shuhari.models.sampling": ("honour",),
    "shuhari.models.text.causal": ("CausalValue",),
    "shuhari.models.text.made_tokenizers": ("character_tokenizer",),
    "shuhari.objectives.td": ("td_target",),
    "shuhari.rollouts.playing": ("Playing",),
    "shuhari.rollouts.tree": ("Node", "Tree"),
    "shuhari.tasks.source": ("Generated", "Listed", "answer_text"),
    "shuhari.transforms.streams": ("zero_weight",),
    "shuhari.engines.clock": ("Virtual",),
    "shuhari.engines.copies": ("Copies",),
    "shuhari.lab.claims.quantities": ("Evidence",),
}


def row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


# ---------------------------------------------------------------- public names


def public_names(module: str) -> list[str]:
    """The public names of a module, in the order of its source."""
    found = import_module(module)
    listed = PUBLIC[module] or getattr(found, "__all__", ())
    own = [n for n, x in vars(found).items() if not n.startswith("_") and getattr(x, "__module__", "") == module]
    return [n for n in listed or own if n != "__version__"]


def names() -> Iterator[str]:
    """Every public name, with its first sentence; the site writes it out."""
    for module in PUBLIC:
        found = import_module(module)
        yield from (f"## {module}", "", row("name", "what it is"), row("---", "---"))
        listed = public_names(module)
        for name in listed:
            thing: Any = getattr(found, name)
            documented = inspect.isclass(thing) or inspect.isroutine(thing)
            yield row(f"`{name}`", take_sentence(inspect.getdoc(thing) or "") if documented else "a constant")
        yield ""
        for name in listed:
            yield from (f"<!-- ::: {module}.{name} -->", "")


# ---------------------------------------------------------------- settings

PLACES = {  # kind -> where a recipe names one
    "task": "`[task] name`, also `[evaluate.task]` and the `tasks` of a mixture; `seed` is the run's unless it is set",
    "world": "the test environment `gym/world/<name>` of `[task] name`, with its settings in `task.kwargs`",
    "model": "`[models.<role>] use`",
    "reward": "`[reward.<name>] use`, by default the table's name",
    "rollout": "`[rollout] use`, by default `single`",
    "curriculum": "`[curriculum] use`, by default `sequential`",
    "predictor": "`predictor` of the curriculum `target`",
    "engine": "`[engine] use`, by default `local`",
    "buffer": "`[buffer] use`, by default `fresh`",
    "recording": "`data` of the buffers `offline` and `demos`",
    "transform": "`[collect.<name>]` and `[transform.<name>]`, `use` by default the table's name",
    "objective": "`[part.<part>.terms.<name>]`, `use` by default the table's name",
    "optimiser": "`[part.<part>] optimiser`, by default `adamw`",
    "learner": "`[learner.<name>] use`, by default `gradient`",
    "follow": "`[follow.<role>] use`, by default `ema`",
    "metric": "`[evaluate.metrics.<name>] use`, by default the table's name",
    "study": "`[study] use`",
    "quantity": "a check of a claim",
    "analysis": "a claim that needs no training, and `shuhari analyze NAME`",
    "run_analysis": "`shuhari analyze NAME RUN...`, with `--set`",
    "environments": "`environments` of the rollout `episode`",
    "window": "`window` of the rollout `episode`",
}


SHARED = {"Sampling": "sampling", "Part": "parts-and-terms", "Term": "parts-and-terms", "Further": "evaluation"}


def sections() -> Iterator[str]:
    """Every key that a recipe may have at its top."""
    from shuhari.config.overlay import NAMED, REPEAT, SCALARS, SINGLE

    known = {"extends", *SCALARS, *SINGLE, *NAMED, *REPEAT}
    if known ^ SECTIONS.keys():
        raise KeyError(f"SECTIONS and the keys of a recipe differ in {sorted(known ^ SECTIONS.keys())}")
    yield row("key", "what it says")
    yield row("---", "---")
    for key, says in SECTIONS.items():
        table = key in (*SINGLE, *NAMED)
        yield row(f"`[{key}{'.<name>' if key in NAMED else ''}]`" if table else f"`{key}`", says)


def shared_tables() -> Iterator[str]:
    """The tables of a recipe that are no component."""
    from shuhari.config.distributed import Distributed
    from shuhari.config.evaluation import Evaluation, Further
    from shuhari.config.stage import Checkpointing
    from shuhari.data import Sampling
    from shuhari.learners.parts import Part, Term

    places = {
        "Sampling": [("`[rollout.sampling]`", Sampling)],
        "Parts and terms": [
            ("`[part.<name>]`, whose optimiser moves the roles that it `trains`, and no others", Part),
            ("`[part.<name>.terms.<loss>]`, beside the loss's own", Term),
        ],
        "Evaluation": [("`[evaluate]`", Evaluation), ("`[evaluate.more.<name>]`", Further)],
        "Store": [("`[store]`", Checkpointing)],
        "Distributed": [("`[distributed]`", Distributed)],
    }
    for heading, tables in places.items():
        yield from (f"### {heading}", "")
        for where, cls in tables:
            preset = {"trains": ["<name>"]} if cls is Part else None  # which a recipe need not say
            yield from (f"{where}:", "", *settings_of(cls, preset), "")


def settings_of(cls: Any, preset: Any = None) -> Iterator[str]:
    """The table of a dataclass's settings."""
    from shuhari.desk.components import describe_settings

    described = describe_settings(cls, preset or {})
    if not described:
        yield "No settings."
        return
    told = any(s["doc"] for s in described)
    yield row("setting", "what it takes", "default", *["what it is"] * told)
    yield row("---", "---", "---", *["---"] * told)
    for s in described:
        default = "required" if s["required"] else f"`{json.dumps(s['default'])}`"
        default = default.replace("`null`", "nothing").replace('"inf"', "inf")
        doc = [s["doc"].replace("|", "\\|")] * told
        yield row(f"`{s['name']}`", takes(s["type"], s["bounds"]), default, *doc)


def takes(kind: str, bounds: str) -> str:
    """What may stand there, of a type and its bounds in words."""
    number, *more = bounds.split("; ")
    if number.startswith("a number") and not more:
        kind, bounds = kind.replace("number", number.removeprefix("a "), 1), ""
    told = "; ".join(filter(None, (kind.replace("or list of", "or a list of").replace("Any", "anything"), bounds)))
    told = told.replace("or schedule", "or [schedule](#schedules)")
    told = re.sub(r"'([^']*)'", lambda m: f"`{m[1]}`" if m[1] else '`""`', told)
    return re.sub(r"table \((\w+)\)", lambda m: f"[table](#{SHARED.get(m[1], f'table-{m[1].lower()}')})", told)


def own_names(kind: str) -> list[str]:
    """The components of a kind that come with the library, whatever else this process knows."""
    from shuhari.kernel import registry

    return [n for n in registry.names(kind) if registry.find(kind, n).__module__.startswith("shuhari.")]


def components() -> Iterator[str]:
    """Every component with its settings, by kind."""
    from shuhari.kernel import registry

    inner: dict[str, Any] = {}
    for kind in PLACES:
        classes: dict[Any, list[str]] = {}  # class -> the names that it is registered under
        for name in own_names(kind):
            classes.setdefault(registry.find(kind, name), []).append(name)
        if not classes:
            continue
        links = (f"[`{n}`](#{kind}-{names[0]})" for cls, names in classes.items() for n in names)
        yield from (f"## {kind.capitalize()}", "", f"Where: {PLACES[kind]}.", "", " · ".join(links), "")
        for cls, names in classes.items():
            more = "".join(
                f" As `{n}`: {', '.join(f'`{k} = {str(v).lower()}`' for k, v in registry.preset(kind, n).items())}."
                for n in names if registry.preset(kind, n)
            )
            yield from (f"### {kind} {names[0]}", "", take_sentence(inspect.getdoc(cls) or "") + more, "")
            yield from (*settings_of(cls), "")
            inner |= {c.__name__: c for c in walk_fields(cls) if c.__name__ not in SHARED}
    yield from ("## Tables within tables", "")
    for name in sorted(inner):
        yield from (f"### table {name}", "", take_sentence(inspect.getdoc(inner[name]) or ""), "")
        yield from (*settings_of(inner[name]), "")


def walk_fields(cls: Any) -> Iterator[Any]:
    """The plain dataclasses that settings of a dataclass are tables of."""
    from shuhari import bounds

    own = bounds.hints(cls, bare=True)
    return (c for f in fields(cls) if f.init for c in walk(own[f.name]))


def walk(hint: Any) -> Iterator[Any]:
    """The plain dataclasses that a setting may be a table of, and those within them."""
    from shuhari.data import Ramp

    if isinstance(hint, type) and is_dataclass(hint) and hint is not Ramp:
        yield hint
        yield from walk_fields(hint)
    else:
        yield from (c for h in typing.get_args(hint) for c in walk(h))
