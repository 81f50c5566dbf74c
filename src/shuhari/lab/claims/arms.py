"""The arms of a claim as recipes: what each is made of, and that they may be compared.

Of a recipe, an arm is it or another with settings over it. Of a method the arms stand on a bed: the settings that all
share lie over the bed, the method over that, and an arm's own settings over the method; the baseline is the bed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config import library
from shuhari.config.files import find_file, read_chain
from shuhari.config.overlay import RecipeError, Tree
from shuhari.config.recipe import Recipe, find_usual_base, load, read_method
from shuhari.data import EMPTY, nearest
from shuhari.lab.claims.checks import BASELINE, START, Check
from shuhari.lab.claims.digest import describe, hash_description

METHOD = "method"
SCORED = ("task", "evaluate", "evaluation_rollout")  # what is solved, and how it is scored


def list_tables(
    baseline: str | Mapping[str, Any] | None, arms: Mapping[str, Any], bed: str
) -> dict[str, Mapping[str, Any]]:
    """name -> table of every arm, without a baseline where neither that nor a bed is given. RecipeError for one that is
    none, or has a name that is taken."""
    if baseline is None and not bed:
        return {METHOD: EMPTY}
    table = baseline if isinstance(baseline, Mapping) else EMPTY
    extends = baseline if isinstance(baseline, str) else bed
    others = {BASELINE: {"extends": extends, **table} if extends else table, **arms}
    if bed:
        others.pop(METHOD, None)
    for name, arm in others.items():
        if name == METHOD or (name == BASELINE and name in arms) or not isinstance(arm, Mapping):
            raise RecipeError(f"claim.arms.{name}", f"{arm!r}: expected a table of settings, and a name of its own")
    return {METHOD: EMPTY, **others}


@dataclass(frozen=True, eq=False)
class ArmMaker:
    """What the arms are made of: a recipe; or a method, laid over its `bed`, with `own` settings over that."""

    reference: str
    recipe: Recipe
    bed: str = ""
    own: Mapping[str, Any] = EMPTY

    def make(
        self, table: Mapping[str, Any], over: Sequence[Mapping[str, Any]], budget: tuple[str, float] | None, where: str
    ) -> Recipe:
        """An arm of its table; `over`: what all arms share, below and above it. RecipeError for a mistake in it."""
        try:
            base = self._start(table.get("extends"), over[0], {k: v for k, v in table.items() if k != "extends"})
            base = base.with_settings(over[1]) if over[1] else base
            if budget is None:
                return base
            unit, amount = budget
            last = list(base.tree.get("stage", ()))[-1:]
            spend: Tree = {unit: int(amount)}
            return base.with_settings({"stage": {last[0]: spend}} if last else spend)
        except RecipeError as error:
            raise RecipeError(f"{where}, {error.where}", error.problem) from None

    def _start(self, extends: str | None, settings: Mapping[str, Any], own: Mapping[str, Any]) -> Recipe:
        named = self.reference if extends in (None, METHOD) else str(extends)
        if not self.bed or not find_usual_base(named):
            recipe = (self.recipe if named == self.reference else load(named)).with_settings(settings)
            return recipe.with_settings(own) if own else recipe
        above = [self.own] if read_method(named).name == self.recipe.name else []
        laid = load(self.bed).with_settings(settings).with_methods([read_method(named)], own)
        for more in (*above, own):
            laid = laid.with_settings(more) if more else laid
        return laid


def check_arms(checks: Sequence[Check], arms: Mapping[str, Recipe], bed: str) -> None:
    """RecipeError where two arms do the same, or are scored in different ways, or a check is about none of them."""
    seen: dict[str, str] = {}  # digest -> arm
    descriptions = {name: describe(arm) for name, arm in arms.items()}
    for name in arms:
        if (twin := seen.setdefault(hash_description(descriptions[name]), name)) != name:
            raise RecipeError(f"claim.arms.{name}", f"does the same as {twin!r}: expected settings that differ")
        built = [descriptions[one]["stages"][-1][1] for one in (name, METHOD)]
        elsewhere = "task" in built[1].get("evaluate", EMPTY)  # the same for all, as all of [evaluate]
        for section in SCORED[elsewhere:]:
            theirs, ours = (one.get(section, EMPTY) for one in built)
            for key in dict.fromkeys((*ours, *theirs)):
                if theirs.get(key) != ours.get(key):
                    message = f"{section}.{key} is {theirs.get(key)!r}, the method's {ours.get(key)!r}"
                    raise RecipeError(f"claim.arms.{name}", f"{message}: expected the same of all arms")
    for i, check in enumerate(checks):
        for side in check.rule.sides:
            of_card = check.rule.role == "premise" and (side == START or bool(bed))  # which may have more arms
            if side not in arms and check.trains and not of_card:
                raise RecipeError(f"claim.check.{i}", f"no arm {side!r}; {nearest(side, arms)}")
        if not check.trains and isinstance(check.rule.against, str):
            raise RecipeError(f"claim.check.{i}.against", "missing: the number that a simulation is compared with")


def find_files(references: Iterable[str]) -> tuple[Path, ...]:
    """The files that recipes are written in: their own, those of what they extend, and of the bases that methods stand
    on; without what lies in none, and names of no recipe."""
    todo, found = [r for r in references if r.endswith(".toml") or library.find_recipe(r)], dict[Path, None]()
    while todo:
        here = todo.pop()
        for _, table in read_chain(here):
            if file := find_file(here):
                claim = library.find_claim(file)
                found |= {file: None, **({claim: None} if isinstance(claim, Path) else {})}
            here = str(table.get("extends", ""))
            todo += [str(table["on"])] if "on" in table else []
    return tuple(found)
