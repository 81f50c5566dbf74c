"""Groups found by their numbers and words: as a search through all of them would, and through an index."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.store import Run, Store, StoreError, finding, inspect_run, repair_run, schema
from shuhari.store.rows import compute_checksum

WORDS = ("carry", "the", "one", "Added", "add", "so", "答え", "7", "why")


def make_group(rng: random.Random, number: int) -> dict[str, Any]:
    """Two samples of one or two turns, with texts of few words."""
    problem = Problem("sums", f"p{number % 5}", " ".join(rng.choices(WORDS, k=2)))
    samples = []
    for _ in range(2):
        turns = [
            Step.of(np.arange(2, dtype=np.int32), np.arange(k, dtype=np.int32), np.zeros(k, np.float32),
                    parent=i - 1 if i else None, info={"text": " ".join(rng.choices(WORDS, k=3))})
            for i, k in enumerate(rng.choices((1, 2, 5), k=rng.randint(1, 2)))
        ]  # fmt: skip
        samples.append(Trajectory(Request(problem), tuple(turns), rng.choice(list(Status))))
    rewards = [rng.randint(0, 3) / 3 for _ in samples]
    score = nan if number % 7 == 3 else sum(rewards) / 2
    own = {} if score != score else {"worst": min(rewards), "best": max(rewards)}
    return {"group": f"g{number}", "task": "sums", "problem": problem.id, "why": "all", "score": score, **own,
            "trajectories": tuple(samples)}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run of 5 steps with 12 groups each, and these, as a reader of the groups themselves sees them."""
    rng, path, plain = random.Random(3), tmp_path_factory.mktemp("found") / "run", list[dict[str, Any]]()
    with Store.open(path) as store:
        for step in range(5):
            groups = [make_group(rng, 12 * step + i) for i in range(12)]
            store.commit(step, metrics={}, rollouts=groups, tree={})
            plain += [describe(step, g) for g in groups]
    return path, plain


def describe(step: int, group: dict[str, Any]) -> dict[str, Any]:
    samples = group["trajectories"]
    texts = [samples[0].request.problem.prompt, *(s.info["text"] for t in samples for s in t.steps)]
    told = {name: group.get(name) for name in ("group", "task", "problem", "why")}
    score = None if group["score"] != group["score"] else group["score"]
    return {
        **told, "step": step, "score": score, "worst": group.get("worst"), "best": group.get("best"),
        "samples": 2, "replies": 0, "length": max(sum(len(s.action) for s in t.steps) for t in samples),
        "statuses": {str(t.status) for t in samples},
        "text": " ".join(texts).lower(),
    }  # fmt: skip


def search(plain: list[dict[str, Any]], order: str, descending: bool, **by: Any) -> list[str]:
    words = (by.get("text") or "").lower().split()
    chosen = [
        (g[order], i, g["group"])
        for i, g in enumerate(plain)
        if g[order] is not None
        and by.get("step") in (None, g["step"])
        and (by.get("low") is None or (g["score"] is not None and g["score"] >= by["low"]))
        and (by.get("high") is None or (g["score"] is not None and g["score"] <= by["high"]))
        and (by.get("status") is None or by["status"] in g["statuses"])
        and by.get("problem", g["problem"]) == g["problem"]
        and by.get("shortest", 0) <= g["length"] <= by.get("longest", 99)
        and (not by.get("contrast") or (g["worst"] is not None and g["worst"] < g["best"]))
        and all(any(fits(word, said) for said in g["text"].split()) for word in words)
    ]
    return [name for *_, name in sorted(chosen, reverse=descending)]


def fits(word: str, said: str) -> bool:
    return word == said or (word[-1] == "*" and said.startswith(word[:-1]))


FILTERS: list[dict[str, Any]] = [
    {}, {"step": 2}, {"low": 0.4}, {"high": 0.5, "low": 0.2}, {"status": "error"}, {"text": "carry"},
    {"text": "ADD so"}, {"text": "add*"}, {"text": "add* carry", "low": 0.3, "status": "truncated"},
    {"step": 1, "text": "the", "high": 0.6}, {"text": "nobody"}, {"low": 9.0}, {"problem": "p2", "status": "cut"},
    {"shortest": 3, "longest": 6}, {"contrast": True, "low": 0.3}, {"longest": 0},
]  # fmt: skip


@pytest.mark.parametrize("few", [0, 2000])
@pytest.mark.parametrize("order", finding.ORDERS)
def test_as_a_search_through_all(kept: Any, monkeypatch: pytest.MonkeyPatch, order: str, few: int) -> None:
    """Also where words are said by so many that an order is followed (few = 0)."""
    monkeypatch.setattr(finding, "FEW", few)
    run, hits = Run(kept[0]), 0
    for by in FILTERS:
        for descending in (False, True):
            expected = search(kept[1], order, descending, **by)
            found = run.find_groups(order, descending=descending, **by)
            assert [g["group"] for g in found] == expected[:50], (by, descending)
            page = run.find_groups(order, descending=descending, limit=3, offset=2, **by)
            assert [g["group"] for g in page] == expected[2:5]
        assert run.count_groups(order, **by) == len(expected)
        hits += 0 < len(expected) < len(kept[1])
    assert hits >= 10  # the filters say something


