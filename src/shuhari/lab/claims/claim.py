"""The `[claim]` table of a recipe: the arms, their common budget, and the checks.

```toml
[claim]
says = "..."                        # the paper's claim, scaled down to what is measured
bed = "beds/trie/twins"             # the bed that a method is laid over, if not its usual base; if it has a card, the
                                    # baseline's scores are known beforehand
baseline = "baselines/grpo"         # the arm `baseline`: a recipe, or a table laid over this one; for a method, laid
                                    # over the bed (default: the bed alone)
looks = [5, 8, 12]                  # number of seeds at each look; [n]: one look at n
warm = "warm-up"                    # the stages up to this one run once a seed, shared by the arms, and not charged;
                                    # or a table, arm -> the last of its own stages that prepare it
budget = {tokens = 400_000}         # of every arm, in one unit of the ledger, including stages before its last;
                                    # {steps = 0}: the arms train nothing and only measure; all checks must be gains
settings = {}                       # laid over every arm, below a method: task, size, evaluation
arms = {}                           # further arms, each a table laid over this one; `extends` names another recipe, or
                                    # the arm `method`; `arms.method` is laid over all arms of the method
smoke = {}                          # laid over every arm for a version of about a minute; also `budget` and `seeds`
check = [                           # what is compared, see `quantities`, and the rule, see `verdict`
  {role = "premise", metric = "evaluate/mean:area", against = 0.5, direction = "down"},
  {role = "dose", metric = "policy/changed:mean", against = 0.01},  # what share the method changes, and a floor
  {role = "headline", metric = "evaluate/mean:area", direction = "up", margin = 0.02},
  {role = "rival", against = "slower", kind = "knob"},  # the same number against another arm; the worst counts
]
worth = ""                          # why an effect of the margin matters, in a sentence
objection = ""                      # what is known against the comparison; empty if nothing
tune = {}                           # grids that are run beforehand, see `grids`
seen = false                        # whether the method was run on this bed before the protocol was fixed
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
from shuhari.config import library
from shuhari.config.overlay import BUDGETS, USE, RecipeError, read_budgets
from shuhari.config.recipe import Recipe, find_file, find_usual_base, load
from shuhari.config.settings import Settings
from shuhari.data import EMPTY, nearest
from shuhari.kernel.registry import declared
from shuhari.lab.claims.arms import ArmMaker, check_arms, find_files, list_tables, name_arm
from shuhari.lab.claims.checks import BASELINE, METHOD, Check, name_check, read_checks
from shuhari.lab.claims.grids import Tune
from shuhari.lab.claims.looks import LOOKS, compute_levels
from shuhari.lab.claims.verdict import LEAST

WARM = "warm start"
FIRST = 1000  # the first seed of every claim; recipes are tuned, and smokes run, on lower ones
SMOKE_SEEDS, SMOKE_WARM = 2, 40  # of a smoke: number of seeds, and the longest stage of its warm start
ALIKE = 0.1  # by this share arms may overspend: the last step may be a long one
ASKING = ("rollout", "curriculum", "engine", "reward", "collect")  # components that an offline warm-up does not use


@dataclass(frozen=True)
class Stated:
    """The `[claim]` table as written in a recipe."""

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
    worth: str = ""
    objection: str = ""
    tune: Mapping[str, Any] = field(default=EMPTY)
    seen: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Claim:
    """A resolved claim. `arms`: name -> recipe, without the stages that prepare it; `warm`: those stages as a recipe by
    arm, the same one if all share it. `method`: the recipe as it stands. `budget`: (unit, amount), or None if only
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
    looks: tuple[int, ...] = ()  # numbers of seeds; empty for the runs of a card
    bed: str = ""
    file: Path | None = None  # in which its table is written
    files: tuple[Path, ...] = ()  # all that it is written in, including those of its arms and its bed
    worth: str = ""  # why an effect of the margin matters
    seen: bool = False  # whether the method was run on the bed before the protocol was fixed
    objection: str = ""  # what is known against the comparison
    tune: Tune | None = None  # what is tried for both sides beforehand

    def with_seeds(self, seeds: Sequence[int]) -> Claim:
        """Return the same claim on other seeds."""
        return replace(self, seeds=tuple(seeds))

    def select(self, checks: Collection[int], seeds: Sequence[int]) -> Claim:
        """Return the part of the claim with some checks, by number, and the arms that they read; the baseline
        always."""
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
        """Return the numbers of the checks with a role."""
        return [i for i, check in enumerate(self.checks) if check.rule.role == role]

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes of the arms and of their warm starts, by name."""
        shared = len({id(r) for r in self.warm.values()}) == 1 and len(self.warm) == len(self.arms)
        names = dict.fromkeys(self.warm, WARM) if shared else {arm: f"{WARM} of {arm}" for arm in self.warm}
        return {**self.arms, **{names[arm]: recipe for arm, recipe in self.warm.items()}}

    @property
    def own(self) -> Recipe:
        """The method's arm, or its recipe if the claim has no arms."""
        return self.arms.get(METHOD, self.method)


