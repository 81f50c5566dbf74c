"""Diagnosis of a run: its steps are split into stages, and every rule is applied to each stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from shuhari.config.overlay import read_budgets
from shuhari.data import EMPTY
from shuhari.lab.diagnosis import learning, rewards, sampling, scores, trained
from shuhari.lab.diagnosis.evidence import Evidence
from shuhari.lab.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (*scores.RULES, *trained.RULES, *rewards.RULES, *sampling.RULES, *learning.RULES)
FINE = "every number lies in its healthy range"
MEASURED = "the last stage only measures: nothing was learnt that could be judged"
MUCH = 1.1  # times a budget: a step ends when all lanes have decided, which may take some more
FEW = 10  # steps; the number that most rules about rewards require


@dataclass(frozen=True)
class Finding:
    """A rule that does not hold in a stage. `number`: the value that the rule computes from `metric` over the steps
    `begin` to `end`; `told`: a further sentence, or empty."""

    rule: Rule
    stage: str
    metric: str
    number: float
    begin: int
    end: int
    told: str = ""

    def __str__(self) -> str:
        return " ".join(self.list_lines())

    def list_lines(self) -> tuple[str, str, str]:
        """Return three sentences: the likely cause, the number with its healthy range, and what helps."""
        rule = self.rule
        about = " ".join((rule.number.__doc__ or "").split())
        steps = f"step {self.end}" if self.begin == self.end else f"steps {self.begin} to {self.end}"
        seen = f"{self.metric}, {about}, is {self.number:.4g}; healthy is {rule.describe_range()}."
        seen += f" {self.told}" if self.told else ""
        return f"{rule.name} (stage {self.stage}, {steps}): {rule.cause}.", seen, f"What helps: {rule.helps}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        low, high = self.rule.healthy
        where = {"stage": self.stage, "metric": self.metric, "number": self.number, "begin": self.begin}
        return {"rule": self.rule.name, **where, "end": self.end, "healthy": [low, high],
                "told": self.told, "cause": self.rule.cause, "helps": self.rule.helps}  # fmt: skip


def diagnose(
    columns: Mapping[str, Sequence[Any]], recipe: Mapping[str, Any], began: Mapping[str, Any] = EMPTY
) -> list[Finding]:
    """Return the findings of a run, in the order of its stages. `columns`: metric -> a value for each step
    (`Run.metrics`); `recipe`: the resolved recipe as a dict (`Run.recipe`); `began`: stage -> scores at its start
    (`Run.get("began", {})`)."""
    return [
        finding
        for e in split_stages(columns, recipe, began)
        for finding in judge(e)
    ]


def judge(e: Evidence, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """Return the findings of one stage. A finding is left out if another one covers its rule (`Rule.covers`)."""
    found = {}
    for rule in rules:
        if (pair := rule.find(e)) is not None:
            steps = e.columns["step"]
            told = rule.tells(e, pair[0])
            found[rule.name] = Finding(rule, e.stage, *pair, begin=steps[0], end=steps[-1], told=told)
    covered = {
        name
        for f in found.values()
        for name in f.rule.covers
    }
    return [f for name, f in found.items() if name not in covered]


def split_stages(
    columns: Mapping[str, Sequence[Any]], recipe: Mapping[str, Any], began: Mapping[str, Any] = EMPTY
) -> Iterator[Evidence]:
    """Yield the evidence of each stage in order. Arguments as of `diagnose`."""
    at, before = 0, dict[str, float]()
    for stage, group in groupby(columns.get("stage", ())):
        end = at + len(list(group))
        own = {name: values[at:end] for name, values in columns.items()}
        yield Evidence(str(stage), own, find_table(recipe, stage), before, began.get(str(stage), EMPTY))
        before = {n: v[-1] for n, v in own.items() if n.startswith("spent/") and v[-1] is not None}
        at = end


def find_table(recipe: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Return the settings of a stage: the keys of the recipe, replaced by those of the stage."""
    given = recipe.get("stage", ())
    tables = dict(given) if isinstance(given, Mapping) else {t.get("name"): t for t in given if isinstance(t, Mapping)}
    own = tables.get(stage) or {}
    kept = {k: v for k, v in recipe.items() if k != "stage" and k not in own.get("remove", ())}
    return {**kept, **{k: _lay(kept.get(k), v) if k in ("models", "part") else v for k, v in own.items()}}


def _lay(below: Any, own: Any) -> Any:
    """Merge a table of a stage into that of the recipe, key by key."""
    if not (isinstance(below, Mapping) and isinstance(own, Mapping)):
        return own
    return {**below, **{k: _lay(below.get(k), v) for k, v in own.items()}}


def describe_health(columns: Mapping[str, Sequence[Any]], recipe: Mapping[str, Any]) -> str:
    """Return a sentence about a run without findings: `FINE`, or that it is too short, and what the last stage leaves
    open. Arguments as of `diagnose`."""
    *_, last = split_stages(columns, recipe)
    if last.table.get("steps") == 0:
        return MEASURED
    n = len(last)
    few = f"{n} step{'s are' if n > 1 else ' is'} too few to judge by: most rules need {FEW}, the others find nothing"
    return f"{few if n < FEW else FINE}{_note_no_update(last)}{_note_no_score(columns, last)}"


def _note_no_update(e: Evidence) -> str:
    """Return a clause if a stage ended without an update, or its first step far exceeded the budget; otherwise ""."""
    idle = bool(e.table.get("part")) and not e.spent("updates")
    out = f"; but no update was made in stage {e.stage}" if idle else ""
    for unit, budget in read_budgets(e.table).items() if len(e) == 1 else ():
        if (spent := e.spent(unit)) > MUCH * budget:
            out += f"; its first step alone spent {spent:g} {unit} of a budget of {budget:g}"
    return out


def _note_no_score(columns: Mapping[str, Sequence[Any]], e: Evidence) -> str:
    """Return a clause if a score was 0 at every step of the last stage; otherwise ""."""
    last = [stage == columns["stage"][-1] for stage in columns["stage"]]
    for name in (*(["reward/score"] if e.trains_score else ()), "reward/mean", "evaluate/greedy"):
        values = [v for v, here in zip(columns.get(name, ()), last, strict=False) if here and v is not None]
        if values and not any(values):
            return f"; and yet {name} was 0 at every step of stage {columns['stage'][-1]}: nothing was achieved so far"
    return ""
