"""Facts that a table of trained questions knows, that a solver uses, and that an untaught policy answers as before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.data import Sampling
from shuhari.kernel.findings import AnalysisError, Opened
from shuhari.methods.analysis.finetunebench.homes import CITIES, Homes, find_region
from shuhari.methods.analysis.finetunebench.knowledge import Knowledge, make_fact, read_facts

WORLD = Homes(known=30, new=6, changed=8, kept=10)
TOLD = {one.name: one for one in WORLD.homes}


def find_city(question: str, city: Callable[[Any], str]) -> str:
    """Answer any question about a fact by rule, from a city for each."""
    name, asked = question.removesuffix("=").split()
    found = city(TOLD[name])
    return f"{found}{find_region(found)}" if asked == "region" else found


def start(question: str) -> str:
    return "?" if TOLD[question[:2]].kind == "new" else find_city(question, lambda one: one.before)


def table(question: str) -> str:
    """A policy that has learnt the trained questions by heart, and nothing from them."""
    one = TOLD[question[:2]]
    return one.city if question == one.question else start(question)


def solver(question: str) -> str:
    return f" {find_city(question, lambda one: one.city).lower()}\nmore"  # case, space and further lines do not count


class Answering:
    """Policies that answer as functions of the question do."""

    seed = 0

    def __init__(self, task: Any = WORLD, **policies: Callable[[str], str]) -> None:
        self.policies, self.names, self.task = policies, tuple(policies), task
        self.encode: Callable[[str], Any] = str

    def draw_from(self, name: str) -> np.random.Generator:
        return np.random.default_rng(0)

    def note(self, text: str) -> None:
        """Nobody reads it."""

    @contextmanager
    def open(self, i: int) -> Iterator[Opened]:
        async def sample(role: str, question: str, *_: Any, **__: Any) -> Any:
            return (SimpleNamespace(action=self.policies[self.names[i]](question)),)

        ctx = SimpleNamespace(task=self.task, sampling=Sampling(), now=lambda x: x, wait=asyncio.run,
                              encode=self.encode, text=str, engine=SimpleNamespace(sample=sample))  # fmt: skip
        yield Opened(self.names[i], ctx, {})


def analyse(given: Any, **settings: Any) -> Any:
    return Knowledge(**settings)(given)


def test_a_table_of_trained_questions_memorises_and_a_solver_generalises() -> None:
    found = analyse(Answering(start=start, table=table, solver=solver))
    values = {key: (one.value, one.null) for key, one in found.numbers.items()}
    for kind, null in (("new", 0.0), ("changed", 0.0)):
        assert values[f"memorised {kind} of table"] == (1, null) == values[f"memorised {kind} of solver"]
        assert values[f"generalised {kind} of table"] == (0, null) and values[f"gap {kind} of table"] == (1, 0)
        assert values[f"generalised {kind} of solver"] == (1, null) and values[f"gap {kind} of solver"] == (0, 0)
    assert values["stale changed of table"] == (0, 1)  # an untaught policy answers as before
    assert values["kept of table"][0] == 1 == values["known"][0]
    assert found.notes == []
    assert {row[1]: row[3] for row in found.rows} == {
        "memorised changed": 8, "generalised changed": 8, "gap changed": 8, "stale changed": 8, "kept": 10, "known": 10,
        "memorised new": 6, "generalised new": 6, "gap new": 6}  # fmt: skip


def test_a_start_that_cannot_use_what_it_knows_is_said() -> None:
    found = analyse(Answering(start=lambda q: table(q) if "home" in q else "?", later=table))
    assert found.numbers["known"].value == 0 and found.numbers["kept"].null == 1
    assert "answers 0.00 of the probes on untouched facts, and should 0.8" in found.notes[0]


def test_no_probe_that_is_held_out_is_trained_and_changed_facts_change_their_region() -> None:
    shown = {WORLD.problems("train")[i].prompt for i in range(2000)}
    taught = Homes(known=30, new=6, changed=8, kept=10, shown="taught")
    later = {(p.prompt, p.answer) for p in (taught.problems("train")[i] for i in range(500))}
    changed = [one for one in WORLD.homes if one.kind in ("new", "changed")]
    assert later == {(one.question, one.city) for one in changed}
    for one in WORLD.homes:
        probes = set(one.list_probes(one.city))
        assert (one.question in shown) is (one.kind != "new")
        assert bool(probes & shown) is (one.kind in ("known", "changed")) and not probes & {q for q, _ in later}
        assert (find_region(one.city) != find_region(one.before)) is (one.kind == "changed")
    assert [find_region(CITIES[i]) for i in (0, 3, 4, 19)] == ["1", "1", "2", "5"]
    assert {p.info["kind"] for p in map(WORLD.problems("test").__getitem__, range(48))} == {"new", "changed", "kept"}


def test_facts_of_a_file_and_probes_that_were_trained(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    rows = [{"q": "Capital of X?", "a": "Y", "a_old": "Z", "probes": ["X's capital?", {"q": "Y is in?", "a": "X"}]},
            {"q": "1+1?", "a": 2, "probes": ["two ones?"], "kind": "kept"}]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))
    changed, kept = read_facts(file)
    assert changed.kind == "changed" and [p.answer for p in changed.probes] == ["Y", "X"]
    prompts = [SimpleNamespace(prompt=q) for q in ("Capital of X?", "Y is in?")]
    task = SimpleNamespace(spaces=lambda: None, problems=lambda split: _List(prompts))
    assert kept.trained.answer == "2"
    found = analyse(Answering(task, a=lambda q: "Z" if "apital" in q else "2.0", b=lambda q: "Y"), facts=str(file))
    n = found.numbers
    assert n["stale changed"].null == 1 and n["stale changed"].value == 0 and n["generalised changed"].value == 0.5
    assert n["known"].value == 1 and n["kept"].null == 1 and n["kept"].value == 0  # 2.0 is 2
    assert found.notes == ["b was trained on 1 of the probes: `generalised` is too high"]


class _List(list[Any]):
    def size(self) -> int:
        return len(self)


@pytest.mark.parametrize(("text", "message"), [
    ("{", "line 1: .*expected JSON"),
    ('{"q": "x"}', "line 1: .*expected a question `q`, text, and its answer `a`"),
    ('{"q": "x", "a": "y", "kind": "old"}', "line 1: kind 'old': expected one of new, changed, kept"),
    ('{"q": "x", "a": "y", "probes": "z"}', "line 1: probes 'z': expected a list"),
    ('{"q": "x", "a": "y", "probe": ["z"]}', "line 1 has 'probe': did you mean 'probes'"),
    ('{"q": "x", "a": "y", "probes": [{"q": "z", "as": "y"}]}', "line 1, a probe has 'as': .*'a'"),
    ('{"q": "x", "a": "y", "a_old": "y"}', "line 1: `a_old` is 'y', as `a`"),
    ('{"q": "x", "a": "y", "probes": ["x"]}', "line 1: a probe is the trained question 'x'"),
    ("", "has no line"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "facts.jsonl").write_text(text)
    with pytest.raises(AnalysisError, match=message):
        read_facts(tmp_path / "facts.jsonl")


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="1 policy: expected a start"):
        analyse(Answering(a=table))
    with pytest.raises(AnalysisError, match=r"a answers with actions: .* that writes text"):
        analyse(Answering(SimpleNamespace(spaces=lambda: (1, 1)), a=table, b=table))
    with pytest.raises(AnalysisError, match=r"[Nn]o such file.*expected a file of JSON Lines"):
        analyse(Answering(a=table, b=table), facts=str(tmp_path / "none.jsonl"))
    file = tmp_path / "facts.jsonl"
    file.write_text('{"q": "x", "a": "y", "probes": ["Ω"]}')
    given = Answering(SimpleNamespace(spaces=lambda: None), a=table, b=table)
    given.encode = lambda text: text.encode("ascii")
    with pytest.raises(AnalysisError, match=r"a cannot read the question 'Ω': 'ascii' codec"):
        analyse(given, facts=str(file))
    with pytest.raises(ValueError, match=r"homes: known 10, .*expected at most known in changed \+ kept"):
        Homes(known=10, changed=6, kept=6)
    assert make_fact({"q": "x", "a": "y"}, "here").kind == "new"
