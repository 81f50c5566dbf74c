"""The checks of a claim, read from its table: which quantity is compared, by which rule, and in which role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings, look_up
from shuhari.data import EMPTY, nearest
from shuhari.lab.claims.verdict import ROLES, Rule
from shuhari.ports.hooks import ability

METHOD, BASELINE, START = "method", "baseline", "start"
KINDS = {  # of a rival -> what it is; the paper's own baseline is the headline's
    "knob": "the baseline's own setting turned",
    "information": "the plain use of what the method knows and the baseline does not",
    "compute": "the baseline with as many samples",
}
SHARES = ("evaluate/greedy", "evaluate/mean", "evaluate/score", "pass@", "reward/score", "rollout/alike")


@dataclass(frozen=True)
class Check:
    """A check: `quantity` is the table of the quantity that is compared, `rule` how. kind: of a rival, one of KINDS.
    turned: of a rival, the arm that is the method with the same knob turned; "" if there is none."""

    quantity: Mapping[str, Any]
    rule: Rule
    kind: str = ""
    turned: str = ""

    @property
    def trains(self) -> bool:
        """Whether it reads runs, not simulations."""
        return ability(look_up("quantity", self.quantity.get("use", "metric"), "claim.check"), "trains")

    @property
    def within(self) -> bool:
        """Whether it compares two readings of the same run, and so needs no other arm."""
        return self.quantity.get("use") == "gain" and len(self.rule.sides) == 1

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides whose values it reads: those of its rule, and `turned` if there is one."""
        return (*self.rule.sides, self.turned) if self.turned else self.rule.sides

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose runs it reads."""
        return tuple(side for side in self.sides if side != START) if self.trains else ()


def name_quantity(table: Mapping[str, Any]) -> str:
    """Return a short name of what a check compares, from its table or its entry in a result."""
    name = str(table.get("metric") or table.get("use", ""))
    if "other" not in table or table.get("use") != "gain":
        return name
    weight = table.get("weight", 1.0)
    return f"{name} - {'' if weight == 1 else f'{weight:g} x '}{table['other']}"


def read_checks(
    tables: Sequence[Mapping[str, Any]], budget: tuple[str, float] | None, *, premises: bool = True
) -> tuple[Check, ...]:
    """Read the checks of a claim. Without `premises`, a headline about runs needs none. Raises RecipeError for a
    mistake in a check, or if the roles are wrong."""
    if not tables:
        raise RecipeError("claim.check", "missing: expected a list of at least one table")
    lead = next((t for t in tables if isinstance(t, Mapping) and t.get("role") == "headline"), EMPTY)
    checks = []
    for i, table in enumerate(tables):
        with _say_role(table):
            where = f"claim.check.{i}"
            checks.append(_read_check(_fill(table, lead, where), where, budget))
    _check_roles(checks, premises)
    _check_turned(checks)
    return tuple(checks)


def name_check(number: int, check: Check, key: str = "") -> str:
    """Return where a check of a claim stands, for an error: its number, its key and its role."""
    return f"claim.check.{number}{key and f'.{key}'} ({check.rule.role})"


@contextmanager
def _say_role(table: Mapping[str, Any]) -> Iterator[None]:
    """Add the role of a check to an error about it: a number alone is hard to find in a list."""
    try:
        yield
    except RecipeError as error:
        role = table.get("role")
        raise RecipeError(f"{error.where} ({role})" if role in ROLES else error.where, error.problem) from None


def _fill(table: Mapping[str, Any], lead: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a check's table with what it takes over from the headline: a rival all of it but `against`, an ablation
    the margin."""
    if table.get("role") == "because" and "margin" in lead and lead.get("direction") == table.get("direction"):
        same = all(table.get(key) == lead.get(key) for key in ("metric", "use", "other", "ratio"))
        return {"margin": lead["margin"], **table} if same else table
    if table.get("role") != "rival":
        return table
    for key in table:
        if key not in ("role", "against", "kind", "turned"):
            expected = "a rival is compared as the headline is; expected only role, against, kind and turned"
            raise RecipeError(f"{where}.{key}", f"{table[key]!r}: {expected}")
    if not isinstance(table.get("against"), str):
        given = f"{table['against']!r}" if "against" in table else "missing"
        raise RecipeError(f"{where}.against", f"{given}: expected the name of an arm, the rival")
    return {**lead, **table}


