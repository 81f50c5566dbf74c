"""Protocols: how a claim will be judged, fixed and committed before its method first runs.

A protocol is what a claim's arms do, their budget, the checks and the looks. A try is a protocol with one version of
the method's own modules, on seeds of its own: after a change of either, seeds continue after the last used, so that no
run counts twice. Whether git held the protocol is decided at the first run of a try, and does not change later; a try
without a commit is exploratory, and so is one after too many tries.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config.library import list_names
from shuhari.config.overlay import RecipeError
from shuhari.data import EMPTY, nearest
from shuhari.lab.claims import cards
from shuhari.lab.claims.cards import Card
from shuhari.lab.claims.checks import BASELINE, name_check
from shuhari.lab.claims.claim import FIRST, Claim
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.making import plan_card
from shuhari.lab.claims.result import describe, list_quantities
from shuhari.lab.claims.sources import ROOT, find_changed
from shuhari.lab.claims.tries import count_tries

TRIES = 3  # one, and two redesigns


@dataclass(frozen=True)
class Protocol:
    """The protocol of a claim. mark: its digest; tries: how many there were, including this one; first: the first seed;
    commit: the git commit that held it when this try first ran, or "" with the reason in `why`."""

    mark: str
    tries: int
    first: int
    commit: str
    why: str = ""
    seen: bool = False

    @property
    def exploratory(self) -> tuple[str, ...]:
        """The reasons why a result is only exploratory."""
        late = (f"{self.tries} tries: at most {TRIES} count",) if self.tries > TRIES else ()
        seen = ("the method was run on this bed before the protocol was fixed",) if self.seen else ()
        return ((self.why,) if self.why else ()) + seen + late

    @property
    def table(self) -> dict[str, Any]:
        """The protocol as a result stores it."""
        return {"hash": self.mark, "tries": self.tries, "commit": self.commit, "why": self.why}


def find_protocol(
    claim: Claim, card: Card | None, before: Mapping[str, Any] | None, used: Mapping[str, str] = EMPTY
) -> Protocol:
    """Return the protocol of a claim. `before`: the existing result; `used`: the claim's modules as they are now. The
    try stays the same if nothing has changed, unless it was not committed and is now: then it gets new seeds."""
    mark, then = find_mark(claim), (before or EMPTY).get("protocol", EMPTY)
    commit, why = find_commit(claim, [card.file] if card and card.file else [])
    same = before is not None and then.get("hash") == mark and not find_changed(before["hashes"]["modules"], used)
    tries, first = int(then.get("tries", 0)), find_first_seed(before)
    known = then.get("commit") or then.get("line")  # a commit, or a line of the registry
    if before is not None and same and (known or not commit):
        again, why = before["seeds"][0] if before["seeds"] else first, then.get("why", "" if known else why)
        return Protocol(mark, tries, int(again), then["commit"], why, claim.seen)
    return Protocol(mark, 1 + max(tries, count_tries(before or EMPTY)), first, commit, why, claim.seen)


def prepare(
    claim: Claim, before: Mapping[str, Any] | None, used: Mapping[str, str], beds: Path | None = None
) -> tuple[Claim, Card | None, Protocol]:
    """Return (the claim on the seeds of its try, its bed's card, its protocol) for measuring. A smoke uses no card.
    beds: the folder of cards. Raises RecipeError if the card is out of date, or neither the claim nor the card has an
    arm that a premise is about."""
    card = None if claim.smoke else choose_card(claim, used, beds)
    protocol = find_protocol(claim, card, before, used)
    seeds = claim.seeds if claim.smoke else range(protocol.first, protocol.first + len(claim.seeds))
    return claim.with_seeds(seeds), card, protocol


def choose_card(claim: Claim, used: Mapping[str, str], beds: Path | None = None) -> Card | None:
    """Return the card for a claim's baseline; None if the bed has no card, or the claim changes the bed's baseline,
    warm start or budget. Raises RecipeError if the card is out of date, or a premise is about an arm that neither the
    card nor the claim has."""
    found = cards.find(claim.bed, beds)
    card = found if found is not None and _stands_on_bed(claim) else None
    cards.check(card, claim, used)
    _check_premises(claim, card)
    if card is not None:
        cards.check_metrics(card, claim, list_quantities(claim))
    return card


def _check_premises(claim: Claim, card: Card | None) -> None:
    there = cards.list_arms(claim, card)
    for number in claim.find_checks("premise"):
        for arm in claim.checks[number].arms:
            if arm not in there:
                has = f"the card of {claim.bed} has none" if card else f"there is no card of {claim.bed} as it is here"
                hint = f"{nearest(arm, there)}, or `shuhari claim --card {claim.bed}` makes one of the bed alone"
                rule = claim.checks[number].rule
                where = name_check(number, claim.checks[number], "arm" if arm == rule.arm else "against")
                raise RecipeError(where, f"no arm {arm!r} in the claim; {has}; {hint}")


def _stands_on_bed(claim: Claim) -> bool:
    """Whether the baseline is the bed alone; also True if the bed is not a known recipe."""
    if BASELINE not in claim.arms or claim.bed not in list_names():
        return True
    bed = plan_card(claim.bed)
    mine, its = ((c.arms[BASELINE], c.warm.get(BASELINE)) for c in (claim, bed))
    alike = all((a and compute_digest(a)) == (b and compute_digest(b)) for a, b in zip(mine, its, strict=True))
    return alike and claim.budget == bed.budget


def find_mark(claim: Claim) -> str:
    """Compute a digest of everything that the verdict depends on, except seeds, code and machine; wording and how a
    recipe is written do not count."""
    arms = {name: compute_digest(recipe) for name, recipe in claim.recipes.items()}
    checks = [describe(check) for check in claim.checks]
    text = json.dumps([checks, claim.budget, list(claim.looks), claim.bed, arms], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def find_first_seed(before: Mapping[str, Any] | None) -> int:
    """Return the first seed that no run of a claim has used. `before`: the existing result."""
    if before is None:
        return FIRST
    return 1 + max(
        [
            FIRST - 1,
            *before["seeds"],
            *(
                s
                for entry in before["history"]
                for s in _read_seeds(entry)
            ),
        ]
    )


def _read_seeds(entry: Mapping[str, Any]) -> Sequence[int]:
    """Return the first and last seed of an entry of the history; entries without `used` are old and began at FIRST."""
    used: Sequence[int] = entry.get("used", (FIRST, FIRST + int(entry["seeds"]) - 1))
    return used


def find_commit(claim: Claim, files: Sequence[Path] = ()) -> tuple[str, str]:
    """Return (the commit that holds all files of the claim, and `files`, as they are, ""), or ("", why not). Files of
    an installed library in no repository count as committed."""
    if claim.file is None:
        return "", "its protocol is in no file"
    commit = _run_git(claim.file.parent, "rev-parse", "--short=12", "HEAD").strip()
    if not commit:
        return "", "its protocol is in no git repository"
    for path in dict.fromkeys((claim.file, *files, *claim.files)):
        if ROOT in path.parents and not _run_git(path.parent, "rev-parse", "HEAD"):
            continue
        there, here = _run_git(path.parent, "show", f"HEAD:./{path.name}"), path.read_text(encoding="utf-8")
        if _read_table(there) != _read_table(here) if path.suffix == ".toml" else there != here:
            return "", f"{path.name} is not committed as it stands"
    return commit, ""


def _read_table(text: str) -> Mapping[str, Any] | None:
    """Return a recipe's table without its claim's texts; None if it cannot be read."""
    try:
        table = tomllib.loads(text)
    except ValueError:
        return None
    claim = {k: v for k, v in table.get("claim", {}).items() if k not in ("says", "notes", "objection")}
    return {**table, "claim": claim} if table else None


def _run_git(folder: Path, *words: str) -> str:
    """Return the output of git in a folder; "" if it fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
