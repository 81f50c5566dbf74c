"""Measure a claim: its premises first, then look by look, then the ablations if there is an effect to explain.

So a claim whose bed lacks what the paper is about costs a few baselines, one with a clear effect the seeds of its first
look, and ablations cost nothing where nothing holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shuhari.lab.claims import cards
from shuhari.lab.claims.cards import Card
from shuhari.lab.claims.checks import START, name_quantity
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.looks import compute_levels, judge_look
from shuhari.lab.claims.pool import Progress, Workers
from shuhari.lab.claims.protocol import Protocol, prepare
from shuhari.lab.claims.quantities import Evidence, Quantity, read_values
from shuhari.lab.claims.result import (
    compute_hashes,
    describe,
    find_runs,
    format_factor,
    list_quantities,
    make_result,
    round_to,
)
from shuhari.lab.claims.runs import Made, make
from shuhari.lab.claims.tries import Begun
from shuhari.lab.claims.verdict import HELD, Because, Effect, Headline, Verdict, join_reasons
from shuhari.ports.hooks import ability
from shuhari.store.files import count_cores

Tell = Callable[[Progress], None]


@dataclass
class Findings:
    """What a claim has found so far: runs, and an entry for each check by its number."""

    claim: Claim
    quantities: Sequence[Quantity]
    card: Card | None
    run: Callable[[Claim, Sequence[Quantity]], Made]
    begin: Callable[[], None]  # called before the method's first run
    made: Made = field(default_factory=Made)
    checks: dict[int, dict[str, Any]] = field(default_factory=dict)
    planned: dict[str, Any] | None = None
    seeds: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """That of the headline."""
        return self.claim.find_checks("headline")[0]

    def add(self, checks: Collection[int], seeds: Sequence[int]) -> None:
        """Make what some checks need."""
        part = self.claim.select(checks, seeds)
        made = self.run(part, [self.quantities[i] for i in checks])
        there = {**self.made.evidence, **made.evidence}
        evidence = {arm: there[arm] for arm in self.claim.arms if arm in there}
        chance, versions = made.chance or self.made.chance, made.versions or self.made.versions
        self.made = Made(evidence, chance, versions, {**self.made.warm, **made.warm})

    def estimate(self, number: int, level: float) -> Effect:
        """The effect of a check over the seeds so far; its entry lacks the verdict."""
        rule, quantity, claim = (
            self.claim.checks[number].rule,
            self.quantities[number],
            self.claim.with_seeds(self.seeds),
        )
        sides = {
            side: read_values(quantity, find_runs(claim, number, side, self.made), side, number) for side in rule.sides
        }
        effect = rule.estimate(*rule.pick_sides(sides), level)
        self.enter(number, effect, sides, level)
        return effect

    def enter(self, number: int, effect: Effect, sides: Mapping[str, Sequence[float]], level: float) -> None:
        entry = describe(self.claim.checks[number])
        entry |= {"effect": round_to(effect.value), "low": round_to(effect.low), "high": round_to(effect.high)}
        entry |= {
            "level": level,
            "n": effect.n,
            "values": {
                s: [round_to(v) for v in vs]
                for s, vs in sides.items()
            },
        }
        self.checks[number] = {**entry, **({"why": effect.why} if effect.why else {})}


def measure(
    claim: Claim,
    root: Path,
    before: Mapping[str, Any] | None = None,
    *,
    workers: int = 0,
    tell: Tell = lambda _: None,
    beds: Path | None = None,
    begun: Path | None = None,
) -> dict[str, Any]:
    """The whole result of a claim, whose runs are made under `root`. `before`: the result that is there; beds: where
    cards lie; begun: where its try is written down before the method's first run. ClaimError, RecipeError."""
    quantities, hashes = list_quantities(claim), compute_hashes(claim)
    used = {**hashes["shared"], **hashes["modules"]}
    tries = Begun(begun, before)
    claim, card, protocol = prepare(claim, tries.last(), used, beds)
    alone = any(ability(q, "alone") for q in quantities)
    headline, reasons = Headline.UNTESTED, Because.UNASKED
    with Workers(1 if alone else workers or count_cores()) as team:
        run = partial(make, root=root, workers=team, tell=tell, alone=alone)
        begin = partial(tries.write, protocol.table, list(claim.seeds), hashes["modules"])
        found = Findings(claim, quantities, card, run, begin)
        if _judge_premises(found):
            headline, level = _look(found)
            reasons = _ablate(found, level) if headline in HELD or claim.smoke else Because.UNASKED
    ruled = _summarise(found, headline, reasons, protocol)
    return make_result(
        claim.with_seeds(found.seeds), quantities, found.made, tries.stopped(protocol.tries), hashes, ruled
    )


