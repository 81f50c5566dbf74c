"""Checks, before the first step, for values of a recipe for random weights that harm a trained model: learning rates
that undo what it knows, a warm-up that teaches it another language, answers too short for it. A rate that is far too
high, and comes from a recipe for random weights rather than the user, is refused.

The usual rates are those of Adam and its kin. Left out: whether a value of the user's own is a good one, except for
rates far above the usual. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shuhari.config.library import find_recipe, list_names
from shuhari.config.overlay import Path, RecipeError, format_path, look_up
from shuhari.config.recipe import Recipe, load
from shuhari.config.stage import Components, walk_learners
from shuhari.kernel.rates import FAR, find_usual
from shuhari.loop.machine import lacks_bfloat16
from shuhari.loop.roles import sort_roles
from shuhari.ports.hooks import ability

FAMILY = "pretrained"  # of the recipes whose values are for such models
SHORT, NARROW = 16, 256  # tokens of an answer, and of a row, that are those of toys


def list_unfit(recipe: Recipe, stages: Sequence[Components]) -> list[str]:
    """Return a line for each trained role with a `path`, if some values are meant for random weights: which they are,
    and the recipe with the usual ones."""
    found: dict[str, dict[str, None]] = {}
    last: dict[str, _Trained] = {}
    for one in _walk_trained(recipe, stages):
        last[one.role] = one
        told = found.setdefault(one.role, {})
        if far := one.explain_rate():
            where = "" if one.stage.name == "main" else f" in stage {one.stage.name!r}"
            told[f"{format_path(one.rate)} is up to {far[0]:g}{where} ({far[1]})"] = None
        told |= dict.fromkeys(_judge_toy(recipe, one.stage, one.role, warms=one.stage is not stages[-1]))
    return [
        f"models.{role} is a trained model ({last[role].path}), and this is meant for random weights: "
        f"{'; '.join(told)}{_point_to(recipe, last[role].table)}"
        for role, told in found.items()
        if told
    ]


def refuse_inherited_rates(recipe: Recipe, stages: Sequence[Components]) -> None:
    """Raise RecipeError if a model with a `path` would be trained at a rate more than ten times the usual one that the
    user did not choose: it comes from a packaged recipe for random weights, or is the default. A rate that the user
    sets, or writes into a recipe of their own, is accepted (`list_unfit` warns of it)."""
    for one in _walk_trained(recipe, stages):
        if (far := one.explain_rate()) and _is_inherited(recipe, one.stage, one.rate):
            key = format_path(one.rate if one.stage.name == "main" else ("stage", one.stage.name, *one.rate))
            raise RecipeError(
                key, f"a rate of up to {far[0]:g} is meant for random weights, and models.{one.role} is a trained "
                f"model ({one.path}), which it ruins ({far[1]}). Set {key} to what you mean, this rate too"
                f"{_point_to(recipe, recipe.stages[-1])}"
            )  # fmt: skip


def list_slow(recipe: Recipe) -> list[str]:
    """Return a line if bfloat16 is set on a processor that has no instructions for it."""
    asked: dict[str, None] = {}
    for table in recipe.stages:
        models = {f"models.{name}": model for name, model in table.get("models", {}).items()}
        elsewhere = any(model.get("device", "cpu") != "cpu" for model in models.values())
        own = {"engine": table.get("engine", {}), **models} if not elsewhere else {}
        asked |= dict.fromkeys(f"{key}.dtype" for key, part in own.items() if part.get("dtype") == "bfloat16")
    if not (asked and lacks_bfloat16()):
        return []
    keys = " and ".join(asked)
    why = "this processor has no instructions for it (avx512_bf16, amx_bf16; bf16 on arm), and is several times slower"
    return [f"{keys} = \"bfloat16\": {why} in it than in float32: leave float32 (`shuhari doctor` measures both)"]


def find_highest(rate: Any) -> float:
    """Return the highest value of a learning rate, a number or the table of a schedule; 0.0 if it has none."""
    if isinstance(rate, Mapping):
        steps = rate.get("steps") or ()
        values = [rate.get("from"), rate.get("to"), *(pair[-1] for pair in steps if pair)]
        return max((float(v) for v in values if isinstance(v, int | float)), default=0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


@dataclass(frozen=True)
class _Trained:
    """A role whose model has a `path` and that a part of a stage trains. `table`: the stage's; `rate`: the place of the
    part's learning rate."""

    table: Mapping[str, Any]
    stage: Components
    rate: Path
    role: str
    model: Any
    path: str

    def explain_rate(self) -> tuple[float, str] | None:
        """Return (the highest rate, the usual one in words) if it is more than ten times the usual one."""
        adapted = ability(self.model, "lora") is not None
        usual = find_usual(adapted=adapted)
        highest = find_highest(look_up(self.table, self.rate) or self.stage.defaults.get(format_path(self.rate)))
        whose = "adapters" if adapted else "all weights"
        return (highest, f"usual for {whose}: {usual:g}") if highest > FAR * usual else None