def _read_check(table: Mapping[str, Any], where: str, budget: tuple[str, float] | None) -> Check:
    own, kind, table = {f.name for f in fields(Rule)}, table.get("kind", ""), dict(table)
    turned = _read_turned(table, where) if table.get("role") == "rival" else ""
    if table.get("role") == "rival" and "kind" not in table:
        kinds = [f"{name} ({what})" for name, what in KINDS.items()]
        raise RecipeError(f"{where}.kind", f"missing: expected {', '.join(kinds[:-1])} or {kinds[-1]}")
    if table.get("role") == "rival" and (not isinstance(table.pop("kind"), str) or kind not in KINDS):
        raise RecipeError(f"{where}.kind", f"{kind!r}: {nearest(str(kind), KINDS)}")
    rule = {k: v for k, v in table.items() if k in own}
    quantity = {k: v for k, v in table.items() if k not in own}
    known = {"use", *own, *(f.name for f in fields(look_up("quantity", quantity.get("use", "metric"), f"{where}.use")))}
    for key in quantity:
        if key not in known:
            raise RecipeError(f"{where}.{key}", f"expected a key of this check; {nearest(key, known)}")
    if "role" not in rule:
        raise RecipeError(f"{where}.role", f"missing: expected one of {', '.join(ROLES)}")
    if rule["role"] == "dose":
        rule = {"direction": "up", **rule}
        if isinstance(rule.get("against"), bool) or not isinstance(rule.get("against"), int | float):
            given = f"{rule['against']!r}" if "against" in rule else "missing"
            raise RecipeError(f"{where}.against", f"{given}: expected the floor of the dose, a number")
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
    return Check(quantity, Settings().make(Rule, rule, where, "a check"), kind, turned)


def _read_turned(table: dict[str, Any], where: str) -> str:
    """Take `turned` out of a rival's table, and return it."""
    turned = table.pop("turned", "")
    if not isinstance(turned, str) or (turned and table.get("kind") == "compute"):
        expected = "the arm that is the method with the knob of this rival turned, of kind 'knob' or 'information'"
        raise RecipeError(f"{where}.turned", f"{turned!r}: expected {expected}")
    return turned


def _check_roles(checks: Sequence[Check], premises: bool) -> None:
    """Require one headline, at most one guard, and a premise if the headline is about runs."""
    count = {
        role: [c for c in checks if c.rule.role == role]
        for role in ROLES
    }
    for i, check in enumerate(checks):
        if check.rule.against == START and check.rule.role != "premise":
            raise RecipeError(name_check(i, check, "against"), "'start': expected a number or an arm; only a premise "
                              "is compared with the start")  # fmt: skip
    for role, most in (("headline", 1), ("guard", 1), ("dose", 1)):
        if len(count[role]) > most:
            raise RecipeError("claim.check", f"{len(count[role])} checks have the role {role!r}: expected one")
    if not count["headline"]:
        raise RecipeError("claim.check", "no check has the role 'headline': expected one, the number that decides the "
                          "claim")  # fmt: skip
    if premises and count["headline"][0].trains and not (count["premise"] or all(check.within for check in checks)):
        expected = "one, for what must hold of bed and baseline before the paper's effect can show"
        raise RecipeError("claim.check", f"no check has the role 'premise': expected {expected}")


def _check_turned(checks: Sequence[Check]) -> None:
    """Require that what is called the method with a knob turned is neither the method itself nor compared with it."""
    others = {METHOD: "the method itself", BASELINE: "the baseline"}
    others |= {str(c.rule.against): "a rival" for c in checks if c.rule.role == "rival"}
    for i, check in enumerate(checks):
        if check.turned in others:
            expected = "expected an arm that is the method with the knob of this rival turned"
            raise RecipeError(name_check(i, check, "turned"), f"{check.turned!r} is {others[check.turned]}; {expected}")


def is_share(metric: str) -> bool:
    """Whether a metric is a share in [0, 1], by its name; `evaluate/<way>.mean` counts as `evaluate/mean`."""
    name, _, reading = metric.rpartition(":")
    way, dot, score = name.partition("@")[0].rpartition(".")
    score = f"evaluate/{score}" if dot and way.startswith("evaluate/") else score
    score = "pass@" if score == "evaluate/pass" else score
    return score in SHARES and reading.partition("=")[0] != "to"
