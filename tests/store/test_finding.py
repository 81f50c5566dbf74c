"""Groups found by their numbers and words: as a search through all of them would, and through an index."""

from __future__ import annotations

import random
import sqlite3
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.store import Run, Store, StoreError, finding, repair_run

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
        where, args, few = finding._make_condition(db, order, **by)
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
    with pytest.raises(ValueError, match="limit -1"):
        run.find_groups(limit=-1)


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


WITHIN = f"""
{"".join(f"drop index groups_{order};" for order in finding.ORDERS)}
alter table groups drop column samples; alter table groups drop column replies; update groups set checksum = 1;
update meta set value = '5', checksum = {{crc}} where key = 'format';
"""
OLD = """
drop table groups; drop table words;
update meta set value = '4', checksum = {crc} where key = 'format';
"""


@pytest.mark.parametrize(("version", "change"), [("4", OLD), ("5", WITHIN)])
def test_a_run_of_an_older_format_is_read_and_gone_on_with(
    kept: Any, tmp_path: Path, version: str, change: str
) -> None:
    import shutil

    from shuhari.store.rows import compute_checksum

    shutil.copytree(kept[0], tmp_path / "old")
    with sqlite3.connect(tmp_path / "old" / "run.sqlite") as db:
        db.executescript(change.format(crc=compute_checksum(("format", version))))
    db.close()
    old, new = Run(tmp_path / "old"), Run(kept[0])
    asked: list[dict[str, Any]] = [{}, {"text": "add*", "low": 0.2}, {"order": "length", "descending": True}]
    assert [old.find_groups(**by) for by in asked] == [new.find_groups(**by) for by in asked]
    assert old.get("format") == int(version)  # read as it is
    with Store.open(tmp_path / "old") as store:
        store.set(total=9)
        assert store.get("format") == 6
        (plan,) = store._db.execute("explain query plan select rollout from groups order by score limit 1")
        assert "groups_score" in plan[-1]
    assert [old.find_groups(**by) for by in asked] == [new.find_groups(**by) for by in asked]


@pytest.mark.parametrize("change", [
    "update groups set score = 1.0 where rollout = 3", "update words set step = 77 where word = 'carry' and step = 1",
])  # fmt: skip
def test_a_damaged_index_is_told_and_made_anew(kept: Any, tmp_path: Path, change: str) -> None:
    import shutil

    run = tmp_path / "r"
    shutil.copytree(kept[0], run)
    with sqlite3.connect(run / "run.sqlite") as db:
        assert db.execute(change).rowcount == 1
    db.close()
    with pytest.raises(StoreError, match=r"what finds the group 3 is damaged|a word of step 77 is damaged"):
        Run(run).find_groups("step", limit=60, text="carry" if "words" in change else "p*")
    repair_run(run)
    again, whole = Run(run), Run(kept[0])
    for text in (None, "carry"):
        assert again.find_groups("step", text=text) == whole.find_groups("step", text=text)
