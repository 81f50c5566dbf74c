"""The checks of a claim, as its table says them: what is compared, by which rule, and in which role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings, look_up
from shuhari.data import nearest
from shuhari.lab.claims.verdict import ROLES, Rule
from shuhari.ports.hooks import ability

BASELINE, START = "baseline", "start"
SHARES = ("evaluate/greedy", "evaluate/mean", "evaluate/score", "pass@", "reward/score", "rollout/alike")


@dataclass(frozen=True)
class Check:
    """One check: `quantity` is a table for the quantity that is compared, `rule` says how."""

    quantity: Mapping[str, Any]
    rule: Rule

    @property
    def trains(self) -> bool:
        """Whether it is about runs."""
        return ability(look_up("quantity", self.quantity.get("use", "metric"), "claim.check"), "trains")

    @property
    def within(self) -> bool:
        """Whether it compares two readings of one run with each other, and so needs no other arm."""
        return self.quantity.get("use") == "gain" and len(self.rule.sides) == 1

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose runs it reads."""
        return tuple(side for side in self.rule.sides if side != START) if self.trains else ()


def name_quantity(table: Mapping[str, Any]) -> str:
    """What a check compares, in few words, by its table or its entry in a result."""
    name = str(table.get("metric") or table.get("use", ""))
    if "other" not in table or table.get("use") != "gain":
        return name
    weight = table.get("weight", 1.0)
    return f"{name} - {'' if weight == 1 else f'{weight:g} x '}{table['other']}"


def read_checks(
    tables: Sequence[Mapping[str, Any]], budget: tuple[str, float] | None, *, premises: bool = True
) -> tuple[Check, ...]:
    """The checks of a claim; without `premises` a headline of runs needs none. RecipeError for a mistake in one, or in
    which roles there are."""
    checks = tuple(_read_check(c, f"claim.check.{i}", budget) for i, c in enumerate(tables))
    if not checks:
        raise RecipeError("claim.check", "missing: expected a list of at least one table")
    _check_roles(checks, premises)
    return checks


def _read_check(table: Mapping[str, Any], where: str, budget: tuple[str, float] | None) -> Check:
    own = {f.name for f in fields(Rule)}
    rule = {k: v for k, v in table.items() if k in own}
    quantity = {k: v for k, v in table.items() if k not in own}
    known = {"use", *own, *(f.name for f in fields(look_up("quantity", quantity.get("use", "metric"), f"{where}.use")))}
    for key in quantity:
        if key not in known:
            raise RecipeError(f"{where}.{key}", f"no key of such a check; {nearest(key, known)}")
    if "role" not in rule:
        raise RecipeError(f"{where}.role", f"missing: expected one of {', '.join(ROLES)}")
    if "direction" not in rule:
        raise RecipeError(f"{where}.direction", "missing: 'up', 'down', 'not lower', 'not higher' or 'equal'")
    if rule["role"] == "premise":
        rule.setdefault("arm", BASELINE)
        if "against" not in rule:
            raise RecipeError(f"{where}.against", "missing: a number, 'start', or an arm")
    metric = str(quantity.get("metric", ""))
    whole = not rule.get("ratio") and quantity.get("use") != "gain"
    if "range" not in rule and whole and is_share(metric):
        rule["range"] = [0.0, 1.0]
    elif "range" not in rule and whole and budget is not None and metric.rpartition(":")[2].startswith("to="):
        rule["range"] = [0.0, budget[1]]
    return Check(quantity, Settings().make(Rule, rule, where, "a check"))


def _check_roles(checks: Sequence[Check], premises: bool) -> None:
    """One headline, at most one guard, a premise wherever runs decide."""
    count = {
        role: [c for c in checks if c.rule.role == role]
        for role in ROLES
    }
    for i, check in enumerate(checks):
        if check.rule.against == START and check.rule.role != "premise":
            raise RecipeError(f"claim.check.{i}.against", "'start': only a premise is compared with it")
    for role, most in (("headline", 1), ("guard", 1)):
        if len(count[role]) > most:
            raise RecipeError("claim.check", f"{len(count[role])} checks are the {role}: expected one")
    if not count["headline"]:
        raise RecipeError("claim.check", "none is the headline: one number decides, as the paper says it")
    if premises and count["headline"][0].trains and not (count["premise"] or all(check.within for check in checks)):
        expected = "what of bed and baseline must be so for the paper's effect to show"
        raise RecipeError("claim.check", f"none is a premise: expected {expected}")


def is_share(metric: str) -> bool:
    """Whether a metric is a share of what was asked, by its name; `evaluate/<way>.mean` as `evaluate/mean`."""
    name, _, reading = metric.rpartition(":")
    way, dot, score = name.partition("@")[0].rpartition(".")
    score = f"evaluate/{score}" if dot and way.startswith("evaluate/") else score
    score = "pass@" if score == "evaluate/pass" else score
    return score in SHARES and reading.partition("=")[0] != "to"