def _walk_trained(recipe: Recipe, stages: Sequence[Components]) -> Iterator[_Trained]:
    """Yield each role with a `path` that is trained, stage by stage and part by part."""
    models: dict[str, Any] = {}
    for table, stage in zip(recipe.stages, stages, strict=True):
        for name in sort_roles(stage.models):
            role = stage.models[name]
            models[name] = models.get(role.same_as or role.init) if role.model is None else role.model
        for at, learner in walk_learners(stage.learners):
            parts: Mapping[str, Any] = ability(learner, "parts")
            for part_name, part in parts.items():
                rate = (*at, "part", part_name, "optimiser", "lr")
                for name in part.trains:
                    if (model := models.get(name)) and (path := ability(model, "path")):
                        yield _Trained(table, stage, rate, name, model, path)


def _judge_toy(recipe: Recipe, stage: Components, role: str, *, warms: bool) -> Iterator[str]:
    """Yield a note for each toy value that comes from the packaged recipe, not from the user."""
    if warms and stage.imitates and _is_packaged(recipe, stage, ("buffer", "use")):
        yield f"stage {stage.name!r} imitates {stage.imitates} before (--remove stage.{stage.name} leaves it out)"
    sampled, max_new = ("rollout", "sampling", "max_new"), stage.sampling.max_new
    if not stage.imitates and max_new <= SHORT and _is_packaged(recipe, stage, sampled):
        yield f"{format_path(sampled)} is {max_new}"
    row = ("models", role, "context")
    widths = [look_up(table, row) for table in recipe.stages]
    context = next((w for w in widths if isinstance(w, int)), 0)
    if 0 < context <= NARROW and _is_packaged(recipe, stage, row):
        yield f"{format_path(row)} is {context}"


def _is_packaged(recipe: Recipe, stage: Components, path: Path) -> bool:
    """Whether a value comes from a recipe of the library that is not made for trained models."""
    whose = (recipe.sources.get(at) for at in (("stage", stage.name, *path), path))
    return _is_for_random_weights(next((w for w in whose if w is not None), ""))


def _is_for_random_weights(by: str) -> bool:
    """Whether the source of a value is a recipe of the library, and none for trained models."""
    return not by.startswith(f"{FAMILY}/") and "/" in by and find_recipe(by) is not None


def _is_inherited(recipe: Recipe, stage: Components, path: Path) -> bool:
    """Whether a value, a number or a schedule, comes only from packaged recipes for random weights, or is the default.
    """
    for place in (("stage", stage.name, *path), path):
        whose = [by for at, by in recipe.sources.items() if at[: len(place)] == place]
        if whose:
            return all(_is_for_random_weights(by) for by in whose)
    return True


def _point_to(recipe: Recipe, table: Mapping[str, Any]) -> str:
    """Return a pointer to the recipe for trained models whose terms and rows are most like the stage's."""
    if recipe.name.startswith(f"{FAMILY}/"):
        return ""
    mine = _describe(table)
    family = [name for name in list_names() if name.startswith(f"{FAMILY}/")]
    scored = []
    for name in family:
        last = load(name).stages[-1]
        terms = sum(len(part.get("terms", ())) for part in last.get("part", {}).values())
        scored.append((_compare(mine, _describe(last)), -terms, name))  # of equal ones the one with fewest terms
    score, _, name = max(scored, key=lambda found: found[:2], default=((0,), 0, ""))
    return f". {name} has the usual values" if any(score[:2]) else ""


def _describe(table: Mapping[str, Any]) -> tuple[set[str], str, str, set[str]]:
    """Return (terms, buffer, rollout, parts) of a stage, by what they use."""
    parts = table.get("part", {})
    terms = {
        str(term.get("use", key))
        for part in parts.values()
        for key, term in (part.get("terms") or {}).items()
    }
    buffer, rollout = (str(table.get(key, {}).get("use", "")) for key in ("buffer", "rollout"))
    return terms, buffer, rollout, set(parts)


def _compare(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[int, ...]:
    """Return how alike two stages are; the first two entries count equal terms, and equal rows."""
    same = len(a[0] & b[0])
    return same, int(a[1] == b[1]), int(a[2] == b[2]), int(a[3] == b[3]), -len(a[0] ^ b[0])
