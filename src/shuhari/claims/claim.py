"""The `[claim]` table of a recipe: the arms, their common budget, and what is checked. No torch.

```toml
[claim]
says = "..."                        # the paper's claim, scaled to what is measured
baseline = "baselines/grpo_chain"   # the arm `baseline`: a recipe; or a table laid over this one ([claim.baseline])
seeds = 8
warm = "warm-up"                    # stages up to this one: made once a seed, shared by the arms, charged to none
budget = {tokens = 400_000}         # of every arm, in one unit of the ledger
settings = {}                       # laid over every arm: task, size, evaluation
arms = {}                           # further arms, each a table as the baseline's; `extends` names another recipe
smoke = {}                          # laid over every arm for a minute's version; `budget` and `seeds` too
notes = []                          # what was tried before the protocol was fixed
[[claim.check]]
metric = "evaluate/mean:area"       # what is compared, see `quantities`
direction = "up"                    # and the rule, see `verdict`
```
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from shuhari.claims.verdict import LEAST, Rule
from shuhari.data import EMPTY, nearest
from shuhari.overlay import BUDGETS, RecipeError, Tree
from shuhari.recipe import Recipe, dump, load

KEYS = ("says", "baseline", "seeds", "warm", "budget", "settings", "arms", "smoke", "notes", "check")
METHOD, BASELINE = "method", "baseline"
SMOKE_SEEDS = 2
ALIKE = 0.1  # share by which what arms spent may differ: the last step of an arm may be a long one
OFFLINE = ("demos", "preferences")  # buffers that ask nobody for samples
ASKING = ("rollout", "curriculum", "engine", "reward", "collect")  # what such a stage does not use


@dataclass(frozen=True)
class Check:
    """One thing that is claimed: `quantity` is a table for the quantity that is compared, `rule` says how."""

    quantity: Mapping[str, Any]
    rule: Rule


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim, resolved: name -> recipe of every arm, without the stages of `warm`, which all of them start from.
    `budget`: (unit, amount), or None where only simulations are checked."""

    name: str
    says: str
    arms: Mapping[str, Recipe]
    checks: tuple[Check, ...]
    seeds: tuple[int, ...]
    budget: tuple[str, float] | None
    warm: Recipe | None
    notes: tuple[str, ...]
    paper: Mapping[str, Any]
    smoke: bool = False

    @property
    def own(self) -> Recipe:
        """The method's recipe, also where no arm is run."""
        return self.arms.get(METHOD) or load(self.name)


def read(reference: str, *, smoke: bool = False, seeds: int | None = None) -> Claim:
    """The claim of a recipe; RecipeError where it has none, or for a mistake in it."""
    method = load(reference)
    table = method.tree.get("claim")
    if not table:
        raise RecipeError("claim", f"{method.name} states no claim: a [claim] table says what is to be measured")
    for key in table:
        if key not in KEYS:
            raise RecipeError(f"claim.{key}", f"no such key in a claim; {nearest(key, KEYS)}")
    checks = tuple(_check(c, f"claim.check.{i}") for i, c in enumerate(table.get("check", ())))
    if not checks:
        raise RecipeError("claim.check", "missing: at least one [[claim.check]]")
    small = table.get("smoke", EMPTY) if smoke else EMPTY
    number = seeds or small.get("seeds", SMOKE_SEEDS if smoke else table.get("seeds", 8))
    if not smoke and seeds is None and number < LEAST:
        raise RecipeError("claim.seeds", f"{number}: expected at least {LEAST}, or the interval says nothing")
    budget = _budget(small.get("budget", table.get("budget")))
    over = [table.get("settings", EMPTY), {k: v for k, v in small.items() if k not in ("budget", "seeds")}]
    given = {METHOD: EMPTY, **_arms(table)} if "baseline" in table else {}
    whole = {name: _arm(method, arm, over, budget, f"claim.arms.{name}") for name, arm in given.items()}
    _check_arms(checks, whole)
    warm, arms = _parted(whole, str(table.get("warm", "")))
    paper = method.tree.get("paper", EMPTY)
    says, notes = str(table.get("says", "")), tuple(map(str, table.get("notes", ())))
    return Claim(method.name, says, arms, checks, tuple(range(number)), budget, warm, notes, paper, smoke)


def digest(recipe: Recipe) -> str:
    """A short name for what a recipe does: not for its seed, its title or its claim."""
    tree = {k: v for k, v in recipe.tree.items() if k not in ("paper", "summary", "claim", "seed", "threads")}
    return hashlib.blake2b(dump(Recipe("", tree)).encode(), digest_size=8).hexdigest()


