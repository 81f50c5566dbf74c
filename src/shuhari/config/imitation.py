"""What a stage imitates of its task's problems, and whether they have it: checked before a run starts."""

from __future__ import annotations

from collections.abc import Mapping

from shuhari.config.overlay import RecipeError, format_path
from shuhari.config.stage import walk_learners
from shuhari.data import UnshownError
from shuhari.kernel.state import walk
from shuhari.ports import Learner, Task
from shuhari.ports.hooks import ability


def describe_imitation(stage: str, learners: Mapping[str, Learner], task: Task, *, alone: bool = False) -> str:
    """Describe what the buffers of a stage show as demonstrations; "" if none shows any. RecipeError, with the ways to
    fix it, if a problem lacks it. `alone`: the recipe has no other stage."""
    names: dict[str, None] = {}
    at = "" if alone else f"{format_path(('stage', stage))}."
    for above, learner in walk_learners(learners):
        place = format_path((*above, "buffer"))
        for path, buffer in walk(learner.buffer):
            if (show := ability(buffer, "imitates")) is None:
                continue
            where = f"{at}{place}{path and '.' + path.replace('/', '.')}"
            try:
                names[show(task)] = None
            except ValueError as error:
                ways = [] if alone else [f"leave the stage out: --remove {at[:-1]}"]
                if isinstance(error, UnshownError) and error.answer:
                    ways.append(f"imitate answers: --set {where}.imitate=answer")
                raise RecipeError(where, "; ".join([f"{error}", *ways])) from None
    return ", ".join(names)
