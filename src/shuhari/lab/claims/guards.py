"""The guard of a claim: what the method must not pay with, and what a rival must not pay with either if it is to count.

Left out: the rule of one check (`verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.checks import METHOD
from shuhari.lab.claims.findings import Findings, round_effect
from shuhari.lab.claims.gaps import is_solvable
from shuhari.lab.claims.quantities import read_values
from shuhari.lab.claims.result import find_runs, round_to
from shuhari.lab.claims.verdict import HELD, Verdict

GUARDED = 0.9  # level of a guard's interval: 95 % on one side
GUARD_WORDS = {Verdict.HOLDS: "kept", Verdict.FAILS: "fails", Verdict.OPEN: "open"}


def judge_guard(found: Findings, guards: Sequence[int]) -> Verdict | None:
    """Judge the guard one-sided at 95 %; None if the claim has none."""
    guard = None
    for i in guards:
        guard = found.claim.checks[i].rule.judge(found.estimate(i, GUARDED))
        found.checks[i]["verdict"] = GUARD_WORDS[guard]
    return guard


def is_set_aside(found: Findings, number: int, guard: Verdict | None) -> bool:
    """Whether a rival pays with what the guard protects while the method keeps it (`guard`: the method's): a rival that
    keeps more of its entropy by learning less is no argument against a method that learns as much. Only a guard that
    fails sets a rival aside, and not one that the method beats anyway. Enters the rival's guard, if it has one."""
    own = _judge_rivals_guard(found, number)
    beaten = found.checks[number]["verdict"] in HELD
    ours = found.checks[number].get("guard_ours", {}).get("verdict") or (guard and GUARD_WORDS[guard])
    aside = own is Verdict.FAILS and ours == GUARD_WORDS[Verdict.HOLDS] and not beaten
    if own is not None:
        found.checks[number]["aside"] = aside
    return aside


def judge_ours(found: Findings, number: int, guard: Verdict | None) -> Verdict | None:
    """Return the guard's verdict for the arm of the method that a comparison is with, if it is not the method as it
    stands (`guard`: the method's), and enter it."""
    ours = found.checks[number].get("ours")
    own = _judge_in_place(found, ours) if ours else None
    if own is None:
        return guard
    verdict, found.checks[number]["guard_ours"] = own
    return verdict


def _judge_rivals_guard(found: Findings, number: int) -> Verdict | None:
    """Judge the guard with a rival in the method's place; None for the paper's baseline, with which a guard compares,
    and for a rival without the guard's metric."""
    own = None if number == found.number else _judge_in_place(found, str(found.claim.checks[number].rule.against))
    if own is None:
        return None
    verdict, found.checks[number]["guard"] = own
    return verdict


def _judge_in_place(found: Findings, arm: str) -> tuple[Verdict, dict[str, Any]] | None:
    """Judge the guard with an arm in the method's place; None if there is no guard of the method, if it compares with
    this arm, or if the arm lacks its metric."""
    guards = found.claim.find_checks("guard")
    rule = found.claim.checks[guards[0]].rule if guards else None
    if rule is None or rule.arm != METHOD or rule.against == arm:
        return None
    quantity = found.quantities[guards[0]]
    try:
        values = read_values(quantity, find_runs(found.claim, guards[0], arm, found.made), arm, guards[0])
    except RecipeError:
        return None
    kept = [round_to(v) for v in values]
    numbers = [math.nan if v is None else v for v in kept]
    pairs = rule.pick_sides({**found.checks[guards[0]]["values"], METHOD: numbers})
    verdict = rule.judge(effect := rule.estimate(*pairs, GUARDED, is_solvable(found.claim.checks)))
    return verdict, {**round_effect(effect), "values": kept, "verdict": GUARD_WORDS[verdict]}
