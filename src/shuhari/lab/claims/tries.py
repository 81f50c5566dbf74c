"""Begun tries: recorded before a method's first run, so that stopping a claim does not erase a try.

`<out>/begun/<family>/<method>.json` lists them, each in the format of a result: `protocol` (hash, tries, commit, why),
all `seeds` that it may use, `hashes.modules` of the method's own code, `date`. The file is deleted when a result is
written; abandoned tries then appear in that result's history as stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.verdict import Headline
from shuhari.store.files import replace_file, translate_errors

FOLDER = "begun"
STOPPED = "stopped"  # replaces a verdict
KEYS = ("date", "protocol", "seeds", "hashes")


@dataclass(frozen=True)
class Begun:
    """The tries of one claim that have begun and have no result. file: their record, None to keep none; before: the
    existing result."""

    file: Path | None
    before: Mapping[str, Any] | None = None

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The begun tries that are not in the history. Raises RecipeError if the file is not a list of tries."""
        if self.file is None or not self.file.is_file():
            return []
        try:
            found: list[dict[str, Any]] = json.loads(self.file.read_text(encoding="utf-8"))
            ended = {line.get("try") for line in (self.before or {}).get("history", ())}
            return [
                one
                for one in found
                if all(key in one for key in KEYS) and one["protocol"]["tries"] not in ended
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise RecipeError("", f"{self.file} is not a list of tries ({error}): move it away") from None

    def last(self) -> Mapping[str, Any] | None:
        """Return what the next try continues from: the last begun try, in the shape of a result; otherwise the
        result."""
        begun = self.entries
        return {**begun[-1], "history": [*self._history(), *map(_line, begun)]} if begun else self.before

    def stopped(self, tries: int) -> Mapping[str, Any] | None:
        """Return the existing result with a `stopped` entry in its history for each begun try except number `tries`,
        which has ended."""
        lines = [_line(one) for one in self.entries if one["protocol"]["tries"] != tries]
        return {**(self.before or {}), "history": [*self._history(), *lines]} if lines else self.before

    def write(self, protocol: Mapping[str, Any], seeds: list[int], modules: Mapping[str, str]) -> None:
        """Record a try, unless it is recorded already."""
        begun = self.entries
        known = (
            {one["protocol"]["tries"] for one in begun}
            | {line.get("try") for line in self._history()}
        )
        if self.file is None or protocol["tries"] in known:
            return
        now = {"date": date.today().isoformat(), "protocol": dict(protocol), "seeds": seeds}
        text = json.dumps([*begun, {**now, "hashes": {"modules": dict(modules)}}], indent=1)
        with translate_errors(f"write {self.file}"):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, [f"{text}\n".encode()])

    def _history(self) -> list[dict[str, Any]]:
        return list((self.before or {}).get("history", ()))


def file_of(name: str, out: Path) -> Path:
    """Return the file that records the begun tries of the claim `name`; it is deleted when a result is written."""
    return out / FOLDER / f"{name}.json"


def _line(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a try as an entry of a history."""
    protocol, seeds = entry["protocol"], entry["seeds"]
    line = {"date": entry["date"], "verdict": STOPPED, "checks": [], "seeds": len(seeds)}
    fixed = {"protocol": protocol["hash"], "try": protocol["tries"], "commit": protocol["commit"]}
    return {**line, **fixed, "used": [seeds[0], seeds[-1]]}


def count_tries(result: Mapping[str, Any]) -> int:
    """Count the tries in a result's history in which the method ran, those by an older rule included."""
    ran = [line for line in result.get("history", ()) if line.get("verdict") != Headline.UNTESTED]
    numbered = {line["try"] for line in ran if "try" in line}
    return len(numbered) + sum("try" not in line for line in ran)