def _check(table: Any, where: str) -> Check:
    if not isinstance(table, Mapping):
        raise RecipeError(where, f"{table!r}: expected a [[claim.check]] table")
    own = {f.name for f in fields(Rule)}
    rule: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k in own}
    quantity = {k: v for k, v in table.items() if k not in own}
    if "range" not in rule and _is_score(str(quantity.get("metric", ""))):
        rule["range"] = (0.0, 1.0)
    try:
        return Check(quantity, Rule(**rule))
    except (ValueError, TypeError) as error:
        raise RecipeError(where, str(error)) from None


def _is_score(metric: str) -> bool:
    """Whether a metric is a share of what was asked, by its name."""
    name, _, reading = metric.rpartition(":")
    score = name.partition("@")[0].removeprefix("evaluate/")
    return name.startswith("evaluate/") and reading.partition("=")[0] != "to" and score.startswith(
        ("greedy", "mean", "pass@", "score")
    )  # fmt: skip


def _budget(table: Any) -> tuple[str, float] | None:
    if table is None:
        return None
    if not isinstance(table, Mapping) or len(table) != 1:
        raise RecipeError("claim.budget", f"{table!r}: expected one unit, such as {{tokens = 400_000}}")
    ((unit, amount),) = table.items()
    known = [b for b in BUDGETS if b != "seconds"]  # which no two machines spend alike
    if unit not in known:
        raise RecipeError(f"claim.budget.{unit}", f"no such budget of a claim; {nearest(unit, known)}")
    return unit, float(amount)


def _arms(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    baseline = table["baseline"]
    out = {BASELINE: {"extends": baseline} if isinstance(baseline, str) else baseline, **table.get("arms", EMPTY)}
    for name, arm in out.items():
        if name == METHOD or not isinstance(arm, Mapping):
            raise RecipeError(f"claim.arms.{name}", f"{arm!r}: expected a table of settings, and a name of its own")
    return out


def _arm(
    method: Recipe, table: Mapping[str, Any], over: list[Any], budget: tuple[str, float] | None, where: str
) -> Recipe:
    """This recipe or the one that the arm extends, with what all arms share, its own settings and the budget."""
    base = load(table["extends"]) if "extends" in table else method
    own = {k: v for k, v in table.items() if k != "extends"}
    try:
        for settings in (over[0], own, over[1]):
            base = base.changed(settings) if settings else base
        if budget is None:
            return base
        unit, amount = budget
        last = list(base.tree.get("stage", ()))[-1:]
        spend: Tree = {unit: int(amount)}
        return base.changed({"stage": {last[0]: spend}} if last else spend)
    except RecipeError as error:
        raise RecipeError(f"{where}, {error.where}", error.problem) from None


def _check_arms(checks: tuple[Check, ...], arms: Mapping[str, Recipe]) -> None:
    for i, check in enumerate(checks):
        for name in (check.rule.arm, check.rule.against):
            if isinstance(name, str) and name not in arms and check.quantity.get("use") != "simulated":
                raise RecipeError(f"claim.check.{i}", f"no arm {name!r}; {nearest(name, arms)}")


def _parted(arms: Mapping[str, Recipe], warm: str) -> tuple[Recipe | None, dict[str, Recipe]]:
    """The warm start of all arms, as the baseline's recipe has it, and each arm without it."""
    if not warm:
        return None, dict(arms)
    names = list(arms[BASELINE].tree.get("stage", ()))
    if warm not in names[:-1]:
        raise RecipeError("claim.warm", f"the baseline has no stage {warm!r} before its last; {nearest(warm, names)}")
    return _warm(arms[BASELINE], names[: names.index(warm) + 1]), {n: _after(r, warm) for n, r in arms.items()}


def _warm(recipe: Recipe, names: list[str]) -> Recipe:
    """The first stages alone, stripped of what does not reach the weights, so that claims share what is the same."""
    stages = {}
    for table in recipe.stages[: len(names)]:
        offline = table.get("buffer", EMPTY).get("use") in OFFLINE and not table.get("learner")
        drop = ("paper", "summary", "claim", "name", *(("evaluate", *ASKING) if offline else ()))
        kept = {k: deepcopy(v) for k, v in table.items() if k not in drop}
        if offline:  # elsewhere a copy may be learnt from, and an evaluation be listened to
            kept["models"] = {r: m for r, m in kept["models"].items() if "init" not in m}
        stages[table["name"]] = kept
    base = {k: v for k, v in next(iter(stages.values())).items() if k in ("format", "seed", "threads")}
    for kept in stages.values():
        for key in base:
            kept.pop(key, None)
    return Recipe("warm", {**base, "stage": stages})


def _after(recipe: Recipe, warm: str) -> Recipe:
    """A recipe without its stages up to `warm`; one that has none of that name starts with all of its own."""
    stages = recipe.tree.get("stage", {})
    names = list(stages)
    if warm not in names:
        return recipe
    left = {n: stages[n] for n in names[names.index(warm) + 1 :]}
    return Recipe(recipe.name, {**recipe.tree, "stage": left}, recipe.sources)