def point_to_shown(reference: str) -> str:
    """Return the end of an error that a recipe has no claim: that it has a demonstration, and how that is made; "" if
    it has none."""
    has = library.read_demonstration(reference, find_file(reference)) is not None
    return f"; it has a demonstration: shuhari demonstrate {reference}" if has else ""


def read(reference: str, *, smoke: bool = False, bed: str = "") -> Claim:
    """Read the claim of a recipe; with `bed`, of a method on another bed than its own. Raises RecipeError if it has no
    claim, or for a mistake in it."""
    method = load(reference)
    if bed and not find_usual_base(reference):
        raise RecipeError("", f"{method.name} is a recipe of its own, and its claim cannot be laid over {bed}")
    table = method.tree.get("claim")
    if not table:
        raise RecipeError("claim", f"{method.name} states no claim: a [claim] table says what is to be measured"
                          f"{point_to_shown(reference)}")  # fmt: skip
    return resolve(reference, method, table, smoke=smoke, bed=bed)


def resolve(
    reference: str,
    method: Recipe,
    table: Mapping[str, Any],
    *,
    smoke: bool = False,
    bed: str = "",
    seeds: int = 0,
) -> Claim:
    """Resolve the table of a claim of the recipe `method`, read from `reference`. seeds: a number of seeds in place of
    looks, for a table without premises. Raises RecipeError for a mistake in it."""
    on = find_usual_base(reference)
    stated: Stated = Settings().make(Stated, table, "claim", "a claim")
    small = stated.smoke if smoke else EMPTY
    budget = _read_budget(small.get("budget", stated.budget))
    checks = read_checks(stated.check, budget, premises=not seeds)
    _check_measured(checks, budget)
    trains, looks = any(check.trains for check in checks), _read_looks(stated, small, smoke) if not seeds else (seeds,)
    bed = (bed or stated.bed or on) if on else ""
    named = bed or stated.bed  # the bed whose card may be used
    if trains:
        within = not stated.arms and all(check.within for check in checks)
        for key, given in (("baseline", bed or stated.baseline), ("budget", budget)):
            if given is None and not (key == "baseline" and within):
                raise RecipeError(f"claim.{key}", f"missing: {_MISSING[key]}")
    over = [stated.settings, {k: v for k, v in small.items() if k not in ("budget", "seeds")}]
    made = ArmMaker(reference, method, bed, stated.arms.get(METHOD, EMPTY) if bed else EMPTY)
    there = list_tables(stated.baseline, stated.arms, bed) if trains else {}
    whole = {name: made.make(arm, over, budget, name_arm(name)) for name, arm in there.items()}
    check_arms(checks, whole, named)
    warm, arms = part_stages(whole, stated.warm)
    if budget is not None:
        all_of_it = _read_budget(stated.budget) or budget
        arms = {name: _split(arm, f"claim.arms.{name}", budget, all_of_it) for name, arm in arms.items()}
    if smoke:
        short = {id(recipe): _shorten(recipe) for recipe in warm.values()}
        warm = {arm: short[id(recipe)] for arm, recipe in warm.items()}
    first = 0 if smoke else FIRST
    numbers = tuple(range(first, first + looks[-1]))
    return Claim(
        method, stated.says, arms, checks, numbers, budget, warm, stated.notes, smoke, looks, named,
        find_file(reference),
        find_files([reference, *filter(None, (named, *(a.get("extends") for a in there.values())))]),
        stated.worth, stated.seen, stated.objection,
        Settings().make(Tune, stated.tune, "claim.tune", "the tuning of a claim") if stated.tune else None,
    )  # fmt: skip


def _read_looks(stated: Stated, small: Mapping[str, Any], smoke: bool) -> tuple[int, ...]:
    """Return the number of seeds at each look."""
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
    known = [b for b in BUDGETS if b != "seconds"]  # seconds differ between machines
    if unit not in known:
        raise RecipeError(f"claim.budget.{unit}", f"expected a unit in which claims count; {nearest(unit, known)}")
    return unit, float(Settings().check(Steps if unit == "steps" else Length, amount, f"claim.budget.{unit}"))


