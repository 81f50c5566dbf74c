"""`claim --prove`: checks whether results still stand after a change of code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuhari.desk.cli.text import note, print_json, say

if TYPE_CHECKING:
    from shuhari.desk.cli.keeping import Place

Telling = Callable[[str], AbstractContextManager[Callable[[Any], None]]]


def prove(
    places: Sequence[Place], runs: Path, *, depth: str, workers: int, json: bool, telling: Telling
) -> bool:
    """Prove stored results, and save the outcome. Returns whether all stand."""
    from shuhari.lab.claims.pool import ClaimError
    from shuhari.lab.claims.proof import Proof, prove, settle
    from shuhari.lab.claims.result import save

    found: list[tuple[Any, Any]] = []
    proved: list[Place] = []
    for one in places:
        claim, result = one.read(), one.read_kept()
        if result is None:
            note(f"{one}: not measured, so there is nothing to prove")
            continue
        found.append((claim, result))
        proved.append(one)
    proofs: Sequence[Any] = ()
    if found:  # otherwise there is no progress to show either
        runs.mkdir(parents=True, exist_ok=True)
        with telling("proof") as each:
            proofs = prove(found, runs, depth=depth, workers=workers, tell=each)
    reports, stand = {}, len(found) == len(places)
    for one, (claim, result), proof in zip(proved, found, proofs, strict=True):
        words, name = _describe(proof), f"{claim.name} on {one.bed}" if one.bed else claim.name
        reports[name] = words
        stand &= isinstance(proof, Proof) and proof.stands is True
        if isinstance(proof, ClaimError):
            note(f"{name}: {words}")
            continue
        save(settle(claim, result, proof), one.out)
        if not json:
            say(f"{name}: {words}")
    if json:
        print_json(reports)
    return stand


def _describe(proof: Any) -> str:
    if isinstance(proof, Exception):
        return f"not proved, for it does not run: {proof}"
    if proof.stands is None:
        return f"left as it is: {proof.why}"
    if not proof.stands:
        return f"stale: {proof.why}"
    steps = ", ".join(f"{arm} {n}" for arm, n in proof.steps.items())
    whole = f"; to its end: {', '.join(proof.whole)}" if proof.whole else ""
    return f"stands: {proof.points} numbers are the same{f' (steps: {steps}{whole})' if steps else ''}"