def test_what_is_told_of_a_group(kept: Any) -> None:
    run, plain = Run(kept[0]), {g["group"]: g for g in kept[1]}
    for found in run.find_groups("step", limit=60):
        own = plain[found["group"]]
        assert {name: own[name] for name in found if name in own} == {n: x for n, x in found.items() if n in own}
        assert found["status"] == " ".join(sorted(own["statuses"]))
        assert run.read_group(found["id"])["group"] == found["group"]
    with pytest.raises(StoreError, match="no group 999 is kept"):
        run.read_group(999)


def test_ideographs_are_words_and_hostile_text_is_bounded(kept: Any) -> None:
    assert Run(kept[0]).count_groups("step", text="え") == Run(kept[0]).count_groups("step", text="答え") > 0
    assert finding.split_words(["x" * 10**6, "A a"]) == ["x" * finding.LETTERS, "a"]
    assert len(finding.split_words([" ".join(map(str, range(10**4)))])) == finding.WORDS


@pytest.mark.parametrize("order", finding.ORDERS)
@pytest.mark.parametrize("by", [{}, {"low": 0.5}, {"status": "error"}, {"status": "cut", "high": 0.1}])
def test_a_question_reads_an_index_alone(kept: Any, order: str, by: dict[str, Any]) -> None:
    with sqlite3.connect(kept[0] / "run.sqlite") as db:
        where, args, few = finding._make_condition(db, order, by)  # type: ignore[arg-type]
        query = f"explain query plan select rollout from groups where {where} order by {order}, rollout limit 50"
        plan = [told for *_, told in db.execute(query, args)]
    db.close()
    assert not few and len(plan) == 1 and f"COVERING INDEX groups_{order}" in plan[0], plan


