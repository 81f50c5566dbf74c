"""What a claim has found so far: its runs, and the effect of each check over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shuhari.lab.claims.cards import Card
from shuhari.lab.claims.checks import METHOD
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.gaps import is_solvable
from shuhari.lab.claims.knobs import list_ours, list_turned
from shuhari.lab.claims.quantities import Quantity, read_values
from shuhari.lab.claims.result import describe, find_runs, round_to
from shuhari.lab.claims.runs import Made
from shuhari.lab.claims.verdict import DOWN, Effect, Rule


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

    def estimate(self, number: int, level: float, arms: Sequence[str] = ()) -> Effect:
        """Return a check's effect over the seeds so far, and enter it, without a verdict. arms: of the method, of which
        the best is compared; () for all that are the equals of the baseline or rival."""
        check = self.claim.checks[number]
        arms = arms or list_ours(self.claim, number)
        sides = {side: self._read(number, side) for side in dict.fromkeys((*check.sides, *arms))}
        ours = choose_arm(check.rule, arms, sides)
        effect = self.compare(number, sides, ours, level)
        self.enter(number, effect, {side: sides[side] for side in dict.fromkeys((*check.sides, ours))}, level)
        if ours != check.rule.arm:
            self.checks[number]["ours"] = ours
        return effect

    def estimate_others(self, number: int, level: float) -> Iterator[Effect]:
        """Yield the effects that a comparison would have for the method with each knob turned that its rival was not
        run with; none for a rival by a knob of its own, which the method has turned too."""
        check, equals = self.claim.checks[number], list_ours(self.claim, number)
        theirs = {side: self._read(number, side) for side in check.sides}
        for arm in list_turned(self.claim):
            if arm not in equals and check.rule.arm == METHOD and not check.turned:
                yield self.compare(number, {**theirs, arm: self._read(number, arm)}, arm, level)

    def compare(self, number: int, sides: Mapping[str, Sequence[float]], ours: str, level: float) -> Effect:
        """Return a check's effect with another arm in its arm's place. sides: the values of each."""
        rule = self.claim.checks[number].rule
        compared = rule.pick_sides({**sides, rule.arm: sides[ours]})
        return rule.estimate(*compared, level, is_solvable(self.claim.checks))

    def _read(self, number: int, side: str) -> Sequence[float]:
        claim = self.claim.with_seeds(self.seeds)
        return read_values(self.quantities[number], find_runs(claim, number, side, self.made), side, number)

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


def choose_arm(rule: Rule, arms: Sequence[str], sides: Mapping[str, Sequence[float]]) -> str:
    """Return the arm that is the best on average, the first of those that are equally good. sides: the values of
    each."""
    sign = -1 if rule.direction in DOWN else 1
    return max(arms, key=lambda arm: sign * sum(sides[arm]) if all(map(math.isfinite, sides[arm])) else -math.inf)


def round_effect(effect: Effect) -> dict[str, float | None]:
    """Return an effect and its interval as a result has them."""
    return {"effect": round_to(effect.value), "low": round_to(effect.low), "high": round_to(effect.high)}
