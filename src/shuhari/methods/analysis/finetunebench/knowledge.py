"""Whether fine-tuning taught facts, or sentences: answers to the questions that were trained, and to others on the same
facts (FineTuneBench, Wu et al. 2024, arXiv 2411.05059).

Left out: a judge that grades (answers are compared as text), and the paper's own data sets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shuhari.bounds import Share, check
from shuhari.data import Array, nearest
from shuhari.kernel.accuracy import estimate
from shuhari.kernel.findings import AnalysisError, Finding, Given, Number, Opened, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.run_names import shorten
from shuhari.tasks.file import matches

TAUGHT, KEPT = ("new", "changed"), "kept"
QUESTION = ("q", "a", "a_old")  # the keys of a question in a file
FACT = (*QUESTION, "probes", "kind")
SAYS = {
    "memorised": "of the trained questions on {} facts",
    "generalised": "of the probes of a fact, {} ones",
    "gap": "memorised less generalised, {} facts",
    "stale": "of the trained questions on {} facts, answered as before",
    "kept": "of the questions on untouched facts",
    "known": "of the probes on untouched facts",
}


@dataclass(frozen=True)
class Question:
    """A question, its right answer, and the one that was right before ("" if none is known)."""

    text: str
    answer: str
    before: str = ""


@dataclass(frozen=True)
class Fact:
    """A fact of a `kind` (`new`, `changed`, `kept`): the question that is trained, and probes, which are not."""

    kind: str
    trained: Question
    probes: tuple[Question, ...]


@register("run_analysis", "knowledge")
@dataclass
class Knowledge:
    """Whether fine-tuning taught facts or sentences: answers to the questions that were trained, and to others.

    The first run is the start; each other was fine-tuned on questions of facts. Numbers, of each other run, shares of
    greedy answers: of new and of changed facts `memorised`, trained questions that are right, `generalised`, probes of
    a fact that are, and `gap`, the first less the second; of changed facts `stale`, trained questions answered as
    before; `kept`, questions on untouched facts that are right. The null of each is the start's. Of the start itself
    `known`, probes on untouched facts that are right: if that is below `premise`, the policy cannot use what it knows,
    and a low `generalised` says little of fine-tuning. The first line of an answer is compared, except for case and
    white space, or as a number. Intervals: bootstrap over facts.
    """

    facts: str = ""
    """JSON Lines file, a fact a line: `q` and `a`; `probes`, a list of questions with that answer, or of tables with
    `q`, `a` and `a_old`; `a_old` if the fact has changed; `kind`, `kept` if it is untouched. Empty: the split `facts`
    of each run's task, with these in the `info` of a problem."""
    premise: Share = 0.8
    """Share of the probes on untouched facts that the start should answer."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a file that cannot be read, a single policy, one that acts, a task without facts."""
        if len(given.names) < 2:
            raise AnalysisError("1 policy: expected a start, and what fine-tuning made of it")
        listed = read_facts(Path(self.facts)) if self.facts else []
        names, rng, notes = shorten(given.names), given.draw_from("facts"), list[str]()
        found: list[dict[str, Array]] = []
        for i, name in enumerate(given.names):
            given.note(f"asking {name}")
            with given.open(i) as opened:
                if opened.ctx.task.spaces() is not None:
                    raise AnalysisError(f"{name} answers with actions: this analysis needs a policy that writes text")
                facts = listed or list_facts(opened)
                check_readable(facts, opened)
                found.append(measure(facts, [ask(fact, opened) for fact in facts]))
                shown = count_shown(facts, opened.ctx.task) if i else 0
            if shown:
                notes.append(f"{name} was trained on {shown} of the probes: `generalised` is too high")
        start, numbers = found[0], dict[str, Number]()
        for name, own in zip(names[1:], found[1:], strict=True):
            for key in (key for key in own if key != "known"):
                says = SAYS[key.split()[0]].format(key.split()[-1])
                null = float(start[key].mean())
                numbers[f"{key} of {name}" if len(names) > 2 else key] = estimate(own[key], rng, says, null)
        if "known" in start:
            numbers["known"] = estimate(start["known"], rng, f"{SAYS['known']}, by the start")
        if "known" not in start or numbers["known"].value < self.premise:
            said = f"{numbers['known'].value:.2f}" if "known" in start else "an unknown share"
            notes.append(f"the start answers {said} of the probes on untouched facts, and should {self.premise:g}: it "
                         "may be the policy that cannot use a fact, however it is taught")  # fmt: skip
        rows = [
            (name, key, float(values.mean()), len(values))
            for name, own in zip(names, found, strict=True)
            for key, values in own.items()
        ]
        place = np.arange(len(names))
        means = {
            key: np.array([own[key].mean() for own in found])
            for key in start if "gap" not in key
        }  # fmt: skip
        lines = {key: (place, mean) for key, mean in means.items()}
        return Finding(numbers, {"answers": Panel(lines, "run, in order", "share that is right", tuple(lines))},
                       ("run", "number", "mean", "facts"), rows, notes)  # fmt: skip


