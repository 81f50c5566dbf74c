"""A run's page: its facts, what differs from its parents, its curves as they are thinned and as they grow, what the
diagnosis says, in the words of the terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_runs import MARKUP, TOKEN
from starlette.testclient import TestClient

from shuhari.desk.board import numbers
from shuhari.desk.board.app import make_app
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.numbers import Known
from shuhari.desk.board.views import curves
from shuhari.desk.board.views.curves import describe_curves, thin
from shuhari.desk.board.views.run import list_events, show_findings, show_recipe, show_run
from shuhari.desk.ends import tabulate_ends
from shuhari.desk.serving.refusals import Refused
from shuhari.lab.diagnosis import diagnose
from shuhari.store import Run, Store, StoreError


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy makes no difference."""
    monkeypatch.setattr(numbers, "AT_ONCE", 60.0)


def write(path: Path, rows: list[dict[str, float]], first: int = 1, stage: str = "main", **facts: Any) -> Path:
    with Store.open(path) as store:
        for i, row in enumerate(rows):
            store.commit(first + i, stage=stage, metrics=row, tree={"n": i} if i == len(rows) - 1 else None)
        store.set(**facts)
    return path


def test_the_facts_are_those_of_the_terminal(ask: Callable[..., Any], board_root: Path) -> None:
    run = Run(board_root / "sums" / "0")
    found = ask("run?run=sums/0")
    heads, rows = tabulate_ends(run.summary or {})
    assert found["ends"] == {"heads": list(heads), "rows": [list(r) for r in rows]} and rows
    assert (found["status"], found["step"], found["total"], found["task"]) == ("complete", 4, 4, "arithmetic")
    assert found["has"] == {"rollouts": True, "curriculum": True, "profile": False}
    assert ask("profile?run=sums/0") is None
    assert "no run 'nosuch'" in ask("run?run=nosuch", 404)["error"]["message"]
    for view in ("run", "curves", "findings", "events", "recipe"):
        assert "error" in ask(f"{view}?run=damaged", 422), view
        ask(f"{view}?run=outside", 404)
    assert ask("run?run=sums/1")["seed"] == 1  # the damaged one harms no other


def test_curves_are_those_of_the_run(ask: Callable[..., Any], board_root: Path) -> None:
    columns = Run(board_root / "sums" / "0").metrics()
    found = ask("curves?run=sums/0&names=reward/mean&names=evaluate/greedy&names=nosuch&x=wall")
    assert set(found["curves"]) == {"reward/mean", "evaluate/greedy"}
    np.testing.assert_allclose(found["curves"]["reward/mean"]["y"], columns["reward/mean"], rtol=1e-5)
    np.testing.assert_allclose(found["curves"]["reward/mean"]["x"], columns["wall"], rtol=1e-5)
    assert found["curves"]["evaluate/greedy"]["n"] == 2 and found["whole"] and found["last"] == 4
    titles = {c["title"]: c["names"] for c in ask("curves?run=sums/0")["charts"]}
    assert titles["Reward"][0] == "reward/mean" and "Losses" in titles and "Time of a step" in titles
    assert "expected one of step" in ask("curves?run=sums/0&x=nosuch", 400)["error"]["message"]


def test_a_curve_over_what_was_spent_begins_where_nothing_was(tmp_path: Path) -> None:
    """As after imitation: the held-out score before RL stands at 0 tokens, and no step of imitation does."""
    write(tmp_path / "a", [{"x/loss/nll": 3.0}, {"x/loss/nll": 2.0, "evaluate/greedy": 0.3}])
    write(tmp_path / "a", [{"spent/tokens": 10.0}, {"spent/tokens": 20.0, "evaluate/greedy": 0.9}], 3, "rl")
    found = describe_curves(Catalogue(tmp_path), "a", x="spent/tokens")["curves"]
    assert found["evaluate/greedy"] | {"n": 0} == {"x": [0, 20], "y": [0.3, 0.9], "n": 0, "odd": 0}
    assert found["x/loss/nll"]["y"] == [], "of another stage"
    write(tmp_path / "b", [{"x/loss/nll": 3.0}, {"x/loss/nll": 2.0, "spent/tokens": 9.0}])
    found = describe_curves(Catalogue(tmp_path), "b", x="spent/tokens")["curves"]
    assert found["x/loss/nll"]["x"] == [0, 9]


def test_thinning_keeps_what_sticks_out() -> None:
    y = np.sin(np.arange(100_000) / 500)
    y[77_777], y[33_333] = 9.0, -9.0
    kept = thin(y, 2000)
    assert len(kept) <= 2000 and {0, 77_777, 33_333, 99_999} <= {*kept.tolist()} and (np.diff(kept) > 0).all()
    for n in (1, 19, 20, 21, 45, 1999):
        assert len(thin(np.zeros(n), 20)) <= 20


