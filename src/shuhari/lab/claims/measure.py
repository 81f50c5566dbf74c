"""Measures a claim: first its premises, then look by look the headline and its rivals, with the dose at the first look,
then the ablations if there is an effect to explain.

So a claim whose bed lacks the paper's problem costs only a few baselines, a clear effect only the seeds of its first
look, and ablations run only if the headline holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shuhari.lab.claims import cards
from shuhari.lab.claims.checks import START, name_quantity
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.findings import Findings
from shuhari.lab.claims.gaps import find_gaps, find_spending
from shuhari.lab.claims.guards import GUARDED, is_set_aside, judge_guard, judge_ours
from shuhari.lab.claims.knobs import AHEAD, UNEQUAL, UNTRIED, is_untried
from shuhari.lab.claims.looks import Look, compute_levels, judge_look
from shuhari.lab.claims.pool import Progress, Workers
from shuhari.lab.claims.protocol import Protocol, prepare
from shuhari.lab.claims.quantities import Evidence
from shuhari.lab.claims.registry import register
from shuhari.lab.claims.result import compute_hashes, describe, format_factor, list_quantities, make_result, round_to
from shuhari.lab.claims.runs import CLOCK, make
from shuhari.lab.claims.tries import Begun
from shuhari.lab.claims.verdict import HELD, WORST, Because, Headline, Verdict, join_comparisons, join_reasons
from shuhari.ports.hooks import ability
from shuhari.store.files import count_cores

Tell = Callable[[Progress], None]


def measure(
    claim: Claim,
    root: Path,
    before: Mapping[str, Any] | None = None,
    *,
    workers: int = 0,
    tell: Tell = lambda _: None,
    beds: Path | None = None,
    begun: Path | None = None,
    log: Path | None = None,
    tuned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure a claim, with its runs under `root`, and return its result. `before`: the existing result; beds: the
    folder of cards; begun: the file that records the try before the method's first run; log: the registry;
    tuned: the outcome of its tuning. Raises ClaimError or RecipeError."""
    quantities, hashes = list_quantities(claim), compute_hashes(claim)
    used = {**hashes["shared"], **hashes["modules"]}
    tries = Begun(begun, before)
    claim, card, protocol = prepare(claim, tries.last(), used, beds)
    alone = any(ability(q, "alone") for q in quantities)
    headline, reasons = Headline.UNTESTED, Because.UNASKED
    with Workers(1 if alone else workers or count_cores()) as team:
        run = partial(make, root=root, workers=team, tell=tell, alone=alone)

        def begin() -> str:
            tries.write(protocol.table, list(claim.seeds), hashes["modules"])
            return register(log, claim.name, protocol.table, claim.seeds) if log and not claim.smoke else ""

        found = Findings(claim, quantities, card, run, begin, tuned=tuned)
        if _judge_premises(found):
            headline, level = _look(found)
            reasons = _ablate(found, level) if headline in HELD or claim.smoke else Because.UNASKED
    ruled = _summarise(found, headline, reasons, protocol)
    whole = claim.with_seeds(found.seeds)
    result = make_result(whole, quantities, found.made, tries.stopped(protocol.tries), hashes, ruled)
    return {**result, "gaps": [*result["gaps"], *filter(None, [find_spending(result)])]}


def _judge_premises(found: Findings) -> bool:
    """Whether all premises are met. Uses the bed's card if it has the arms, otherwise runs of the claim, look by look:
    premises that are open at a look are asked again at the next, and one that fails ends it."""
    claim, card = found.claim, found.card
    have = card.arms if card else {}
    numbers = claim.find_checks("premise")
    known = [i for i in numbers if claim.checks[i].trains and {*claim.checks[i].arms} <= {*have}]
    met = [
        _judge_premise(found, i, {a: card.read_runs(a) for a in claim.checks[i].arms}, card.bed) is Verdict.HOLDS
        for i in known
        if card
    ]
    met.append(_plan_seeds(found))
    if not all(met) and not claim.smoke:
        return False
    # a smoke reads no card, and skips premises that only a card could decide
    own = [i for i in numbers if i not in known and {*claim.checks[i].arms} <= {*claim.arms}]
    words = _look_at_premises(found, own) if own else []
    return all(word is Verdict.HOLDS for word in words) or claim.smoke


def _look_at_premises(found: Findings, numbers: Sequence[int]) -> list[Verdict]:
    claim = found.claim
    trains = any(claim.checks[i].trains for i in numbers)
    words: list[Verdict] = []
    for n in claim.looks:
        seeds = claim.seeds[:n]
        if trains:
            found.add(numbers, seeds)
            found.seeds = tuple(seeds)
        words = [
            _judge_premise(
                found,
                i,
                found.made.evidence if claim.checks[i].trains else {claim.checks[i].rule.arm: _make_blank(seeds)},
                "",
            )
            for i in numbers
        ]
        if Verdict.FAILS in words or Verdict.OPEN not in words or not trains or claim.smoke:
            break
    return words


