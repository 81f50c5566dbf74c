"""`claim --prove`: whether results stand though code has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from shuhari.cli.text import note, print_json, say

Telling = Callable[[str], AbstractContextManager[Callable[[Any], None]]]


def prove(
    named: Sequence[str], out: Path, runs: Path, *, depth: str, workers: int, json: bool, telling: Telling
) -> bool:
    """Prove the results of recipes under `out`, and write the outcome. Returns whether all stand."""
    from shuhari.claims.claim import read
    from shuhari.claims.pool import ClaimError
    from shuhari.claims.proof import Proof, prove, settle
    from shuhari.claims.result import read_kept, save

    found: list[tuple[Any, Any]] = []
    for name in named:
        claim = read(name)
        result = read_kept(claim.name, out / "claims")
        if result is None:
            note(f"{claim.name}: not measured, so there is nothing to prove")
            continue
        found.append((claim, result))
    runs.mkdir(parents=True, exist_ok=True)
    with telling("proof") as each:
        proofs = prove(found, runs, depth=depth, workers=workers, tell=each)
    reports, stand = {}, len(found) == len(named)
    for (claim, result), proof in zip(found, proofs, strict=True):
        words = _describe(proof)
        reports[claim.name] = words
        stand &= isinstance(proof, Proof) and proof.stands is True
        if isinstance(proof, ClaimError):
            note(f"{claim.name}: {words}")
            continue
        save(settle(claim, result, proof), out)
        if not json:
            say(f"{claim.name}: {words}")
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
