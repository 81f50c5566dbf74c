"""Checks, before any model is built, that models have the methods that needs name, from the return annotation of their
`__call__`.

Left out: functionals, which may use anything of a distribution, and models without an annotation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from shuhari.config.overlay import RecipeError, format_path
from shuhari.data import nearest
from shuhari.loop.roles import sort_roles, walk_asked
from shuhari.ports import ability

if TYPE_CHECKING:
    from shuhari.config.stage import Components


def check_answers(stages: Sequence[Components]) -> None:
    """Check that every method that a need names exists in the distribution of its role's model, and that the
    log-probability of an importance ratio (`Need.exact`) is no bound. Raises RecipeError with the place, and the
    nearest method."""
    models: dict[str, Any] = {}
    for stage in stages:
        for name in sort_roles(stage.models):
            role = stage.models[name]
            models[name] = models.get(role.same_as or role.init) if role.model is None else role.model
        for place, _, needs in walk_asked(stage):
            for need in needs:
                model = models.get(need.roles[0])
                known = None if model is None else answers(model)
                whose = f"role {need.roles[0]!r} ({type(model).__name__})"
                if known is not None and isinstance(need.name, str) and need.name not in known:
                    message = f"{whose} is asked for {need.name!r}, which its distribution has not"
                    near = nearest(need.name, (n for n in known if not n.startswith("_")))
                    raise RecipeError(format_path(place), f"{message}; {near}")
                if need.exact and need.name == "log_prob" and ability(model, "kind") == "bound":
                    message = f"{whose} knows its log-probability by a bound alone (kind = 'bound')"
                    why = "an importance ratio of bounds is none: name what is compared, score = .."
                    raise RecipeError(format_path(place), f"{message}, and {why}")


def answers(model: Any) -> Collection[str] | None:
    """Return the names of what the distribution of a model has; None if that is not declared."""
    if (own := ability(model, "offers")) is not None:
        return frozenset(own)
    try:
        made = get_type_hints(type(model).__call__).get("return")
    except (NameError, TypeError, AttributeError):  # of names that only a type checker imports; nothing to call
        return None
    return frozenset(dir(made)) if isinstance(made, type) and made not in (Any, object) else None
