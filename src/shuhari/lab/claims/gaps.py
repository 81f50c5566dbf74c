"""What a claim lacks before a stranger would believe it: a rival, a dose, a guard, a bed that can be solved, a reason
for its margin. A claim with such gaps can be measured; its result lists them, and the scoreboard puts it after the
others.

Left out: whether the rivals are the strongest ones, which only a reader can judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shuhari.lab.claims.checks import BASELINE, METHOD, Check, is_share
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.grids import SIDES

if TYPE_CHECKING:
    from shuhari.lab.claims.claim import Claim

WITHIN = ("at", "over", "worst", "to")  # readings that can improve while the last score falls
LAST = ("final", "last")  # readings of the end of a run
MORE = 0.1  # by this share a method may spend more than its baseline of what the budget does not limit
SAMPLES = ("tokens", "env_steps", "decisions", "scored_tokens", "starts/")  # of the ledger, by how they begin


def find_gaps(claim: Claim, tuned: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return what a claim lacks, a sentence each. tuned: the outcome of its tuning, if it was tuned."""
    lead = next((check for check in claim.checks if check.rule.role == "headline"), None)
    if lead is None:
        return ()
    if not lead.trains:
        return ("no rival and no dose: its headline is a simulation, which has neither",)
    if METHOD not in claim.arms or BASELINE not in claim.arms:
        return ("no rival: the headline compares two readings of one run",)
    roles = {check.rule.role for check in claim.checks}
    gaps = [_find_rival(claim, tuned), *_find_guard(claim, lead)]
    if "dose" not in roles:
        gaps.append("no dose: a check with role = 'dose' on what share the method changes, and a floor")
    if not any(_is_solvable(check) for check in claim.checks):
        gaps.append("nobody is known to reach the effect on this bed: a premise on the control, or another arm")
    if not claim.worth:
        gaps.append("no reason for the margin: `worth` has the sentence")
    return tuple(gap for gap in gaps if gap)


def _find_rival(claim: Claim, tuned: Mapping[str, Any] | None) -> str:
    """Return why no rival has the baseline's own knob turned; "" if one has, or if both sides were tuned."""
    if claim.tune is not None:
        return find_untuned(claim, tuned)
    knob = any(check.kind == "knob" for check in claim.checks)
    return "" if knob else "no rival with the baseline's own knob turned: role = 'rival', kind = 'knob', or `tune`"


def _find_guard(claim: Claim, lead: Check) -> list[str]:
    """Return what is wrong with the guard, or that there is none; a headline that is the task's own score, by its
    average or its end, needs none."""
    guard = next((check for check in claim.checks if check.rule.role == "guard"), None)
    reading = _get_reading(lead)
    if guard is None:
        own = _is_own_score(lead) and reading not in WITHIN
        return [] if own else ["no guard: a check with role = 'guard' on what the method could pay with"]
    gaps = []
    if (guard.rule.arm, guard.rule.against) != (lead.rule.arm, lead.rule.against):
        gaps.append("the guard reads other arms than the headline")
    if reading in WITHIN and _get_reading(guard) not in LAST:
        gaps.append(f"the headline's reading {reading!r} needs a guard at the end of the runs (`:final`)")
    return gaps


def _get_reading(check: Check) -> str:
    return str(check.quantity.get("metric", "")).rpartition(":")[2].partition("=")[0]


def _is_own_score(check: Check) -> bool:
    name = str(check.quantity.get("metric", "")).partition(":")[0].partition("@")[0]
    return name.startswith("evaluate/") and is_share(f"{name}:final")


def _is_solvable(check: Check) -> bool:
    """Whether a check is a premise that another arm than the baseline is better."""
    return check.rule.role == "premise" and check.rule.arm not in (BASELINE, METHOD)


def is_solvable(checks: Sequence[Check]) -> bool:
    """Whether a premise has an arm that reaches the effect: the bed's control, an expert, a longer run."""
    return any(_is_solvable(check) for check in checks)


def find_spending(result: Mapping[str, Any]) -> str:
    """Return which samples the method spent more of than its baseline, if no rival of kind "compute" did too; "" if it
    spent no more. Probes are added to what they are of. result: with the `ledger` of each arm."""
    if any(rival["kind"] == "compute" for rival in result.get("rivals", ())):
        return ""
    ours, theirs = (_add_probes(result["arms"].get(arm, {}).get("ledger", {})) for arm in (METHOD, BASELINE))
    for unit, amount in ours.items():
        least = theirs.get(unit, 0.0)
        if unit.startswith(SAMPLES) and amount > (1 + MORE) * least:
            return f"the method spent {amount:,.0f} {unit}, the baseline {least:,.0f}: a rival with as many is missing"
    return ""


def _add_probes(ledger: Mapping[str, float | None]) -> dict[str, float]:
    """Return what was spent of each unit, in probes too."""
    total = dict[str, float]()
    for unit, amount in ledger.items():
        of = unit.removeprefix("probe/")
        total[of] = total.get(of, 0.0) + (amount or 0.0)
    return total


def find_untuned(claim: Claim, tuned: Mapping[str, Any] | None) -> str:
    """Return why the arms of a claim are not the tuned ones; "" if they are. tuned: the stored outcome."""
    if tuned is None:
        return "its arms were not tuned: `shuhari claim --tune`"
    for side in SIDES:
        if compute_digest(claim.arms[side]) != tuned["sides"][side]["digest"]:
            best = ", ".join(f"{key} = {value}" for key, value in tuned["sides"][side]["best"].items())
            return f"arm {side!r} is not the tuned one ({best})"
    return ""
