"""Alarms while a run trains: the rules marked `at_once`, applied to the first steps of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuhari.data import EMPTY
from shuhari.lab.diagnosis.evidence import Evidence
from shuhari.lab.diagnosis.judge import RULES, Finding, find_table, judge

ASKED = frozenset({1, 2, 3, 5, 10, 20, 50, 100, 200, 500})  # the steps of a stage at which rules are applied
_AT_ONCE = tuple(rule for rule in RULES if rule.at_once)


class Watch:
    """Raises alarms from the reports of a run, added one by one; each rule at most once a stage. A stage whose first
    step was not seen, as in a resumed run, is not judged. `recipe`: of the run, a plain tree as in `diagnose`; without
    it rules assume that the task's own measure is trained."""

    def __init__(self, recipe: Mapping[str, Any] = EMPTY) -> None:
        self._recipe = recipe
        self._stage: str | None = None
        self._step, self._rows, self._raised = 0, list[Mapping[str, Any]](), set[str]()
        self._before: Mapping[str, Any] = {}
        self._last: Mapping[str, Any] = {}

    def add(self, report: Mapping[str, Any]) -> list[Finding]:
        """Add a report, and return the new findings."""
        stage = str(report.get("stage", ""))
        if stage != self._stage:
            resumed = self._stage is None and report.get("step", 1) != 1
            self._stage, self._step, self._rows, self._raised = stage, max(ASKED) if resumed else 0, [], set()
            self._before = {k: v for k, v in self._last.items() if k.startswith("spent/")}
        self._step, self._last = self._step + 1, report
        if self._step > max(ASKED):
            return []
        self._rows.append(report)
        if self._step not in ASKED:
            return []
        names = dict.fromkeys(
            n
            for row in self._rows
            for n, v in row.items()
            if isinstance(v, int | float)
        )
        columns = {
            n: [row.get(n) for row in self._rows]
            for n in names
        }
        found = judge(Evidence(stage, columns, find_table(self._recipe, stage), self._before), _AT_ONCE)
        new = [f for f in found if self._raised.isdisjoint({f.rule.name, *f.rule.covers})]
        for finding in new:
            self._raised |= {finding.rule.name, *finding.rule.covers}
        return new