def _judge_premise(found: Findings, number: int, runs: Mapping[str, Sequence[Evidence]], bed: str) -> Verdict:
    effect, verdict, sides = cards.judge_premise(found.claim.checks[number], number, found.quantities[number], runs)
    found.enter(number, effect, sides, 0.95)
    found.checks[number] |= {"verdict": "met" if verdict is Verdict.HOLDS else "not met", "card": bed}
    return verdict


def _plan_seeds(found: Findings) -> bool:
    """Whether the seeds could show an effect of the margin, given the noise of the bed's card; True if there is no card
    with a redraw."""
    check, card = found.claim.checks[found.number], found.card
    planned = cards.plan(card, check, found.quantities[found.number], found.claim.looks)
    if card is None or planned is None:
        return True
    met = 0 < planned <= check.rule.margin
    found.planned = {"mde": round_to(planned), "card": card.bed, "met": met}
    return met


def _look(found: Findings) -> tuple[Headline, float]:
    """Run looks until one decides, from the one on that the premises took. Returns (the worst verdict of the headline
    and its rivals, the level of the interval that gave it). A method that does not act is not tested."""
    claim, guards, least = found.claim, found.claim.find_checks("guard"), len(found.seeds)
    headline, level = Headline.OPEN, math.nan
    found.line = found.begin()
    for n, level in zip(claim.looks, compute_levels(claim.looks), strict=True):
        if n < least:
            continue
        found.seeds = tuple(claim.seeds[:n])
        found.add([*found.comparisons, *guards, *claim.find_checks("dose")], found.seeds)
        if not _judge_dose(found) and not claim.smoke:
            return Headline.UNTESTED, level
        guard = judge_guard(found, guards)
        compared = {number: _judge_comparison(found, number, n, level, guard) for number in found.comparisons}
        looks = [look for number, look in compared.items() if not is_set_aside(found, number, guard)]
        headline = join_comparisons(look.headline for look in looks)
        undecided = any(look.headline is Headline.OPEN and not look.ends for look in looks)
        if WORST.index(headline) < WORST.index(Headline.OPEN) or not undecided:
            break
    return headline, level


def _judge_comparison(found: Findings, number: int, n: int, level: float, guard: Verdict | None) -> Look:
    rule = found.claim.checks[number].rule

    def judge(arms: Sequence[str] = ()) -> Look:
        effect = found.estimate(number, level, arms)
        return judge_look(rule, effect, found.claim.looks, n, judge_ours(found, number, guard))

    headline = number == found.number  # the paper's number is of the method as it stands, unless that is behind
    look = judge((rule.arm,)) if headline else judge()
    look = judge() if headline and look.headline in AHEAD else look
    if look.headline in AHEAD:
        others = (judge_look(rule, other, found.claim.looks, n) for other in found.estimate_others(number, level))
        why = UNTRIED if is_untried(found.claim, number) else ""
        why = why or (UNEQUAL if any(other.headline not in AHEAD for other in others) else "")
        look = Look(Headline.OPEN, look.mde, True, why) if why else look
    found.checks[number] |= {"verdict": look.headline.value, "mde": round_to(look.mde)}
    if look.why:
        found.checks[number].setdefault("why", look.why)
    return look


def _judge_dose(found: Findings) -> bool:
    """Whether the method changes enough to be tested: the mean of its dose is at least the floor, and its runs are not
    those of a comparison, number for number."""
    for number in found.claim.find_checks("dose"):
        effect = found.estimate(number, GUARDED)
        met = effect.value >= 0
        found.checks[number]["verdict"] = "met" if met else "not met"
        if not met:
            return False
    runs = found.made.evidence
    timed = ability(found.quantities[found.number], "alone")  # a speed is compared between runs that learn the same
    for number in () if timed else found.comparisons:
        rule = found.claim.checks[number].rule
        if isinstance(rule.against, str) and _do_alike(runs.get(rule.arm, ()), runs.get(rule.against, ())):
            found.checks[number] = {**describe(found.claim.checks[number]), "verdict": Headline.UNTESTED.value}
            found.alike = f"every number of {rule.arm!r} and {rule.against!r} is the same"
            return False
    return True


def _do_alike(ours: Sequence[Evidence], theirs: Sequence[Evidence]) -> bool:
    """Whether two arms reported the same numbers on every seed, in all columns that both have but those of the
    clock."""
    pairs = list(zip(ours, theirs, strict=False))
    return bool(pairs) and all(
        a.spent == b.spent
        and all(
            repr(a.columns[k]) == repr(b.columns[k])
            for k in {*a.columns} & {*b.columns}
            if not k.startswith(CLOCK)
        )
        for a, b in pairs
    )


def _ablate(found: Findings, level: float) -> Because:
    """Judge the ablations over the seeds of the look that decided: whether the effect comes from the paper's
    mechanism."""
    numbers = found.claim.find_checks("because")
    if numbers:
        found.add(numbers, found.seeds)
    verdicts = []
    for i in numbers:
        verdicts.append(found.claim.checks[i].rule.judge(found.estimate(i, level)))
        found.checks[i]["verdict"] = join_reasons(verdicts[-1:]).value
    return join_reasons(verdicts)


