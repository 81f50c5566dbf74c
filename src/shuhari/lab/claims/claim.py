"""The `[claim]` table of a recipe: the arms, their common budget, and the checks.

```toml
[claim]
says = "..."                        # the paper's claim, scaled to what is measured
bed = "beds/trie/twins"             # what a method is laid over, where that is not its usual base; if it has a card,
                                    # that tells of the baseline beforehand
baseline = "baselines/grpo"         # the arm `baseline`: a recipe, or a table laid over this one; of a method over the
                                    # bed, which alone it is where nothing is said
looks = [5, 8, 12]                  # seeds at each look; [n]: one look at n
warm = "warm-up"                    # stages up to this one: made once a seed, shared by the arms, charged to none;
                                    # or a table, arm -> the last of its own stages that prepare it
budget = {tokens = 400_000}         # of every arm, in one unit of the ledger; stages before its last are part of it;
                                    # {steps = 0}: the arms, which have no part, only measure, and all checks are gains
settings = {}                       # laid over every arm, below a method: task, size, evaluation
arms = {}                           # further arms, each a table laid over this one; `extends` names another recipe, or
                                    # the arm `method`; `arms.method` is laid over all arms of the method
smoke = {}                          # laid over every arm for a minute's version; `budget` and `seeds` too
check = [                           # what is compared, see `quantities`, and the rule, see `verdict`
  {role = "premise", metric = "evaluate/mean:area", against = 0.5, direction = "down"},
  {role = "headline", metric = "evaluate/mean:area", direction = "up", margin = 0.02},
]
notes = []                          # what was tried before the protocol was fixed
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, Steps
from shuhari.config.overlay import BUDGETS, USE, RecipeError, read_budgets
from shuhari.config.recipe import Recipe, find_file, find_usual_base, load
from shuhari.config.settings import Settings
from shuhari.data import EMPTY, nearest
from shuhari.kernel.registry import declared
from shuhari.lab.claims.arms import METHOD, ArmMaker, check_arms, find_files, list_tables
from shuhari.lab.claims.checks import BASELINE, Check, read_checks
from shuhari.lab.claims.looks import LOOKS, compute_levels
from shuhari.lab.claims.verdict import LEAST

WARM = "warm start"
FIRST = 1000  # the first seed of every claim: apart from those on which recipes are tried out, a smoke's among them
SMOKE_SEEDS, SMOKE_WARM = 2, 40  # of a minute's version: how many, and the longest stage of its warm start
ALIKE = 0.1  # share by which what arms spent may differ: the last step of an arm may be a long one
ASKING = ("rollout", "curriculum", "engine", "reward", "collect")  # what such a stage does not use


@dataclass(frozen=True)
class Stated:
    """The table as written in a recipe."""

    check: tuple[Mapping[str, Any], ...] = ()
    says: str = ""
    baseline: str | Mapping[str, Any] | None = None
    looks: tuple[int, ...] = ()
    bed: str = ""
    warm: str | Mapping[str, Any] = ""
    budget: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default=EMPTY)
    arms: Mapping[str, Any] = field(default=EMPTY)
    smoke: Mapping[str, Any] = field(default=EMPTY)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim, resolved: name -> recipe of every arm, without the stages that prepare it; `warm`: those, by arm, one
    recipe where all share it. `method`: that recipe as it stands; `budget`: (unit, amount), or None where only
    simulations are checked."""

    method: Recipe
    says: str
    arms: Mapping[str, Recipe]
    checks: tuple[Check, ...]
    seeds: tuple[int, ...]
    budget: tuple[str, float] | None
    warm: Mapping[str, Recipe]
    notes: tuple[str, ...]
    smoke: bool = False
    looks: tuple[int, ...] = ()  # numbers of seeds; none of a card's
    bed: str = ""
    file: Path | None = None  # where its table stands
    files: tuple[Path, ...] = ()  # all that it is written in: those of its arms and its bed too

    def with_seeds(self, seeds: Sequence[int]) -> Claim:
        """The same claim on other seeds."""
        return replace(self, seeds=tuple(seeds))

    def select(self, checks: Collection[int], seeds: Sequence[int]) -> Claim:
        """A part of the claim: some checks, by number, and the arms that these are about; the baseline always."""
        some = tuple(self.checks[i] for i in checks)
        named = {
            BASELINE,
            *(
                arm
                for check in some
                for arm in check.arms
            ),
        }
        arms = {name: arm for name, arm in self.arms.items() if name in named}
        warm = {name: recipe for name, recipe in self.warm.items() if name in named}
        return replace(self, arms=arms, checks=some, seeds=tuple(seeds), warm=warm)

    def find_checks(self, role: str) -> list[int]:
        """The numbers of the checks of a role."""
        return [i for i, check in enumerate(self.checks) if check.rule.role == role]

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes of the arms, and of their warm starts."""
        shared = len({id(r) for r in self.warm.values()}) == 1 and len(self.warm) == len(self.arms)
        names = dict.fromkeys(self.warm, WARM) if shared else {arm: f"{WARM} of {arm}" for arm in self.warm}
        return {**self.arms, **{names[arm]: recipe for arm, recipe in self.warm.items()}}

    @property
    def own(self) -> Recipe:
        """The method's arm, or its recipe where none is run."""
        return self.arms.get(METHOD, self.method)


