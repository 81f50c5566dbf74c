"""Digests of what a recipe does: of the components that its stages are built into, not of how they are written.

Two recipes have the same digest if their stages have the same components, settings and budgets. A setting written at
its default equals one left out; a schedule over a share of a stage equals the same one in steps; seed, titles, threads,
and the names and layers of files do not count. Entries that are used by name are compared by name, in any order;
transforms, which run in order, by order without names. Entries of a component's own tables (the tasks of a mixture, the
members of a buffer) are compared by name and order.
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

NAMED = ("models", "rewards", "weights", "follows", "learners", "parts", "terms", "budget")  # by name, in any order
RUN = ("transforms", "collect")  # compared by order, without names
ASIDE = ("name", "defaults", "imitates", "laid", "distributed")  # of a stage: described elsewhere, or without effect
SEED = 2**31 - 2  # replaces the run's seed, so that a component's seed set to another number counts as set


def compute_digest(recipe: Recipe) -> str:
    """Compute a digest of what a recipe does. Raises RecipeError if it cannot be built."""
    return hash_description(describe(recipe))


def hash_description(description: Mapping[str, Any]) -> str:
    """Compute the digest from a description of a recipe."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def describe(recipe: Recipe) -> dict[str, Any]:
    """Describe what a recipe does as JSON: each stage in order, and the study."""
    from shuhari.config.build import build_stages, make_component

    seeded = recipe.with_settings({"seed": SEED})
    stages = build_stages(seeded.stages)
    study = (
        {"study": _to_plain(make_component("study", recipe.tree["study"], "study"))} if "study" in recipe.tree else {}
    )
    return {**study, "stages": [[stage.name, describe_stage(stage)] for stage in stages]}


def describe_stage(stage: Components) -> dict[str, Any]:
    """Describe the settings of a stage's components as JSON."""
    steps = stage.budget.get("steps")
    return {
        f.name: _describe_entry(f.name, getattr(stage, f.name), steps)
        for f in fields(stage)
        if f.name not in ASIDE and not _is_default(f, getattr(stage, f.name))
    }


def _to_plain(value: Any, steps: float | None = None) -> Any:
    if isinstance(value, Ramp):
        value = _to_steps(value, steps)
    if isinstance(value, Sampling):  # the ramp of a sampling counts decisions
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
    """Describe the value of a field, whose name decides whether names and order of its entries count."""
    if isinstance(value, Mapping) and name in NAMED:
        return {str(k): _to_plain(v, steps) for k, v in value.items()}
    if isinstance(value, Mapping) and name in RUN:
        return [_to_plain(v, steps) for v in value.values()]
    return _to_plain(value, steps)


def _is_default(f: Field[Any], value: Any) -> bool:
    """Whether a field has its default, so that a setting added to a component later changes no digest."""
    if f.default is not MISSING:
        return bool(_to_plain(f.default) == _to_plain(value))
    return f.default_factory is not MISSING and bool(_to_plain(f.default_factory()) == _to_plain(value))


def _find_name(what: Any) -> str:
    """Return the first of the names that a component is registered under; otherwise its qualified name, with the module
    if it is not part of shuhari."""
    known = registry.known_as(what)
    if known:
        return "/".join(min(known))
    ours = what.__module__.startswith("shuhari.")
    return str(what.__qualname__ if ours else f"{what.__module__}.{what.__qualname__}")


def _to_steps(given: Ramp, steps: float | None) -> Ramp:
    """Convert a schedule over shares of a stage, or to its end, into steps."""
    if steps is None or given.steps or not given.relative:
        return given
    after, warm = (round(x * steps) if 0 < x < 1 else x for x in (given.after, given.warm))
    over = steps - after if given.over is None else round(given.over * steps) if given.over < 1 else given.over
    return replace(given, after=after, warm=warm, over=max(1, over))
