"""What a recipe does, as a digest: of the components that its stages are built into, not of how they are written.

Two recipes do the same where their stages have the same components, settings and budgets. So a setting that is written
at its default is one that is not written, a schedule over a share of a stage is that over its steps, and neither the
seed, titles, threads nor the names and layers of the files count. Entries that go by their name are compared by it; of
transforms, which run in their order, the order counts and no name. Entries of a component's own tables (the tasks of a
mixture, the members of a buffer) have name and order.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any

from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.data import Ramp, Sampling
from shuhari.kernel import registry

NAMED = ("models", "rewards", "weights", "follows", "learners", "parts", "terms", "budget")  # order says nothing
RUN = ("transforms", "collect")  # names say nothing
ASIDE = ("name", "defaults", "imitates", "laid", "distributed")  # of a stage: described beside, or not what it does
SEED = 2**31 - 2  # in the place of a run's: what is set to another number is set


def compute_digest(recipe: Recipe) -> str:
    """A digest of what a recipe does. RecipeError where it cannot be built."""
    return hash_description(describe(recipe))


def hash_description(description: Mapping[str, Any]) -> str:
    """The digest of a recipe that is described already."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def describe(recipe: Recipe) -> dict[str, Any]:
    """What a recipe does, as JSON: each stage in order, and the study."""
    from shuhari.config.build import build_stages, make_component

    seeded = recipe.with_settings({"seed": SEED})
    stages = build_stages(seeded.stages)
    study = (
        {"study": _to_plain(make_component("study", recipe.tree["study"], "study"))} if "study" in recipe.tree else {}
    )
    return {**study, "stages": [[stage.name, describe_stage(stage)] for stage in stages]}


def describe_stage(stage: Components) -> dict[str, Any]:
    """The settings of a stage's components, as JSON."""
    steps = stage.budget.get("steps")
    return {
        f.name: _describe_entry(f.name, getattr(stage, f.name), steps)
        for f in fields(stage)
        if f.name not in ASIDE and not _is_default(f, getattr(stage, f.name))
    }


def _to_plain(value: Any, steps: float | None = None) -> Any:
    if isinstance(value, Ramp):
        value = _to_steps(value, steps)
    if isinstance(value, Sampling):  # its ramp counts decisions
        steps = None
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: f for f in fields(value) if f.init and not _is_default(f, getattr(value, f.name))}
        return {
            "": _find_name(type(value)),
            **{name: _describe_entry(name, getattr(value, name), steps) for name in own},
        }
    if isinstance(value, Mapping):
        return [[str(k), _to_plain(v, steps)] for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(v, steps) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        path, colon, name = value.partition(".py:")
        return f"{path.rpartition('/')[2]}{colon}{name}" if colon else value
    if inspect.isroutine(value) or isinstance(value, type):
        return _find_name(value)
    return value if value is None or isinstance(value, bool | int | float) else _find_name(type(value))


def _describe_entry(name: str, value: Any, steps: float | None) -> Any:
    """What stands in a field, whose name says whether its entries have an order, and names."""
    if isinstance(value, Mapping) and name in NAMED:
        return {str(k): _to_plain(v, steps) for k, v in value.items()}
    if isinstance(value, Mapping) and name in RUN:
        return [_to_plain(v, steps) for v in value.values()]
    return _to_plain(value, steps)


def _is_default(f: Field[Any], value: Any) -> bool:
    """Whether a field is as it is where none is given, so that a setting that a component gets later changes none."""
    if f.default is not MISSING:
        return bool(_to_plain(f.default) == _to_plain(value))
    return f.default_factory is not MISSING and bool(_to_plain(f.default_factory()) == _to_plain(value))


def _find_name(what: Any) -> str:
    """The first of the names by which a component is known; else where it is written, of ours the name alone."""
    known = registry.known_as(what)
    if known:
        return "/".join(min(known))
    ours = what.__module__.startswith("shuhari.")
    return str(what.__qualname__ if ours else f"{what.__module__}.{what.__qualname__}")


def _to_steps(given: Ramp, steps: float | None) -> Ramp:
    """A schedule over shares of a stage, or to its end, over the stage's steps."""
    if steps is None or given.steps or not given.relative:
        return given
    after, warm = (round(x * steps) if 0 < x < 1 else x for x in (given.after, given.warm))
    over = steps - after if given.over is None else round(given.over * steps) if given.over < 1 else given.over
    return replace(given, after=after, warm=warm, over=max(1, over))
