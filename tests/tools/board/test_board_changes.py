"""What the board changes: runs are removed, renamed and tagged, with the token alone; and what it tells Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_runs import MARKUP, TOKEN
from starlette.testclient import TestClient

from shuhari.desk.board.app import make_app
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.sketches import POINTS
from shuhari.desk.board.views import CHANGES
from shuhari.desk.board.views.metrics import describe_metrics, escape
from shuhari.desk.board.views.runs import list_runs as tell_runs
from shuhari.store import Store, list_runs

KEY = {"authorization": f"Bearer {TOKEN}"}
Post = Callable[..., Any]


def make(path: Path, steps: int = 3, **facts: Any) -> Path:
    with Store.open(path) as store:
        store.write_text("recipe.toml", f'name = "baselines/{path.name}"\nsteps = 3\n[task]\nname = "t"\n')
        for step in range(1, steps + 1):
            store.commit(step, metrics={"reward/mean": step / 10}, tree={"n": 1} if step == steps else None)
        store.set(**facts)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        make(tmp_path / name, complete=True)
    return tmp_path


@pytest.fixture
def post(root: Path) -> Post:
    client = TestClient(make_app(root, TOKEN), base_url="http://127.0.0.1:6060")

    def call(address: str, status: int = 200, **body: Any) -> Any:
        reply = client.post(f"/api/{address}", json=body, headers=KEY)
        assert reply.status_code == status, reply.text
        return reply.json()

    return call


def test_runs_are_removed_as_far_as_they_can(root: Path, post: Post) -> None:
    (root / "b" / "notes.txt").write_text("mine")
    with Store.open(root / "c"):
        found = post("delete", run=["a", "b", "c"])
        assert found["removed"] == ["a", "b"] and found["left"] == {"b": ["notes.txt"]}
        assert "is being written" in found["failed"]["c"]
        post("delete", 409, run=["c"])
    assert [r.name for r in list_runs(root)] == ["c"] and (root / "b" / "notes.txt").read_text() == "mine"


def test_what_is_no_name_of_a_run_changes_nothing(root: Path, post: Post, tmp_path: Path) -> None:
    for name in ("latest", "../" + root.name + "/a", str(root / "a"), ".", "", "nosuch", "a/"):
        status = 400 if name == "latest" else 404
        post("delete", status, run=[name])
        post("delete", status, run=["a", name])
        post("rename", status, run=name, to="x")
        post("tag", status, run=[name], add=["x"])
    post("delete", 400, run=[])
    assert len(list_runs(root)) == 3 and not any(r.tags for r in list_runs(root))


def test_runs_are_renamed_and_tagged(root: Path, post: Post) -> None:
    assert post("rename", run="a", to="sums/long") == {"name": "sums/long"}
    assert "is there already" in post("rename", 400, run="b", to="sums/long")["error"]["message"]
    assert post("rename", 400, run="b", to="../x")["error"]["param"] == "to"
    assert post("tag", run=["b", "sums/long"], add=["good", "first"])["tags"]["b"] == ["first", "good"]
    assert post("tag", run=["b"], remove=["first"])["tags"] == {"b": ["good"]}
    post("tag", 400, run=["b"], add=["two words"])
    with Store.open(root / "c"):
        post("rename", 409, run="c", to="d")
    runs = Catalogue(root)
    assert {r["name"]: r["tags"] for r in tell_runs(runs, words="tag:good", wait=True)["runs"]} == {
        "b": ("good",), "sums/long": ("first", "good")}  # fmt: skip
    assert post("tag", run=["b"], remove=["good"]) and tell_runs(runs, words="tag:good", wait=True)["total"] == 1


def test_no_change_without_the_token(root: Path) -> None:
    client = TestClient(make_app(root, TOKEN), base_url="http://127.0.0.1:6060")
    for name in CHANGES:
        for headers in ({}, {"authorization": "Bearer x"}, {**KEY, "origin": "http://evil.example"}):
            reply = client.post(f"/api/{name}", json={"run": ["a"], "to": "x", "add": ["x"]}, headers=headers)
            assert reply.status_code in (401, 403), name
        assert client.get(f"/api/{name}?run=a&to=x").status_code == 404
        assert client.post(f"/api/{name}", content="run=a", headers=KEY).status_code == 415
    assert sorted(r.name for r in list_runs(root)) == ["a", "b", "c"]


def test_a_list_has_a_small_curve_of_each_score(tmp_path: Path) -> None:
    make(tmp_path / "short")
    with Store.open(tmp_path / "long") as store:
        for step in range(1, 601):
            rare = {"evaluate/greedy": step / 600} if step % 100 == 0 else {}
            store.commit(step, metrics={"x/loss/y": 1.0, **rare}, tree={} if step == 600 else None)
    found = {r["name"]: r for r in tell_runs(Catalogue(tmp_path), wait=True)["runs"]}
    assert found["short"]["curve"] == [0.1, 0.2, 0.3]
    np_rare = [round(i / 6, 4) for i in range(1, 7)]
    assert found["long"]["curve"] == pytest.approx(np_rare, abs=1e-4) and len(np_rare) <= POINTS


def test_a_list_says_in_what_a_run_differs_from_its_recipe(tmp_path: Path) -> None:
    from shuhari.config.recipe import dump, load

    recipes = {"as-it-is": load("baselines/grpo"), "other": load("baselines/grpo", ["steps=7", "seed=3"])}
    for name, recipe in recipes.items():
        with Store.open(tmp_path / name) as store:
            store.write_text("recipe.toml", dump(recipe))
    make(tmp_path / "own")
    found = {r["name"]: r["changes"] for r in tell_runs(Catalogue(tmp_path), wait=True)["runs"]}
    assert found["as-it-is"] == [] and {*found["other"]} == {"steps=7", "seed=3"}
    assert found["own"] == []  # of a recipe that the library has not


DEEP = f"x = {'[' * 3000}{']' * 3000}"
ODD = "[[stage]]\nsteps = 1", "[stage.a]\nsteps = 1", "[[stage]]\nname = [1]", "stage = 3", DEEP


@pytest.mark.parametrize("text", ODD)
def test_a_recipe_that_is_none_takes_no_other_run_from_the_list(tmp_path: Path, text: str) -> None:
    for name in ("bad", "good"):
        make(tmp_path / name)
    (tmp_path / "bad" / "recipe.toml").write_text(f'name = "baselines/grpo"\n{text}\n')
    found = {r["name"]: r for r in tell_runs(Catalogue(tmp_path), wait=True)["runs"]}
    assert found["good"]["changes"] == []
    assert [c[:20] for c in found["bad"]["changes"]] == ["not compared: stage:"] * (text in ODD[:3])  # else: no name


def test_what_is_found_wrong_is_told_by_rule(tmp_path: Path) -> None:
    with Store.open(tmp_path / "bad") as store:
        for step in range(1, 21):
            store.commit(step, stage="rl", metrics={"x/grad_norm": float("nan")}, tree={} if step == 20 else None)
        store.write_text("recipe.toml", 'name = "a"')
    runs = Catalogue(tmp_path)
    runs.choose(wait=True)
    text = describe_metrics(runs).data.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("shuhari_run_finding{")]
    assert 'rule="gradient-not-finite",stage="rl",alarm="true"} 1.0' in line


def test_a_number_that_no_float_holds_makes_one_run_unreadable(root: Path) -> None:
    make(root / "huge", total=10**400)
    runs = Catalogue(root)
    told = {r.name: r for r in runs.choose(wait=True)}
    assert told["huge"].status == "unreadable" and "401 digits" in told["huge"].note
    assert told["a"].status == "complete"
    lines = [line for line in describe_metrics(runs).data.decode().splitlines() if 'run="huge"' in line]
    assert not any(line.startswith("shuhari_run_steps_total{") for line in lines)


def test_prometheus_is_told_of_each_run(board_root: Path, root: Path) -> None:
    make(root / "failed", steps=1, failed="x")
    text = ""
    runs = Catalogue(root)
    for _ in range(50):  # as it is read
        text = describe_metrics(runs).data.decode()
        if text.count("shuhari_run_findings{") == 4:
            break
    samples = re.findall(r'^(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)$', text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(lines) > 0 and text.endswith("\n")
    assert 'shuhari_run_status{run="a",recipe="baselines/a",task="t",status="complete"} 1.0' in lines
    assert 'shuhari_run_step{run="a",recipe="baselines/a",task="t"} 3' in lines
    assert 'shuhari_run_score{run="a",recipe="baselines/a",task="t",score="reward/mean"} 0.3' in lines
    names = [name for name, _, _ in samples]
    assert names == sorted(names, key=names.index) and all(text.count(f"# TYPE {n} gauge") == 1 for n in {*names})
    for hostile in (MARKUP, 'a"} 1\nshuhari_run_step{run="b', "\\", "\r\x00\ud800", "x" * 10_000):
        assert re.fullmatch(r'(?:[^"\\\n\r]|\\["\\n])*', escape(hostile)) and len(escape(hostile)) <= 402
    with TestClient(make_app(board_root, TOKEN), base_url="http://127.0.0.1:1") as client:
        reply = client.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    far = TestClient(make_app(board_root, TOKEN, local=False), base_url="http://board.example:6060")
    assert far.get("/metrics").status_code == 401 and far.get("/metrics", headers=KEY).status_code == 200