def read(reference: str, *, smoke: bool = False, bed: str = "") -> Claim:
    """The claim of a recipe, of a method on another `bed` than its own; RecipeError where it has none, or for a mistake
    in it."""
    method, on = load(reference), find_usual_base(reference)
    if bed and not on:
        raise RecipeError("", f"{method.name} is a recipe of its own, and its claim cannot be laid over {bed}")
    table = method.tree.get("claim")
    if not table:
        raise RecipeError("claim", f"{method.name} states no claim: a [claim] table says what is to be measured")
    stated: Stated = Settings().make(Stated, table, "claim", "a claim")
    small = stated.smoke if smoke else EMPTY
    budget = _read_budget(small.get("budget", stated.budget))
    checks = read_checks(stated.check, budget)
    _check_measured(checks, budget)
    trains, looks = any(check.trains for check in checks), _read_looks(stated, small, smoke)
    bed = (bed or stated.bed or on) if on else ""
    named = bed or stated.bed  # whose card may tell of the baseline
    if trains:
        within = not stated.arms and all(check.within for check in checks)
        for key, given in (("baseline", bed or stated.baseline), ("budget", budget)):
            if given is None and not (key == "baseline" and within):
                raise RecipeError(f"claim.{key}", f"missing: {_MISSING[key]}")
    over = [stated.settings, {k: v for k, v in small.items() if k not in ("budget", "seeds")}]
    made = ArmMaker(reference, method, bed, stated.arms.get(METHOD, EMPTY) if bed else EMPTY)
    there = list_tables(stated.baseline, stated.arms, bed) if trains else {}
    whole = {name: made.make(arm, over, budget, f"claim.arms.{name}") for name, arm in there.items()}
    check_arms(checks, whole, named)
    warm, arms = part_stages(whole, stated.warm)
    if budget is not None:
        all_of_it = _read_budget(stated.budget) or budget
        arms = {name: _split(arm, f"claim.arms.{name}", budget, all_of_it) for name, arm in arms.items()}
    if smoke:
        short = {id(recipe): _shorten(recipe) for recipe in warm.values()}
        warm = {arm: short[id(recipe)] for arm, recipe in warm.items()}
    first = 0 if smoke else FIRST
    seeds = tuple(range(first, first + looks[-1]))
    return Claim(
        method, stated.says, arms, checks, seeds, budget, warm, stated.notes, smoke, looks, named,
        find_file(reference),
        find_files([reference, *filter(None, (named, *(a.get("extends") for a in there.values())))]),
    )  # fmt: skip


def _read_looks(stated: Stated, small: Mapping[str, Any], smoke: bool) -> tuple[int, ...]:
    """How many seeds there are at each look."""
    found = (small.get("seeds", SMOKE_SEEDS),) if smoke else stated.looks or LOOKS
    where, least = ("claim.smoke.seeds", 2) if smoke else ("claim.looks", LEAST)
    for number in found:
        Settings().check(Annotated[int, Bounds(least)], number, where)
    try:
        compute_levels(found)
    except ValueError as error:
        raise RecipeError("claim.looks", str(error)) from None
    return found


_MISSING = {
    "baseline": "the recipe to compare with, or a table of settings laid over this one",
    "budget": "what every arm may spend, such as {tokens = 400_000}",
}


def _read_budget(table: Any) -> tuple[str, float] | None:
    if table is None:
        return None
    if not isinstance(table, Mapping) or len(table) != 1:
        raise RecipeError("claim.budget", f"{table!r}: expected one unit, such as {{tokens = 400_000}}")
    ((unit, amount),) = table.items()
    known = [b for b in BUDGETS if b != "seconds"]  # which no two machines spend alike
    if unit not in known:
        raise RecipeError(f"claim.budget.{unit}", f"no such budget of a claim; {nearest(unit, known)}")
    return unit, float(Settings().check(Steps if unit == "steps" else Length, amount, f"claim.budget.{unit}"))


def _check_measured(checks: Sequence[Check], budget: tuple[str, float] | None) -> None:
    """RecipeError where arms of 0 steps, which only measure, are asked for more than gains."""
    if budget is None or budget[1]:
        return
    if (i := next((i for i, c in enumerate(checks) if c.trains and c.quantity.get("use") != "gain"), -1)) >= 0:
        message = "expected use = 'gain', or a budget of 1 step or more"
        raise RecipeError(f"claim.check.{i}", f"arms of 0 steps only measure, and have no curve: {message}")