def _check_measured(checks: Sequence[Check], budget: tuple[str, float] | None) -> None:
    """Raises RecipeError if arms of 0 steps, which only measure, have checks other than gains."""
    if budget is None or budget[1]:
        return
    if (i := next((i for i, c in enumerate(checks) if c.trains and c.quantity.get("use") != "gain"), -1)) >= 0:
        message = "expected use = 'gain', or a budget of 1 step or more"
        raise RecipeError(name_check(i, checks[i]), f"arms of 0 steps only measure, and have no curve: {message}")


def part_stages(
    arms: Mapping[str, Recipe], warm: str | Mapping[str, Any]
) -> tuple[dict[str, Recipe], dict[str, Recipe]]:
    """Split off warm starts. Returns (arm -> what prepares it, arm -> the rest). `warm` as a name: the baseline's
    stages up to it (the method's if there is no baseline), shared by all arms. As a table: each arm's own stages up to
    the one named; arms that it does not name start from fresh weights."""
    if not warm:
        return {}, dict(arms)
    if isinstance(warm, str):
        who = BASELINE if BASELINE in arms else METHOD
        shared = _prepare(arms[who], warm, f"the {who}", "claim.warm")
        return dict.fromkeys(arms, shared), {name: _drop_warm(arm, warm) for name, arm in arms.items()}
    if lost := next((name for name in warm if name not in arms), ""):
        raise RecipeError(f"claim.warm.{lost}", f"expected an arm of the claim; {nearest(lost, arms)}")
    made = {name: _prepare(arms[name], last, f"arm {name!r}", f"claim.warm.{name}") for name, last in warm.items()}
    return made, {name: _drop_warm(arm, warm.get(name, "")) for name, arm in arms.items()}


def _prepare(recipe: Recipe, last: Any, who: str, where: str) -> Recipe:
    """Return the stages of a recipe up to `last`, which must not be its last stage."""
    names = list(recipe.tree.get("stage", ()))
    if last not in names[:-1]:
        raise RecipeError(where, f"{who} has no stage {last!r} before its last; {nearest(str(last), names[:-1])}")
    return _make_warm(recipe, names[: names.index(last) + 1])


def _split(arm: Recipe, where: str, budget: tuple[str, float], whole: tuple[str, float]) -> Recipe:
    """Return an arm whose last stage gets what its other stages, each with an amount of its own, leave of the budget.
    If the budget is smaller than the claim's `whole` one (a smoke), these amounts shrink in proportion."""
    *first, last = arm.stages
    if not first:
        return arm
    unit, amount = budget
    parts: dict[str, int] = {}
    for stage in first:
        given = read_budgets(stage)
        if list(given) != [whole[0]]:
            message = f"stage {stage['name']!r} is given {', '.join(given)}: expected {whole[0]} alone, as a part of"
            raise RecipeError(where, f"{message} the budget; or name the stage in claim.warm, which is not charged")
        parts[stage["name"]] = max(1, round(given[whole[0]] * amount / whole[1]))
    left = int(amount) - sum(parts.values())
    if left < 1:
        message = ", ".join(f"{part:,} {unit} of {name!r}" for name, part in parts.items())
        raise RecipeError(where, f"{message} use up the budget of {amount:,.0f}: the last stage, {last['name']!r}, "
                          "would have none")  # fmt: skip
    return arm.with_settings({"stage": {name: {unit: part} for name, part in {**parts, last["name"]: left}.items()}})


def _shorten(warm: Recipe) -> Recipe:
    """Limit each stage of a warm start to SMOKE_WARM steps."""
    stages = warm.tree["stage"]
    short = {n: {**s, "steps": min(s["steps"], SMOKE_WARM)} if "steps" in s else s for n, s in stages.items()}
    return Recipe(warm.name, {**warm.tree, "stage": short})


def _make_warm(recipe: Recipe, names: list[str]) -> Recipe:
    """Return the first stages alone, without settings that do not affect the weights, so that claims can share them."""
    stages = {}
    for table in recipe.stages[: len(names)]:
        use = table.get("buffer", EMPTY).get("use", USE["buffer"])
        samples, asks, bootstraps = (declared("buffer", use, key) for key in ("samples", "asks", "bootstraps"))
        offline = samples is False and not asks and not table.get("learner")
        asking = ("evaluate", *ASKING) if offline else ()
        drop = ("paper", "summary", "alone", "laid", "claim", "study", "name", *asking)
        kept = {k: deepcopy(v) for k, v in table.items() if k not in drop}
        if offline and not bootstraps:  # otherwise a copy may be trained on
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
    """Return a recipe without its stages up to `warm`; unchanged if it has no stage of that name."""
    stages = recipe.tree.get("stage", {})
    names = list(stages)
    if warm not in names:
        return recipe
    left = {n: stages[n] for n in names[names.index(warm) + 1 :]}
    return Recipe(recipe.name, {**recipe.tree, "stage": left}, recipe.sources)