def _judge_premises(found: Findings) -> bool:
    """Whether all premises are met: from the card those that it can tell, from runs of the claim the others."""
    claim, card = found.claim, found.card
    have = card.arms if card else {}
    numbers = claim.find_checks("premise")
    known = [i for i in numbers if claim.checks[i].trains and {*claim.checks[i].arms} <= {*have}]
    met = [
        _judge_premise(found, i, {a: card.read_runs(a) for a in claim.checks[i].arms}, card.bed)
        for i in known
        if card
    ]
    met.append(_plan_seeds(found))
    if not all(met) and not claim.smoke:
        return False
    seeds = claim.seeds[: claim.looks[0]]
    # a smoke reads no card, and leaves out what only a card could tell
    if own := [i for i in numbers if i not in known and {*claim.checks[i].arms} <= {*claim.arms}]:
        if any(claim.checks[i].trains for i in own):
            found.add(own, seeds)
            found.seeds = tuple(seeds)
        for i in own:
            check = claim.checks[i]
            met.append(
                _judge_premise(
                    found, i, found.made.evidence if check.trains else {check.rule.arm: _make_blank(seeds)}, ""
                )
            )
    return all(met) or claim.smoke


def _judge_premise(found: Findings, number: int, runs: Mapping[str, Sequence[Evidence]], bed: str) -> bool:
    effect, verdict, sides = cards.judge_premise(found.claim.checks[number], number, found.quantities[number], runs)
    found.enter(number, effect, sides, 0.95)
    found.checks[number] |= {"verdict": "met" if verdict is Verdict.HOLDS else "not met", "card": bed}
    return verdict is Verdict.HOLDS


def _plan_seeds(found: Findings) -> bool:
    """Whether the seeds could show an effect of the margin, by the noise that the bed's card tells of; without noise it
    tells of nothing."""
    check, card = found.claim.checks[found.number], found.card
    planned = cards.plan(card, check, found.quantities[found.number], found.claim.looks)
    if card is None or planned is None:
        return True
    met = 0 < planned <= check.rule.margin
    found.planned = {"mde": round_to(planned), "card": card.bed, "met": met}
    return met


def _look(found: Findings) -> tuple[Headline, float]:
    """(the verdict of the headline, the level of the interval that gave it), at the first look that tells enough."""
    claim, number = found.claim, found.number
    rule, guards = claim.checks[number].rule, claim.find_checks("guard")
    headline, level = Headline.OPEN, math.nan
    found.begin()
    for n, level in zip(claim.looks, compute_levels(claim.looks), strict=True):
        found.seeds = tuple(claim.seeds[:n])
        found.add([number, *guards], found.seeds)
        effect, guard = found.estimate(number, level), None
        for i in guards:
            guard = claim.checks[i].rule.judge(found.estimate(i, level))
            found.checks[i]["verdict"] = {Verdict.HOLDS: "kept", Verdict.FAILS: "fails"}.get(guard, "open")
        look = judge_look(rule, effect, claim.looks, n, guard)
        headline = look.headline
        found.checks[number] |= {"verdict": headline.value, "mde": round_to(look.mde)}
        if look.why:
            found.checks[number].setdefault("why", look.why)
        if look.ends:
            break
    return headline, level


def _ablate(found: Findings, level: float) -> Because:
    """Whether the effect is by the paper's reason, over the seeds of the look that decided."""
    numbers = found.claim.find_checks("because")
    if numbers:
        found.add(numbers, found.seeds)
    verdicts = []
    for i in numbers:
        verdicts.append(found.claim.checks[i].rule.judge(found.estimate(i, level)))
        found.checks[i]["verdict"] = join_reasons(verdicts[-1:]).value
    return join_reasons(verdicts)


def _summarise(found: Findings, headline: Headline, reasons: Because, protocol: Protocol) -> dict[str, Any]:
    """What a result says of the checks: the verdict, each check by its role, and what all of it hangs on."""
    claim, number = found.claim, found.number
    untested = {**describe(claim.checks[number]), "verdict": headline.value}
    own = found.checks.get(number, untested)
    what = ("use", "metric", "other", "weight", "arm", "against", "direction", "margin", "ratio")
    keep = (*what, "effect", "low", "high", "level", "n")
    premises = {i: found.checks[i] for i in claim.find_checks("premise") if i in found.checks}
    failing = [describe_premise(c) for c in premises.values() if c["verdict"] != "met"]
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
        "because": reasons.value,
        "mde": {"planned": (found.planned or {}).get("mde"), "achieved": own.get("mde")},
        "looks": list(claim.looks),
        "cpu_s": cpu,
        "protocol": protocol.table,
        "exploratory": list(protocol.exploratory),
        "checks": checks,
    }


def _kind(claim: Claim, number: int) -> str:
    """What the headline's number is: of trained runs, of one arm of them alone, or simulated."""
    if not claim.checks[number].trains:
        return "simulated"
    return "trained" if len(claim.arms) > 1 else "not compared"


def describe_premise(check: Mapping[str, Any]) -> str:
    """A premise in few words."""
    what = name_quantity(check)
    arm = f"{check['arm']}'s " if check["arm"] != "baseline" else ""
    against = "its start" if check["against"] == START else check["against"]
    margin = f" by {check['margin']:g}" if check["margin"] else ""
    return f"{arm}{what} {check['direction']}{margin} against {format_factor(check['factor'])}{against}"


def _sum_known(seconds: Iterable[float]) -> float:
    """Of what is known: a warm start whose run is gone tells nothing."""
    return round(sum(s for s in seconds if math.isfinite(s)), 1)


def _make_blank(seeds: Sequence[int]) -> list[Evidence]:
    return [Evidence(seed) for seed in seeds]
