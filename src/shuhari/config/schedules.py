"""Schedules in steps that do not fit the budget of their stage: the effect of making a run shorter or longer.

Left out: schedules over shares of a stage, which follow its budget, and those of sampling, which count decisions. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shuhari.config.overlay import Path, format_path, is_schedule
from shuhari.config.recipe import Recipe


def list_misfits(recipe: Recipe) -> list[str]:
    """Return a line for each schedule, in a stage with a budget of steps, that still climbs (`warm`) at half of the
    budget, begins or ends after it, or leaves a learning rate of 0 for the rest."""
    out: dict[str, None] = {}
    for stage in recipe.stages:
        for path, table in walk_schedules(stage) if "steps" in stage else ():
            for problem in _explain(table, float(stage["steps"]), learns=path[-1] == "lr"):
                name = "" if stage["name"] == "main" else f"stage {stage['name']!r}: "
                out[f"{name}{format_path(path)} {problem}"] = None
    return list(out)


def walk_schedules(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield (place, table) of the schedules that count steps."""
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if key in ("sampling", "claim"):
            continue
        if is_schedule(value):
            if value.get("per", "step") == "step" and not value.get("period"):
                yield (*path, key), value
        else:
            yield from walk_schedules(value, (*path, key))


def _explain(table: Mapping[str, Any], steps: float, *, learns: bool) -> Iterator[str]:
    numbers = {k: x for k, x in table.items() if isinstance(x, int | float) and not isinstance(x, bool)}
    warm, after, over = (numbers.get(k, 0.0) for k in ("warm", "after", "over"))
    whole = f"and the stage has {steps:g}"
    if warm >= 1 and 2 * warm > steps:
        yield f"climbs from 0 for {warm:g} steps (warm), {whole}: a share, such as warm = 0.05, would follow the budget"
    pairs = table.get("steps")
    late = [pair[0] for pair in pairs if pair and pair[0] >= steps] if isinstance(pairs, list) else []
    if late:
        yield f"changes at step {late[0]:g} (steps), {whole}: that is never reached"
    if after >= steps and "to" in table:
        yield f"begins to move after {after:g} steps (after), {whole}: it stays at {table['from']}"
    elif over >= 1:
        end = (after if after >= 1 else round(after * steps)) + over
        if end > steps:
            yield f"ends after {end:g} steps (over), {whole}: it does not reach {table['to']}"
        elif learns and table["to"] == 0 and end < steps:
            yield f"is 0 from step {end:g} on (over), {whole}: nothing is learnt in the rest"
