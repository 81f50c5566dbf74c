"""What a claim has found so far: its runs, and the effect of each check over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shuhari.lab.claims.cards import Card
from shuhari.lab.claims.checks import Check
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.gaps import is_solvable
from shuhari.lab.claims.quantities import Quantity, read_values
from shuhari.lab.claims.result import describe, find_runs, round_to
from shuhari.lab.claims.runs import Made
from shuhari.lab.claims.verdict import DOWN, Effect


@dataclass
class Findings:
    """What a claim has found so far: its runs, and the entry of each check by number."""

    claim: Claim
    quantities: Sequence[Quantity]
    card: Card | None
    run: Callable[[Claim, Sequence[Quantity]], Made]
    begin: Callable[[], str]  # called before the method's first run; the digest of the try's line in the registry
    made: Made = field(default_factory=Made)
    checks: dict[int, dict[str, Any]] = field(default_factory=dict)
    planned: dict[str, Any] | None = None
    seeds: tuple[int, ...] = ()
    alike: str = ""  # two arms that did the same, if some did
    line: str = ""  # digest of the try's line in the registry
    tuned: Mapping[str, Any] | None = None  # the outcome of its tuning

    @property
    def number(self) -> int:
        """The number of the headline."""
        return self.claim.find_checks("headline")[0]

    @property
    def comparisons(self) -> list[int]:
        """The numbers of the headline and its rivals."""
        return [self.number, *self.claim.find_checks("rival")]

    def add(self, checks: Collection[int], seeds: Sequence[int]) -> None:
        """Make the runs that some checks need."""
        part = self.claim.select(checks, seeds)
        made = self.run(part, [self.quantities[i] for i in checks])
        there = {**self.made.evidence, **made.evidence}
        evidence = {arm: there[arm] for arm in self.claim.arms if arm in there}
        chance, versions = made.chance or self.made.chance, made.versions or self.made.versions
        self.made = Made(evidence, chance, versions, {**self.made.warm, **made.warm})

    def estimate(self, number: int, level: float) -> Effect:
        """Return a check's effect over the seeds so far, and enter it, without a verdict."""
        check, quantity, claim = self.claim.checks[number], self.quantities[number], self.claim.with_seeds(self.seeds)
        rule = check.rule
        sides = {
            side: read_values(quantity, find_runs(claim, number, side, self.made), side, number)
            for side in check.sides
        }
        ours = choose_arm(check, sides)
        compared = rule.pick_sides({**sides, rule.arm: sides[ours]})
        effect = rule.estimate(*compared, level, is_solvable(claim.checks))
        self.enter(number, effect, sides, level)
        if ours != rule.arm:
            self.checks[number]["ours"] = ours
        return effect

    def enter(self, number: int, effect: Effect, sides: Mapping[str, Sequence[float]], level: float) -> None:
        entry = describe(self.claim.checks[number])
        entry |= {
            **round_effect(effect),
            "level": level,
            "n": effect.n,
            "values": {
                s: [round_to(v) for v in vs]
                for s, vs in sides.items()
            },
        }
        self.checks[number] = {**entry, **({"why": effect.why} if effect.why else {})}


def choose_arm(check: Check, sides: Mapping[str, Sequence[float]]) -> str:
    """Return the arm of the method that a check compares: the one with the rival's knob turned if it is the better of
    the two on average. sides: the values of each."""
    rule, turned = check.rule, check.turned
    if not turned:
        return rule.arm
    gain = (sum(sides[turned]) - sum(sides[rule.arm])) * (-1 if rule.direction in DOWN else 1)
    return turned if gain > 0 else rule.arm


def round_effect(effect: Effect) -> dict[str, float | None]:
    """Return an effect and its interval as a result has them."""
    return {"effect": round_to(effect.value), "low": round_to(effect.low), "high": round_to(effect.high)}