def test_wrong_questions(kept: Any) -> None:
    run = Run(kept[0])
    with pytest.raises(ValueError, match="no order 'scores': expected one of score, worst"):
        run.find_groups("scores")
    with pytest.raises(ValueError, match="no status 'done': expected one of finished"):
        run.find_groups(status="done")
    with pytest.raises(ValueError, match=r"no word in '\+'"):
        run.find_groups(text="+")
    for by, message in (({"limit": -1}, "limit -1: expected 0 or more"), ({"limit": 2**63}, f"limit {2**63}: expected"),
                        ({"offset": 2**70}, "in 64 bits"), ({"step": 10**30}, "step 1000.*: expected a number of 64"),
                        ({"low": -(2**64)}, "low -18446744073709551616: expected")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            run.find_groups(**by)  # type: ignore[arg-type]
    for ask in (run.find_groups, run.count_groups):
        with pytest.raises(TypeError, match=r"no filter 'statu': expected step, low.*did you mean 'status'"):
            ask(statu="cut")  # type: ignore[operator]
    for number in (2**63, -(2**70)):
        with pytest.raises(StoreError, match=f"no group {number} is kept"):
            run.read_group(number)


def test_the_same_step_again_and_what_is_dropped(tmp_path: Path) -> None:
    rng = random.Random(0)
    with Store.open(tmp_path / "r") as store:
        store.commit(0, metrics={}, rollouts=[{"group": "a", "text": "old"}], tree={})
        store.commit(0, metrics={}, rollouts=[{"group": "b", "text": "new"}], tree={})
        store.commit(1, metrics={}, rollouts=[make_group(rng, 1)])
    run = Run(tmp_path / "r")
    assert [run.count_groups("step", text=t) for t in ("old", "new", "sums")] == [0, 1, 1]
    assert run.count_groups("step") == 2
    with Store.open(tmp_path / "r") as store:
        store.set(total=2)  # the first that is written: step 1 had no checkpoint
        assert run.count_groups("step") == 1 and run.count_groups("step", text="sums") == 0


OLD = """
drop table groups; drop table words;
update meta set value = '{version}', checksum = {crc} where key = 'format';
"""


def make_old(kept: Any, path: Path, version: str = "4", then: str = "") -> None:
    """A copy of a run as an older format had it."""
    shutil.copytree(kept[0], path)
    with sqlite3.connect(path / "run.sqlite") as db:
        db.executescript(OLD.format(version=version, crc=compute_checksum(("format", version))) + then)
    db.close()


def test_a_run_of_an_older_format_is_read_and_gone_on_with(kept: Any, tmp_path: Path) -> None:
    make_old(kept, tmp_path / "old")
    old, new = Run(tmp_path / "old"), Run(kept[0])
    asked: list[dict[str, Any]] = [{}, {"text": "add*", "low": 0.2}, {"order": "length", "descending": True}]
    assert [old.find_groups(**by) for by in asked] == [new.find_groups(**by) for by in asked]
    assert old.get("format") == 4  # read as it is
    with Store.open(tmp_path / "old") as store:
        store.set(total=9)
        assert store.get("format") == schema.FORMAT
        (plan,) = store._db.execute("explain query plan select rollout from groups order by score limit 1")
        assert "groups_score" in plan[-1]
    assert [old.find_groups(**by) for by in asked] == [new.find_groups(**by) for by in asked]


def test_of_an_old_run_only_what_is_whole_is_found(kept: Any, tmp_path: Path) -> None:
    """A row whose checksum is another ends the question; one without, as formats before 4 have, may be anything."""
    flip = "update rollouts set payload = 'text' where id = 3;"
    make_old(kept, tmp_path / "checked", then=flip)
    with pytest.raises(StoreError, match=r"run.sqlite: a rollout of step 0 is damaged .its checksum is another"):
        Run(tmp_path / "checked").find_groups()
    make_old(kept, tmp_path / "bare", "3", f"{flip} update rollouts set checksum = null")
    run = Run(tmp_path / "bare")
    measured = {g["id"] for g in run.find_groups("length", limit=60)}
    assert run.count_groups("step") == 60 and measured == {*range(1, 61)} - {3}
    for ask in (lambda: run.read_group(3), lambda: run.rollouts(0)):
        with pytest.raises(StoreError, match=r"the group 'g2' of step 0 is damaged .a stored rollout"):
            ask()


def test_all_of_an_old_run_is_read_however_long_it_takes(
    kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old(kept, tmp_path / "old")
    told = list[float]()
    monkeypatch.setattr(finding, "limit_time", lambda db, seconds=60.0: told.append(seconds))
    assert Run(tmp_path / "old").count_groups() > 0 and told == [inf, 60.0]
    assert Run(kept[0]).count_groups() > 0 and told == [inf, 60.0]


@pytest.mark.parametrize(("change", "text", "message"), [
    ("update groups set score = 1.0 where rollout = 3", None, "what finds the group 3 is damaged"),
    ("update words set step = 77 where word = 'carry' and step = 1", "carry", "a word of step 77 is damaged"),
    ("delete from groups where rollout = 3", None, "the group 3 of step 0 is missing from what finds groups"),
    ("delete from words where word = 'carry' and step = 1", "carry", r"words of the group \d+ are missing"),
    ("delete from rollouts where id = 3", None, "the group 3 .*is not kept"),
])  # fmt: skip
def test_a_damaged_index_is_told_and_made_anew(
    kept: Any, tmp_path: Path, change: str, text: str | None, message: str
) -> None:
    """What is there and not as it was written ends a question; what is gone from the index the doctor sees alone."""
    run, gone = tmp_path / "r", "delete" in change
    shutil.copytree(kept[0], run)
    with sqlite3.connect(run / "run.sqlite") as db:
        assert db.execute(change).rowcount == 1
    db.close()
    if not gone or "rollouts" in change:
        with pytest.raises(StoreError, match=f"run.sqlite: {message}"):
            Run(run).find_groups("step", limit=60, text=text)
    faults = [fault for fault in inspect_run(run).faults if "recipe" not in fault]
    assert len([f for f in faults if re.search(f"run.sqlite: {message}", f)]) == 1
    assert len(faults) == 1 or "rollouts where" in change or not gone
    with pytest.raises(StoreError, match=message):
        Store.open(run)
    repair_run(run)
    again, whole = Run(run), Run(kept[0])
    for asked in (None, "carry"):
        expected, found = (r.find_groups("step", limit=60, text=asked) for r in (whole, again))
        left = [g for g in expected if "rollouts" not in change or g["id"] != 3]
        assert [{**g, "id": 0} for g in found] == [{**g, "id": 0} for g in left]
    assert [fault for fault in inspect_run(run).faults if "recipe" not in fault] == []


def test_a_question_sees_one_state_of_a_run_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is committed anew, with other groups, between what chooses groups and what reads them."""
    with Store.open(tmp_path / "r") as store:
        store.commit(0, metrics={}, rollouts=[{"group": "a", "score": 1.0}, {"group": "b", "score": 0.0}], tree={})
        read, run = finding.read_rows, Run(tmp_path / "r")

        def write_between(*args: Any) -> Any:
            monkeypatch.setattr(finding, "read_rows", read)
            store.commit(0, metrics={}, rollouts=[{"group": "c", "score": 5.0}], tree={})
            return read(*args)

        monkeypatch.setattr(finding, "read_rows", write_between)
        assert [g["group"] for g in run.find_groups()] == ["b", "a"]
        assert [g["group"] for g in run.find_groups()] == ["c"]
