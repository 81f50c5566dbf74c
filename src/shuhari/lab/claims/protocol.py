"""Protocols: what a claim will be judged by, fixed and committed before its method first runs.

A protocol is what a claim's arms do, their budget, the checks and the looks. A try is a protocol with one version of
the method's own modules, on seeds of its own: after a change of either, seeds go on from the last used, so that nothing
which was seen counts again. Whether git held the protocol is settled at the first run of a try, and stays so; one that
it did not hold is exploratory, and so is a try after too many.
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
from shuhari.lab.claims.checks import BASELINE
from shuhari.lab.claims.claim import FIRST, Claim
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.making import plan_card
from shuhari.lab.claims.result import describe
from shuhari.lab.claims.sources import ROOT, find_changed

TRIES = 3  # one, and two redesigns


@dataclass(frozen=True)
class Protocol:
    """The protocol of a claim. mark: its digest; tries: how many there were, this one included; first: the first seed;
    commit: of git, that held it when this try first ran, "" where none did, and `why`."""

    mark: str
    tries: int
    first: int
    commit: str
    why: str = ""

    @property
    def exploratory(self) -> tuple[str, ...]:
        """Why what is found is a hint alone."""
        late = (f"{self.tries} tries: at most {TRIES} count",) if self.tries > TRIES else ()
        return ((self.why,) if self.why else ()) + late

    @property
    def table(self) -> dict[str, Any]:
        """As a result has it."""
        return {"hash": self.mark, "tries": self.tries, "commit": self.commit, "why": self.why}


def find_protocol(
    claim: Claim, card: Card | None, before: Mapping[str, Any] | None, used: Mapping[str, str] = EMPTY
) -> Protocol:
    """The protocol of a claim; `before`: the result that is there; `used`: its modules as they are now. The try is that
    of `before` where nothing has changed, but for one that was not committed and is now: that gets seeds of its own."""
    mark, then = find_mark(claim), (before or EMPTY).get("protocol", EMPTY)
    commit, why = find_commit(claim, [card.file] if card and card.file else [])
    same = before is not None and then.get("hash") == mark and not find_changed(before["hashes"]["modules"], used)
    tries, first = int(then.get("tries", 0)), find_first_seed(before)
    if before is not None and same and (then["commit"] or not commit):
        again = before["seeds"][0] if before["seeds"] else first
        return Protocol(mark, tries, int(again), then["commit"], "" if then["commit"] else then.get("why", why))
    return Protocol(mark, tries + 1, first, commit, why)


def prepare(
    claim: Claim, before: Mapping[str, Any] | None, used: Mapping[str, str], beds: Path | None = None
) -> tuple[Claim, Card | None, Protocol]:
    """(a claim on the seeds of its try, the card of its bed, its protocol), as they are when it is measured; a smoke
    needs no card. RecipeError if the card is out of date, or if neither the claim nor a card has an arm that a premise
    is about. beds: where cards lie."""
    card = None if claim.smoke else choose_card(claim, used, beds)
    protocol = find_protocol(claim, card, before, used)
    seeds = claim.seeds if claim.smoke else range(protocol.first, protocol.first + len(claim.seeds))
    return claim.with_seeds(seeds), card, protocol


def choose_card(claim: Claim, used: Mapping[str, str], beds: Path | None = None) -> Card | None:
    """The card that tells of a claim's baseline. None where its bed has none, or where its baseline, warm start or
    budget is another than the bed's, of which a card is. RecipeError where the card is out of date, or where a premise
    is about an arm that neither it nor the claim has."""
    found = cards.find(claim.bed, beds)
    card = found if found is not None and _stands_on_bed(claim) else None
    cards.check(card, claim, used)
    _check_premises(claim, card)
    return card


def _check_premises(claim: Claim, card: Card | None) -> None:
    there = cards.list_arms(claim, card)
    for number in claim.find_checks("premise"):
        for arm in claim.checks[number].arms:
            if arm not in there:
                has = f"the card of {claim.bed} has none" if card else f"no card tells of {claim.bed} as it is here"
                hint = f"{nearest(arm, there)}, or `shuhari claim --card {claim.bed}` makes one of the bed alone"
                raise RecipeError(f"claim.check.{number}", f"no arm {arm!r}, and {has}; {hint}")


def _stands_on_bed(claim: Claim) -> bool:
    """Whether the baseline is the bed alone; so too where the bed is no recipe that is there."""
    if BASELINE not in claim.arms or claim.bed not in list_names():
        return True
    bed = plan_card(claim.bed)
    mine, its = ((c.arms[BASELINE], c.warm.get(BASELINE)) for c in (claim, bed))
    alike = all((a and compute_digest(a)) == (b and compute_digest(b)) for a, b in zip(mine, its, strict=True))
    return alike and claim.budget == bed.budget


def find_mark(claim: Claim) -> str:
    """A digest of all that the verdict will hang on, but the seeds, the code and the machine: not of words, nor of how
    a recipe is written."""
    arms = {name: compute_digest(recipe) for name, recipe in claim.recipes.items()}
    checks = [describe(check) for check in claim.checks]
    text = json.dumps([checks, claim.budget, list(claim.looks), claim.bed, arms], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def find_first_seed(before: Mapping[str, Any] | None) -> int:
    """The first seed that no run of a claim has used; `before`: the result that is there."""
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
    """The first and the last seed of a line of the history; one of before there were tries has no `used`, and began at
    FIRST."""
    used: Sequence[int] = entry.get("used", (FIRST, FIRST + int(entry["seeds"]) - 1))
    return used


def find_commit(claim: Claim, files: Sequence[Path] = ()) -> tuple[str, str]:
    """(the commit that holds all files that the claim is written in, and other `files`, as they stand, ""), or ("", why
    not). What an installed library brings, in no repository, stands as its version does."""
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
    """A recipe's table, without the words of its claim; None where there is none."""
    try:
        table = tomllib.loads(text)
    except ValueError:
        return None
    claim = {k: v for k, v in table.get("claim", {}).items() if k not in ("says", "notes")}
    return {**table, "claim": claim} if table else None


def _run_git(folder: Path, *words: str) -> str:
    """What git says in a folder; "" where it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