def part_stages(
    arms: Mapping[str, Recipe], warm: str | Mapping[str, Any]
) -> tuple[dict[str, Recipe], dict[str, Recipe]]:
    """(what prepares each arm, each arm without it): the baseline's stages up to `warm` for all of them (where nothing
    is compared, the method's), or the arms' own, where `warm` names one of each; an arm that it does not name starts
    from fresh weights."""
    if not warm:
        return {}, dict(arms)
    if isinstance(warm, str):
        who = BASELINE if BASELINE in arms else METHOD
        shared = _prepare(arms[who], warm, f"the {who}", "claim.warm")
        return dict.fromkeys(arms, shared), {name: _drop_warm(arm, warm) for name, arm in arms.items()}
    if lost := next((name for name in warm if name not in arms), ""):
        raise RecipeError(f"claim.warm.{lost}", f"no such arm; {nearest(lost, arms)}")
    made = {name: _prepare(arms[name], last, f"arm {name!r}", f"claim.warm.{name}") for name, last in warm.items()}
    return made, {name: _drop_warm(arm, warm.get(name, "")) for name, arm in arms.items()}


def _prepare(recipe: Recipe, last: Any, who: str, where: str) -> Recipe:
    """The stages of a recipe up to `last`, which must be followed by another."""
    names = list(recipe.tree.get("stage", ()))
    if last not in names[:-1]:
        raise RecipeError(where, f"{who} has no stage {last!r} before its last; {nearest(str(last), names[:-1])}")
    return _make_warm(recipe, names[: names.index(last) + 1])


def _split(arm: Recipe, where: str, budget: tuple[str, float], whole: tuple[str, float]) -> Recipe:
    """An arm whose last stage gets what the others, each with an amount of its own, leave of the budget; where that is
    less than the `whole` one of the claim, in which they say theirs, so are theirs."""
    *first, last = arm.stages
    if not first:
        return arm
    unit, amount = budget
    parts: dict[str, int] = {}
    for stage in first:
        given = read_budgets(stage)
        if list(given) != [whole[0]]:
            message = f"stage {stage['name']!r} is given {', '.join(given)}: expected {whole[0]} alone, as a part of"
            raise RecipeError(where, f"{message} the budget; or, charged to none, to be named in claim.warm")
        parts[stage["name"]] = max(1, round(given[whole[0]] * amount / whole[1]))
    left = int(amount) - sum(parts.values())
    if left < 1:
        message = ", ".join(f"{part:,} {unit} of {name!r}" for name, part in parts.items())
        raise RecipeError(where, f"{message} leave nothing of {amount:,.0f} for the last stage, {last['name']!r}")
    return arm.with_settings({"stage": {name: {unit: part} for name, part in {**parts, last["name"]: left}.items()}})


def _shorten(warm: Recipe) -> Recipe:
    """A warm start of no more than SMOKE_WARM steps a stage."""
    stages = warm.tree["stage"]
    short = {n: {**s, "steps": min(s["steps"], SMOKE_WARM)} if "steps" in s else s for n, s in stages.items()}
    return Recipe(warm.name, {**warm.tree, "stage": short})


def _make_warm(recipe: Recipe, names: list[str]) -> Recipe:
    """The first stages alone, stripped of what does not reach the weights, so that claims share what is the same."""
    stages = {}
    for table in recipe.stages[: len(names)]:
        use = table.get("buffer", EMPTY).get("use", USE["buffer"])
        samples, asks, bootstraps = (declared("buffer", use, key) for key in ("samples", "asks", "bootstraps"))
        offline = samples is False and not asks and not table.get("learner")
        asking = ("evaluate", *ASKING) if offline else ()
        drop = ("paper", "summary", "alone", "laid", "claim", "study", "name", *asking)
        kept = {k: deepcopy(v) for k, v in table.items() if k not in drop}
        if offline and not bootstraps:  # elsewhere a copy may be learnt from
            taught = {
                r
                for name, part in kept.get("part", EMPTY).items()
                for r in part.get("trains", (name,))
            }
            kept["models"] = {r: m for r, m in kept["models"].items() if "init" not in m or r in taught}
        stages[table["name"]] = kept
    base = {k: v for k, v in next(iter(stages.values())).items() if k in ("format", "seed", "threads")}
    for kept in stages.values():
        for key in base:
            kept.pop(key, None)
    return Recipe("warm", {**base, "stage": stages})


def _drop_warm(recipe: Recipe, warm: str) -> Recipe:
    """A recipe without its stages up to `warm`; one without a stage of that name keeps all of its own."""
    stages = recipe.tree.get("stage", {})
    names = list(stages)
    if warm not in names:
        return recipe
    left = {n: stages[n] for n in names[names.index(warm) + 1 :]}
    return Recipe(recipe.name, {**recipe.tree, "stage": left}, recipe.sources)
