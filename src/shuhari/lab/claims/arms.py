"""The arms of a claim as recipes: how each is made, and checks that they can be compared.

For a claim of a recipe, each arm is that recipe or another one with settings on top. For a claim of a method, an
arm is the bed, with the settings that all arms share, the method, and the arm's own settings laid over it in this
order; the baseline is the bed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config import library
from shuhari.config.files import find_file, read_chain
from shuhari.config.overlay import RecipeError, Tree
from shuhari.config.recipe import Recipe, find_usual_base, load, read_method
from shuhari.data import EMPTY, nearest
from shuhari.lab.claims.checks import BASELINE, METHOD, START, Check, name_check
from shuhari.lab.claims.digest import describe, hash_description

SCORED = ("task", "evaluate", "evaluation_rollout")  # the task, and how it is scored


def list_tables(
    baseline: str | Mapping[str, Any] | None, arms: Mapping[str, Any], bed: str
) -> dict[str, Mapping[str, Any]]:
    """Return name -> table of every arm; without a baseline if neither a baseline nor a bed is given. Raises
    RecipeError for an arm that is not a table, or has a reserved name."""
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


def name_arm(name: str) -> str:
    """Return the key of an arm's table in a claim."""
    return "claim.baseline" if name == BASELINE else f"claim.arms.{name}"


@dataclass(frozen=True, eq=False)
class ArmMaker:
    """What the arms are made of: a recipe, or a method laid over its `bed` with the settings `own` on top."""

    reference: str
    recipe: Recipe
    bed: str = ""
    own: Mapping[str, Any] = EMPTY

    def make(
        self, table: Mapping[str, Any], over: Sequence[Mapping[str, Any]], budget: tuple[str, float] | None, where: str
    ) -> Recipe:
        """Make an arm from its table, which is at the key `where`. `over`: two tables of settings that all arms share,
        applied below and above the arm's own. Raises RecipeError for a mistake in the table."""
        extends = table.get("extends", METHOD)
        named = self.reference if extends == METHOD else str(extends)
        own_key = where if where == name_arm(BASELINE) else f"{where}.extends"  # a baseline may be a name alone
        with _read_at("claim.bed" if named == self.bed else own_key):
            laid = bool(self.bed and find_usual_base(named))
            recipe = self.recipe if laid or named == self.reference else load(named)
        with _read_at("claim.bed"):
            recipe = load(self.bed) if laid else recipe
        with _read_at(where):
            own = {k: v for k, v in table.items() if k != "extends"}
            base = self._start(recipe.with_settings(over[0]), named if laid else "", own)
            base = base.with_settings(over[1]) if over[1] else base
            if budget is None:
                return base
            unit, amount = budget
            last = list(base.tree.get("stage", ()))[-1:]
            spend: Tree = {unit: int(amount)}
            return base.with_settings({"stage": {last[0]: spend}} if last else spend)

    def _start(self, recipe: Recipe, method: str, own: Mapping[str, Any]) -> Recipe:
        """Lay a method, if one is named, and an arm's own settings over a recipe."""
        if not method:
            return recipe.with_settings(own) if own else recipe
        above = [self.own] if read_method(method).name == self.recipe.name else []
        laid = recipe.with_methods([read_method(method)], own)
        for more in (*above, own):
            laid = laid.with_settings(more) if more else laid
        return laid


def check_arms(checks: Sequence[Check], arms: Mapping[str, Recipe], bed: str) -> None:
    """Raises RecipeError if two arms do the same, are scored differently, or a check names an arm that does not
    exist."""
    seen: dict[str, str] = {}  # digest -> arm
    descriptions = {name: _describe(name, arm) for name, arm in arms.items()}
    for name in arms:
        if (twin := seen.setdefault(hash_description(descriptions[name]), name)) != name:
            raise RecipeError(f"claim.arms.{name}", f"does the same as {twin!r}: expected settings that differ")
        built = [descriptions[one]["stages"][-1][1] for one in (name, METHOD)]
        elsewhere = "task" in built[1].get("evaluate", EMPTY)  # if so, the same for all arms, as all of [evaluate] is
        for section in SCORED[elsewhere:]:
            theirs, ours = (one.get(section, EMPTY) for one in built)
            for key in dict.fromkeys((*ours, *theirs)):
                if theirs.get(key) != ours.get(key):
                    message = f"{section}.{key} is {theirs.get(key)!r}, the method's {ours.get(key)!r}"
                    raise RecipeError(f"claim.arms.{name}", f"{message}: expected the same of all arms")
    for i, check in enumerate(checks):
        for key, side in (("arm", check.rule.arm), ("against", check.rule.against), ("turned", check.turned)):
            of_card = check.rule.role == "premise" and (side == START or bool(bed))  # the card may have more arms
            if side in check.sides and side not in arms and check.trains and not of_card:
                raise RecipeError(name_check(i, check, key), f"no arm {side!r}; {nearest(str(side), arms)}")
        if not check.trains and isinstance(check.rule.against, str):
            raise RecipeError(name_check(i, check, "against"), "missing: the number that a simulation is compared with")


@contextmanager
def _read_at(where: str) -> Iterator[None]:
    """Add the key that names a recipe, or has settings, to an error about it."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(where, str(error)) from None


def _describe(name: str, arm: Recipe) -> dict[str, Any]:
    """Return the description of an arm. Raises RecipeError with the arm, which the names of settings do not tell."""
    with _read_at(name_arm(name)):
        return describe(arm)


def find_files(references: Iterable[str]) -> tuple[Path, ...]:
    """Return the files that recipes are written in: their own, those of recipes they extend, and those of the bases of
    methods. Names of no recipe, and recipes without a file, are skipped."""
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