def measure(facts: Sequence[Fact], answers: Sequence[Sequence[str]]) -> dict[str, Array]:
    """Return key -> [facts of its kind], shares of answers; `answers`: of each fact its trained question's, then those
    of its probes."""
    out: dict[str, list[float]] = {}
    for fact, (said, *others) in zip(facts, answers, strict=True):
        right = float(matches(said, fact.trained.answer))
        hits = [matches(text, probe.answer) for text, probe in zip(others, fact.probes, strict=True)]
        share = sum(hits) / len(hits) if hits else None
        found = {"memorised": right, "generalised": share, "gap": None if share is None else right - share}
        if fact.trained.before:
            found["stale"] = float(matches(said, fact.trained.before))
        named: Any = {"kept": right, "known": share} if fact.kind == KEPT else {
            f"{key} {fact.kind}": value for key, value in found.items()}  # fmt: skip
        for key, value in named.items():
            out.setdefault(key, []).extend([] if value is None else [value])
    return {key: np.array(values) for key, values in out.items() if values}


def check_readable(facts: Sequence[Fact], opened: Opened) -> None:
    """Raise AnalysisError for a question that a policy cannot read, before any is asked."""
    for fact in facts:
        for one in (fact.trained, *fact.probes):
            try:
                opened.ctx.encode(one.text)
            except (ValueError, LookupError) as error:
                raise AnalysisError(f"{opened.name} cannot read the question {one.text!r}: {error}") from None


def ask(fact: Fact, opened: Opened) -> list[str]:
    """Return the first line of the greedy answer to each question of a fact, the trained one first."""
    ctx = opened.ctx
    sampling = replace(ctx.now(ctx.sampling), greedy=True, epsilon=0.0)

    async def answer(one: Question) -> str:
        key = ("knowledge", one.text)
        (trace,) = await ctx.engine.sample("policy", ctx.encode(one.text), sampling, 1, key=key)
        return str(next(iter(ctx.text(trace.action).strip().splitlines()), ""))

    async def answer_all() -> list[str]:
        return await asyncio.gather(*map(answer, (fact.trained, *fact.probes)))

    found: list[str] = ctx.wait(answer_all())
    return found


def count_shown(facts: Sequence[Fact], task: Any) -> int:
    """Return how many probes are among the training problems of a task; 0 of one whose training has no end."""
    source = task.problems("train")
    prompts = [source[i].prompt for i in range(source.size() or 0)]
    probes = [
        probe.text
        for fact in facts if fact.kind != KEPT
        for probe in fact.probes
    ]  # fmt: skip
    return sum(probe in prompts for probe in probes)


def list_facts(opened: Opened) -> list[Fact]:
    """Return the facts of a policy's task. Raises AnalysisError if it has none."""
    try:
        source = opened.ctx.task.problems("facts")
    except (ValueError, LookupError):
        raise AnalysisError(f"{opened.name}: its task has no split `facts`: expected --set facts=FILE.jsonl") from None
    problems = [source[i] for i in range(source.size() or 0)]
    out = []
    for p in problems:
        info = {key: p.info[key] for key in FACT if key in p.info}
        out.append(make_fact({"q": p.prompt, "a": p.answer, **info}, p.id))
    return out


def read_facts(path: Path) -> list[Fact]:
    """Read a JSON Lines file of facts. Raises AnalysisError with the line of one that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AnalysisError(f"facts {str(path)!r}: {error}: expected a file of JSON Lines") from None
    out = []
    for i, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise AnalysisError(f"{path} line {i}: {error}: expected JSON") from None
        if row is not None:
            out.append(make_fact(row, f"{path} line {i}"))
    if not out:
        raise AnalysisError(f"facts {str(path)!r} has no line: expected a fact a line")
    return out


def make_fact(row: Any, where: str) -> Fact:
    """Make a fact of a row (`Knowledge.facts`). Raises AnalysisError, with `where` it stands, for one that is none."""
    table = row if isinstance(row, Mapping) else {}
    trained = _read_question(table, "", FACT, where)
    kind = table.get("kind") or TAUGHT[bool(trained.before)]
    if kind not in (*TAUGHT, KEPT):
        raise AnalysisError(f"{where}: kind {kind!r}: expected one of {', '.join((*TAUGHT, KEPT))}")
    probes = table.get("probes") or []
    if not isinstance(probes, list | tuple):
        raise AnalysisError(f"{where}: probes {probes!r}: expected a list")
    asked = tuple(_read_question(one, trained.answer, QUESTION, f"{where}, a probe") for one in probes)
    if any(probe.text == trained.text for probe in asked):
        raise AnalysisError(f"{where}: a probe is the trained question {trained.text!r}: expected another question")
    return Fact(kind, trained, asked)


def _read_question(row: Any, answer: str, known: Sequence[str], where: str) -> Question:
    """Read a question of a table with the keys `known`, or of its text alone, if its answer is."""
    table = row if isinstance(row, Mapping) else {"q": row}
    if (odd := next((key for key in table if key not in known), None)) is not None:
        raise AnalysisError(f"{where} has {odd!r}: {nearest(odd, known)}")
    q, a, before = table.get("q"), table.get("a", answer), table.get("a_old")
    if not isinstance(q, str) or not q or a in (None, ""):
        raise AnalysisError(f"{where}: {row!r}: expected a question `q`, text, and its answer `a`")
    if before is not None and str(before) == str(a):
        raise AnalysisError(f"{where}: `a_old` is {before!r}, as `a`: expected what was right before, or no `a_old`")
    return Question(q, str(a), "" if before is None else str(before))