def _summarise(found: Findings, headline: Headline, reasons: Because, protocol: Protocol) -> dict[str, Any]:
    """Return the checks' part of a result: the verdict, each check by role, and what the verdict depends on."""
    claim, number = found.claim, found.number
    untested = {**describe(claim.checks[number]), "verdict": headline.value}
    own = found.checks.get(number, untested)
    what = ("use", "metric", "other", "weight", "arm", "against", "direction", "margin", "ratio")
    keep = (*what, "effect", "low", "high", "level", "n")
    premises = {i: found.checks[i] for i in claim.find_checks("premise") if i in found.checks}
    failing = [describe_premise(c) for c in premises.values() if c["verdict"] != "met"]
    doses = [found.checks[i] for i in claim.find_checks("dose") if i in found.checks]
    failing += [describe_dose(dose) for dose in doses if dose["verdict"] != "met"]
    failing += [f"the method does not act here: {found.alike}"] if found.alike else []
    if found.planned and not found.planned["met"]:
        planned = found.planned["mde"]
        failing.append(
            f"planned MDE {planned:.3g} above the margin" if planned else "no noise in the card to plan with"
        )
    checks = []
    for i, check in enumerate(claim.checks):
        later = Because.UNASKED if check.rule.role == "because" else Headline.UNTESTED
        checks.append(found.checks.get(i, {**describe(check), "verdict": later.value}))
    guards = [found.checks[i]["verdict"] for i in claim.find_checks("guard") if i in found.checks]
    guards = [own["guard_ours"]["verdict"]] if "guard_ours" in own else guards  # of the arm that the headline compares
    cpu = {
        arm: _sum_known(run.cpu for run in runs)
        for arm, runs in found.made.evidence.items()
    }
    if found.made.warm:
        cpu["warm start"] = _sum_known(found.made.warm.values())
    return {
        "verdict": headline.value,
        "bed": claim.bed,
        "headline": {"check": number, **{k: own[k] for k in keep if k in own}, "why": own.get("why", "")},
        "kind": _kind(claim, number),
        "premise": {
            "met": not failing,
            "failing": failing,
            "planned": found.planned,
            "of": [*premises],
            "card": found.card.digest if found.card else "",
        },
        "guard": guards[0] if guards else None,
        "rivals": [_describe_rival(found, i, own) for i in found.comparisons],
        "dose": {k: doses[0].get(k) for k in ("metric", "effect", "against", "verdict")} if doses else None,
        "seen": claim.seen,
        "worth": claim.worth,
        "objection": claim.objection,
        "gaps": list(find_gaps(claim, found.tuned)),
        "because": reasons.value,
        "mde": {"planned": (found.planned or {}).get("mde"), "achieved": own.get("mde")},
        "looks": list(claim.looks),
        "cpu_s": cpu,
        "protocol": {**protocol.table, "line": found.line},
        "exploratory": list(protocol.exploratory),
        "checks": checks,
    }


def _describe_rival(found: Findings, number: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison of the headline's number: with the paper's baseline, or with another rival."""
    check = found.checks.get(number, {**describe(found.claim.checks[number]), "verdict": own["verdict"]})
    kept = {k: check.get(k) for k in ("effect", "low", "high", "level", "n")}
    kind = found.claim.checks[number].kind or "paper"
    guard = {"guard": check["guard"]["verdict"], "aside": check["aside"]} if "guard" in check else {}
    ours = {"ours": check["ours"]} if "ours" in check else {}
    return {"name": str(check["against"]), "kind": kind, **kept, "word": check["verdict"], **guard, **ours}


def _kind(claim: Claim, number: int) -> str:
    """Return what the headline's number comes from: compared runs, runs of one arm alone, or a simulation."""
    if not claim.checks[number].trains:
        return "simulated"
    return "trained" if len(claim.arms) > 1 else "not compared"


def describe_premise(check: Mapping[str, Any]) -> str:
    """Describe a premise in one line."""
    what = name_quantity(check)
    arm = f"{check['arm']}'s " if check["arm"] != "baseline" else ""
    against = "its start" if check["against"] == START else check["against"]
    margin = f" by {check['margin']:g}" if check["margin"] else ""
    return f"{arm}{what} {check['direction']}{margin} against {format_factor(check['factor'])}{against}"


def describe_dose(check: Mapping[str, Any]) -> str:
    """Describe a dose that is too small in one line."""
    found = "" if check.get("effect") is None else f", {check['effect'] + check['against']:.3g} here"
    return f"the method does not act here: {name_quantity(check)} at least {check['against']:g}{found}"


def _sum_known(seconds: Iterable[float]) -> float:
    """Return the sum of the finite values; the time of a warm start whose run is gone is unknown."""
    return round(sum(s for s in seconds if math.isfinite(s)), 1)


def _make_blank(seeds: Sequence[int]) -> list[Evidence]:
    return [Evidence(seed) for seed in seeds]