def test_a_run_that_goes_on_is_asked_for_its_new_steps_alone(tmp_path: Path) -> None:
    runs = Catalogue(tmp_path)
    path = write(tmp_path / "a", [{"reward/mean": float(i), "x/loss/y": math.nan if i == 2 else 1.0} for i in range(5)])
    first = describe_curves(runs, "a")
    assert first["fresh"] and first["curves"]["reward/mean"]["y"] == [0, 1, 2, 3, 4]
    assert first["curves"]["x/loss/y"] == {"x": [1, 2, 4, 5], "y": [1, 1, 1, 1], "n": 5, "odd": 1}
    write(path, [{"reward/mean": 7.0}, {"reward/mean": 8.0}], first=6, stage="next")
    more = describe_curves(runs, "a", after=first["last"], version=first["version"])
    assert not more["fresh"] and more["curves"]["reward/mean"] == {"x": [6, 7], "y": [7, 8], "n": 2, "odd": 0}
    assert more["known"] != first["known"]  # a stage has begun: the page asks for all
    assert [s["name"] for s in describe_curves(runs, "a")["stages"]] == ["main", "next"]


def test_a_run_that_is_made_again_comes_as_a_whole(tmp_path: Path) -> None:
    import shutil

    runs = Catalogue(tmp_path)
    path = write(tmp_path / "a", [{"reward/mean": 1.0}] * 3)
    first = describe_curves(runs, "a")
    shutil.rmtree(path)
    write(path, [{"reward/mean": 2.0}] * 4)
    again = describe_curves(runs, "a", after=first["last"], version=first["version"])
    assert again["fresh"] and again["curves"]["reward/mean"]["y"] == [2, 2, 2, 2]


def test_some_steps_stand_for_all_while_a_long_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", [{"reward/mean": float(i)} for i in range(60)])
    monkeypatch.setattr(numbers, "SAMPLE", 10)
    slow = Known(path)
    read = slow._read_chunk
    monkeypatch.setattr(slow, "_read_chunk", lambda: time.sleep(0.3) or read())
    some = slow.read_steps(0.01)
    assert not some.whole and len(some.step) == 10 and some.last == 60
    assert slow.make("n", lambda s: len(s.step), 0.01) is None
    assert slow.read_steps(10).whole and slow.make("n", lambda s: len(s.step)) == 60
    lists, stored = slow.read_steps().to_lists(), Run(path).metrics()
    assert {k: lists[k] for k in stored} == stored


def test_findings_are_those_of_the_terminal_with_the_rollouts_that_show_them(tmp_path: Path) -> None:
    rows = [{"rollout/length": 10.0 * (1 + i), "reward/mean": 0.1, "spent/tokens": 100.0 * i, "x/grad_norm": math.nan}
            for i in range(20)]  # fmt: skip
    path = write(tmp_path / "a", rows)
    found = show_findings(Catalogue(tmp_path), "a")
    assert found is not None
    wanted = diagnose(Run(path).metrics(), {})
    assert [f["rule"] for f in found["findings"]] == [f.rule.name for f in wanted]
    by = {f["rule"]: f for f in found["findings"]}
    assert by["length-drift"]["shown"][0]["query"] == {"run": "a", "order": "length", "down": "true"}
    assert by["gradient-not-finite"]["alarm"] and by["gradient-not-finite"]["raised"] == 1
    assert by["length-drift"]["what"] == next(f for f in wanted if f.rule.name == "length-drift").list_lines()[0]


def test_a_run_before_its_first_step_is_told_as_such(tmp_path: Path) -> None:
    write(tmp_path / "a", [])
    found = show_findings(Catalogue(tmp_path), "a")
    assert found is not None and (found["step"], found["findings"], found["healthy"]) == (-1, [], "")


def test_a_healthy_run_is_told_in_the_words_of_the_terminal(tmp_path: Path, capsys: Any) -> None:
    from shuhari.desk.cli.diagnosing import say_findings

    for name, rewards in {"well": [i / 20 for i in range(20)], "short": [1.0], "none": [0.0]}.items():
        path = write(tmp_path / name, [{"reward/mean": x} for x in rewards])
        (path / "recipe.toml").write_text('name = "x"\nsteps = 1\n')
        found = show_findings(Catalogue(tmp_path), name)
        say_findings(Run(path).metrics(), Run(path).recipe, path)
        assert found is not None and capsys.readouterr().out == f"diagnosis: {found['healthy']}\n"
        assert found["sure"] == (name == "well"), found


def test_every_rule_that_has_rollouts_to_show_is_one() -> None:
    from shuhari.desk.board.views.run import SHOWN
    from shuhari.lab.diagnosis import RULES
    from shuhari.store.finding import ORDERS

    assert {*SHOWN} <= {rule.name for rule in RULES}
    assert {query["order"] for _, query in SHOWN.values()} <= {*ORDERS}


