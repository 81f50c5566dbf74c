"""Protocols: what a claim will be judged by, fixed and committed before its method first runs.

A protocol is what a claim's arms do, their budget, the checks and the looks. After a change of it seeds go on from the
last used, so that nothing which was seen counts again. A claim that was not fixed beforehand, or whose protocol was
changed too often, is exploratory.
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

from shuhari.claims.cards import Card
from shuhari.claims.claim import FIRST, Claim
from shuhari.claims.digest import digest
from shuhari.claims.result import describe
from shuhari.config import library
from shuhari.config.recipe import place

TRIES = 3  # a protocol, and two redesigns of it


@dataclass(frozen=True)
class Protocol:
    """The protocol of a claim. mark: its digest; tries: how many there were, this one included; first: the first seed;
    commit: of git, that holds it, "" where none does, and `why`."""

    mark: str
    tries: int
    first: int
    commit: str
    why: str = ""

    @property
    def exploratory(self) -> tuple[str, ...]:
        """Why what is found is a hint alone."""
        late = (f"{self.tries} protocols: at most {TRIES} count",) if self.tries > TRIES else ()
        return ((self.why,) if self.why else ()) + late


def protocol_of(claim: Claim, card: Card | None, before: Mapping[str, Any] | None) -> Protocol:
    """The protocol of a claim; `before`: the result that is there."""
    mark = find_mark(claim)
    there = claim.bed.endswith(".toml") or library.named(claim.bed) is not None
    files = [place(claim.bed) if there else None, card.file if card else None]
    commit, why = find_commit(claim, [file for file in files if file is not None])
    marks = list(dict.fromkeys([*_marks(before), mark]))
    return Protocol(mark, marks.index(mark) + 1, first_seed(mark, before), commit, why)


def find_mark(claim: Claim) -> str:
    """A digest of all that the verdict will hang on, but the seeds, the code and the machine: not of words, nor of how
    a recipe is written."""
    arms = {name: digest(recipe) for name, recipe in claim.recipes.items()}
    checks = [describe(check) for check in claim.checks]
    told = json.dumps([checks, claim.budget, list(claim.looks), claim.bed, arms], sort_keys=True, default=str)
    return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()


def first_seed(mark: str, before: Mapping[str, Any] | None) -> int:
    """The first seed of a protocol: those of the result `before` where it is of the same, else the next after all that
    were used."""
    if before is None:
        return FIRST
    if before.get("protocol", {}).get("hash") == mark and before["seeds"]:
        return int(before["seeds"][0])
    return 1 + max([FIRST - 1, *before["seeds"], *(s for entry in before["history"] for s in _used(entry))])


def _used(entry: Mapping[str, Any]) -> Sequence[int]:
    """The first and the last seed of a line of the history; the older rule's all began at FIRST."""
    used: Sequence[int] = entry.get("used", (FIRST, FIRST + int(entry["seeds"]) - 1))
    return used


def _marks(before: Mapping[str, Any] | None) -> list[str]:
    return [entry["protocol"] for entry in (before or {}).get("history", ()) if "protocol" in entry]


def find_commit(claim: Claim, files: Sequence[Path] = ()) -> tuple[str, str]:
    """(the commit that holds the claim's recipe, and other `files`, as they stand, ""), or ("", why not)."""
    if claim.file is None:
        return "", "its protocol is in no file"
    commit = _git(claim.file.parent, "rev-parse", "--short=12", "HEAD").strip()
    if not commit:
        return "", "its protocol is in no git repository"
    for path in (claim.file, *files):
        there, here = _git(path.parent, "show", f"HEAD:./{path.name}"), path.read_text(encoding="utf-8")
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


def _git(folder: Path, *words: str) -> str:
    """What git says in a folder; "" where it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
