"""Sets of runs on the board: the numbers of `shuhari compare`, and what stands beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from board_runs import MARKUP, TOKEN
from starlette.testclient import TestClient

from shuhari.desk.board.app import make_app
from shuhari.desk.board.views import compare
from shuhari.desk.contrasts import find_word
from shuhari.store import Store

X, Y = [0.1, 0.5, 0.2, 0.4, 0.3], [0.3, 0.6, 0.3, 0.7, 0.5]
A, B = (",".join(f"{name}-s{seed}" for seed in range(5)) for name in "ab")
Ask = Callable[..., Any]


def write(path: Path, seed: int, values: list[float], recipe: str = "r", more: str = "", task: str = "sums") -> None:
    with Store.open(path) as store:
        head = f"name = {json.dumps(recipe)}\nseed = {seed}\nsteps = 2\n{more}[task]\nname = '{task}'\n"
        store.write_text("recipe.toml", head)
        for step, value in enumerate(values, 1):
            metrics = {"m": value, "spent/tokens": step * 10, "spent/updates": step}
            store.commit(step, stage="main", wall=step * 2.0, metrics=metrics)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("compare")
    for seed, (x, y) in enumerate(zip(X, Y, strict=True)):
        write(home / "runs" / f"a-s{seed}", seed, [0.0, x], "grpo")
        write(home / "runs" / f"b-s{seed}", seed, [0.1, y], "dapo", "clip = 0.3\n")
    write(home / "runs" / "again", 0, [0.0, 1.0], "grpo")
    write(home / "runs" / "other", 0, [0.0, 1.0], "grpo", task="chain")
    write(home / "runs" / "hostile", 0, [0.0, 1.0], MARKUP, f"note = {json.dumps(MARKUP * 100)}\n")
    write(home / "runs" / "long", 0, [(i * 7919) % 5000 / 5000 for i in range(5000)])
    return home / "runs"


@pytest.fixture
def ask(root: Path) -> Iterator[Ask]:
    with TestClient(make_app(root, TOKEN), base_url="http://127.0.0.1:6060") as client:

        def call(name: str, status: int = 200, **query: Any) -> Any:
            reply = client.get(f"/api/{name}", params=query)
            assert reply.status_code == status, reply.text
            return reply.json() if reply.headers["content-type"] == "application/json" else reply

        yield call


def test_its_numbers_are_those_of_the_terminal(
    ask: Ask, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shuhari.desk.cli import comparing

    monkeypatch.chdir(root.parent)
    comparing.compare([A, B], metric="m", png=Path("c.png"), n=None, json=True)
    printed, found = json.loads(capsys.readouterr().out), ask("compare", arm=[A, B], metric="m")
    for arm in found["arms"]:
        numbers = printed["arms"][arm["label"]]
        assert {key: arm[key] for key in numbers} == pytest.approx(numbers)
    assert found["caveats"] == printed["caveats"] == []
    wanted = scipy.stats.ttest_rel(Y, X).confidence_interval()
    assert (found["arms"][1]["low"], found["arms"][1]["high"]) == pytest.approx((wanted.low, wanted.high))


@pytest.mark.parametrize("what", ["area", "best", "final", "last=2", "to=0.2", "at=spent/tokens>=10"])
def test_a_reading_is_that_of_the_terminal(
    ask: Ask, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """By hand, of values 0 and x at two steps: the area is x / 2, the last two have that mean too, the best is x."""
    from shuhari.desk.cli import comparing

    monkeypatch.chdir(root.parent)
    comparing.compare([A, B], metric=f"m:{what}", png=Path("c.png"), n=None, json=True)
    printed, found = json.loads(capsys.readouterr().out), ask("compare", arm=[A, B], metric=f"m:{what}")
    assert (found["metric"], found["curve"], found["reading"]) == (f"m:{what}", "m", what)
    for arm in found["arms"]:
        numbers = printed["arms"][arm["label"]]
        assert {key: arm[key] for key in numbers} == pytest.approx(numbers, nan_ok=True)
    assert found["caveats"] == printed["caveats"]
    if (part := {"area": 0.5, "last=2": 0.5, "best": 1.0, "final": 1.0}.get(what)) is not None:
        assert [r["value"] for r in found["arms"][0]["runs"]] == pytest.approx([part * x for x in X])
        assert found["arms"][1]["word"] == "higher" and found["arms"][1]["low"] > 0
        assert found["arms"][0]["word"] == ""
    assert found["arms"][0]["curve"]["mean"] == pytest.approx([0, sum(X) / 5])  # of the metric
    assert ask("plot", arm=[A, B], metric=f"m:{what}").headers["content-type"].startswith("image/svg+xml")


def test_a_word_says_what_an_interval_does() -> None:
    assert [find_word({"low": a, "high": b}) for a, b in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (0.0, 0.1))] == [
        "higher", "lower", "open", "open"
    ]  # fmt: skip
    assert find_word({}) == find_word({"low": math.nan, "high": math.nan}) == ""


def test_beside_them_stand_the_numbers_of_rliable(ask: Ask) -> None:
    found = ask("compare", arm=[A, B], metric="m")
    first, second = found["arms"]
    assert first["iqm"]["value"] == pytest.approx(scipy.stats.trim_mean(X, 0.25))
    assert first["iqm"]["low"] < first["iqm"]["value"] < first["iqm"]["high"]
    assert len(first["profile"]) == len(found["thresholds"]) == 101
    assert first["profile"][0] == 1 and first["profile"][-1] == 0
    assert all(a <= b for a, b in zip(first["profile"], second["profile"], strict=True))
    assert [r["value"] for r in first["runs"]] == X and [r["seed"] for r in first["runs"]] == [0, 1, 2, 3, 4]
    few = ask("compare", arm=["a-s0,a-s1", "b-s0,b-s1"], metric="m")
    assert few["arms"][0]["iqm"]["low"] is few["arms"][0]["profile"] is few["arms"][1]["low"] is None
    assert "no interval: 2 seeds" in few["caveats"][0]


def test_curves_are_means_with_the_range_of_their_runs(ask: Ask) -> None:
    found = ask("compare", arm=[A], metric="m", x="spent/tokens")
    curve = found["arms"][0]["curve"]
    assert curve["x"] == [10, 20] and curve["mean"] == pytest.approx([0, sum(X) / 5]) and curve["n"] == 5
    assert (curve["low"][1], curve["high"][1]) == (min(X), max(X))
    assert found["axes"] == ["step", "wall", "spent/tokens", "spent/updates"] and found["x"] == "spent/tokens"
    assert ask("compare", arm=[A], metric="m")["x"] == "step"
    assert ask("compare", arm=[A], metric="m", x="wall")["arms"][0]["curve"]["x"] == [2, 4]
    long = ask("compare", arm=["long"], metric="m")["arms"][0]["curve"]
    assert len(long["x"]) <= 2000 and long["x"] == sorted(long["x"])
    assert (min(long["mean"]), max(long["mean"])) == (0, 4999 / 5000)  # no peak is lost


def test_what_differs_in_the_recipes_is_told(ask: Ask) -> None:
    found = ask("compare", arm=[A, B], metric="m")
    assert [s["label"] for s in found["arms"]] == ["grpo", "dapo"]
    assert found["differs"] == [{"setting": "clip", "values": ["not set", "0.3"]}]


def test_runs_are_put_into_sides_by_their_recipes(ask: Ask) -> None:
    names = [*B.split(","), *A.split(","), "again"]
    assert ask("grouped", run=names) == {"arms": [B, A], "left_out": ["again"]}


def test_text_of_recipes_stays_text_and_is_cut(ask: Ask) -> None:
    found = ask("compare", arm=["a-s0", "hostile"], metric="m")
    assert found["arms"][1]["label"] == MARKUP
    (note,) = (row for row in found["differs"] if row["setting"] == "note")
    assert note["values"][1].startswith(MARKUP) and len(note["values"][1]) <= 201


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ({"arm": ["a-s0,again"], "metric": "m"}, 400, "two runs have seed 0"),
        ({"arm": ["a-s0", "other"], "metric": "m"}, 400, "expected one task"),
        ({"arm": ["a-s0"], "metric": "mm"}, 400, "no metric 'mm'"),
        ({"arm": ["a-s0"], "metric": "m:aera"}, 400, "did you mean 'area'"),
        ({"arm": ["a-s0"], "metric": "mm:area"}, 400, "no metric 'mm'"),
        ({"arm": ["a-s0"], "metric": "m:at=mm>=1"}, 400, "no metric 'mm'"),
        ({"arm": ["a-s0"], "metric": "m", "x": "spent/token"}, 400, "did you mean 'spent/tokens'"),
        ({"arm": ["a-s9"], "metric": "m"}, 404, "no run 'a-s9'"),
        ({"arm": ["../elsewhere"], "metric": "m"}, 404, "no run"),
        ({"arm": [","], "metric": "m"}, 400, "0 arms"),
        ({"arm": [f"a-s0,{i}" for i in range(13)], "metric": "m"}, 400, "13 arms"),
        ({"arm": [",".join(["a-s0"] * 201)], "metric": "m"}, 400, "201 runs"),
        ({"metric": "m"}, 400, "lacks arm"),
    ],
)
def test_what_cannot_be_compared_is_refused(ask: Ask, query: dict[str, Any], status: int, told: str) -> None:
    assert told in ask("compare", status, **query)["error"]["message"]


def test_what_is_kept_is_bounded_and_of_metrics_that_there_are(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    compare._kept.clear()
    for i in range(3):
        told = ask("compare", 400, arm=["a-s0"], metric=f"m{i}" + "x" * 10_000 * i)["error"]["message"]
        assert "no metric 'm" in told and len(told) < 1000
    assert "did you mean 'm'" in ask("compare", 400, arm=["a-s0"], metric="mm")["error"]["message"]
    assert not compare._kept
    ask("compare", arm=["a-s0,a-s1"], metric="m")
    assert len(compare._kept) == 2
    monkeypatch.setattr(compare, "NUMBERS", 100)
    ask("compare", arm=["long"], metric="m")
    assert [path.name for path, _ in compare._kept] == ["long"]


def test_the_plot_is_a_picture(ask: Ask) -> None:
    drawn = ask("plot", arm=[A, B], metric="m")
    assert drawn.headers["content-type"].startswith("image/svg+xml") and "grpo (n = 5)" in drawn.text
    assert "default-src 'none'" in drawn.headers["content-security-policy"]
    assert ask("plot", arm=[A], metric="m", kind="png").content.startswith(b"\x89PNG")


def test_what_is_compared_by_default_is_what_all_runs_have(tmp_path: Path) -> None:
    for name, metrics in {"a": {"evaluate/greedy": 1.0, "reward/mean": 0.5}, "b": {"reward/mean": 0.25}}.items():
        with Store.open(tmp_path / name) as store:
            store.write_text("recipe.toml", f"name = '{name}'\nsteps = 1\n[task]\nname = 't'\n")
            store.commit(1, stage="main", metrics=metrics)
    with TestClient(make_app(tmp_path, TOKEN), base_url="http://127.0.0.1:6060") as client:
        found = [client.get("/api/compare", params={"arm": arms}).json() for arms in (["a", "b"], ["a"])]
    assert [f["metric"] for f in found] == ["reward/mean", "evaluate/greedy"]
    assert [arm["value"] for arm in found[0]["arms"]] == [0.5, 0.25]