def test_a_recipe_is_told_beside_those_that_it_is_made_of(tmp_path: Path) -> None:
    from shuhari.config.recipe import dump, load

    path = write(tmp_path / "a", [{}])
    (path / "recipe.toml").write_text(dump(load("baselines/quickstart", sets=["rollout.n=3"])))
    found = show_recipe(Catalogue(tmp_path), "a")
    named, below = found["parents"][:2]
    assert named["name"] == "baselines/quickstart"
    says = "Number of samples of each problem (the group size)."
    assert named["changes"] == [{"path": "rollout.n", "here": "3", "there": "16", "says": says}]
    assert below["name"] == "baselines/grpo" and "rollout.n" in {c["path"] for c in below["changes"]}
    for name in ("../../etc/passwd", "/etc/passwd.toml", "nosuch/nosuch", "x", ""):
        (path / "recipe.toml").write_text(f'name = "{name}"\nsteps = 1\n')
        assert show_recipe(Catalogue(tmp_path), "a")["parents"] == []
    (path / "recipe.toml").write_text("no toml")
    with pytest.raises(StoreError, match=r"recipe\.toml"):
        show_recipe(Catalogue(tmp_path), "a")
    assert "recipe.toml" in show_run(Catalogue(tmp_path), "a")["fault"]


def test_problems_are_counted_and_stay_text(ask: Callable[..., Any], tmp_path: Path) -> None:
    (told,) = ask("events?run=hostile")["problems"]
    assert told == {"text": MARKUP, "count": 1, "first": 3, "last": 3}
    with Store.open(tmp_path / "a") as store:
        for step in (1, 2, 3):
            events = [("problem", "x" * 10_000_000), ("problem", "\ud800 odd"), ("mark", {"at": step})]
            store.commit(step, metrics={"\ud800<b>": 1.0}, tree={}, events=events)
    found = list_events(Catalogue(tmp_path), "a")
    assert found["kinds"] == {"mark": 3, "problem": 6} and len(found["problems"]) == 2
    assert all(p["count"] == 3 and p["first"] == 1 and p["last"] == 3 and len(p["text"]) <= 2000
               for p in found["problems"])  # fmt: skip
    with TestClient(make_app(tmp_path, TOKEN), base_url="http://127.0.0.1:1") as client:
        assert client.get("/api/events?run=a").status_code == 200
        assert "\ud800<b>" in json.loads(client.get("/api/curves?run=a").content)["names"]


def test_the_last_events_are_told_whatever_their_kinds(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as store:
        store.commit(1, metrics={}, tree={}, events=[("a new kind", i) for i in range(5)])
        store.commit(2, metrics={}, tree={}, events=[("z", i) for i in range(600)])
        store.commit(3, metrics={}, tree={}, events=[("a new kind", i) for i in range(5)])
        store.commit(4, metrics={}, tree={}, events=[("problem", f"p{i}") for i in range(600)])
    found = list_events(Catalogue(tmp_path), "a")
    assert [(e["kind"], e["step"]) for e in found["events"][-6:]] == [("z", 2), *[("a new kind", 3)] * 5]
    assert len(found["events"]) == len(found["problems"]) == 500 and found["total"] == 600
    assert found["kinds"] == {"a new kind": 10, "problem": 600, "z": 600}


def test_a_table_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "ROWS", 2)
    with Store.open(tmp_path / "a") as store:
        for step in range(5):
            store.commit(step, metrics={"m": 1.0, **({"late": 2.0} if step > 2 else {})}, tree={})
    flow = curves.write_table(Catalogue(tmp_path), "a")
    with Store.open(tmp_path / "a") as store:
        store.commit(5, metrics={"other": 1.0})  # while it is sent
    rows = list(csv.DictReader(io.StringIO(b"".join(flow.chunks).decode())))
    assert [(r["step"], r["m"], r["late"]) for r in rows] == [
        (str(i), "1.0", "2.0" if i > 2 else "") for i in range(5)
    ]  # fmt: skip


def test_a_run_is_saved_as_csv_and_as_a_picture(board_root: Path) -> None:
    with TestClient(make_app(board_root, TOKEN), base_url="http://127.0.0.1:1") as client:
        table = client.get("/api/csv?run=sums/0")
        rows = list(csv.DictReader(io.StringIO(table.text)))
        assert table.headers["content-type"].startswith("text/csv") and [r["step"] for r in rows] == list("1234")
        assert float(rows[-1]["reward/mean"]) == Run(board_root / "sums" / "0").metrics()["reward/mean"][-1]
        for kind, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            assert client.get(f"/api/picture?run=sums/0&kind={kind}").content.startswith(begin)
        assert client.get("/api/picture?run=sums/0&kind=exe").status_code == 400


def test_a_long_list_of_names_is_refused(board_root: Path) -> None:
    with pytest.raises(Refused, match="at most"):
        describe_curves(Catalogue(board_root), "sums/0", names=["x"] * 61)
