"""What a run asked: how often each problem was solved, paged; and how hard each step was, by hand-made counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_runs import MARKUP

from shuhari.desk.board import numbers
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.curriculum import BINS
from shuhari.desk.board.views.curriculum import describe_difficulty as find_difficulty
from shuhari.desk.board.views.curriculum import list_problems as find_problems
from shuhari.desk.board.views.curves import describe_curves
from shuhari.store import Run, Store

STEPS = [
    [("a", "1", 4, 0), ("a", "2", 4, 4), ("b", "1", 2, 1)],
    [("a", "1", 4, 0), ("a", "3", 4, 1)],
    [("a", "1", 4, 0), ("b", "1", 2, 2)],
]


def list_problems(runs: Catalogue, run: str, **asked: Any) -> dict[str, Any]:
    found = find_problems(runs, run, **asked)
    assert found is not None
    return found


def describe_difficulty(runs: Catalogue, run: str, **asked: Any) -> dict[str, Any]:
    found = find_difficulty(runs, run, **asked)
    assert found is not None
    return found


def test_a_problem_says_whether_groups_of_it_were_kept(board_root: Path) -> None:
    run = Run(board_root / "sums/0")
    problems = list_problems(Catalogue(board_root), "sums/0", limit=500)["problems"]
    kept = {p["find"]: p["kept"] for p in problems}
    assert kept == {name: bool(run.rollouts(problem=name)) for name in kept} and set(kept.values()) == {True, False}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    monkeypatch.setattr(numbers, "AT_ONCE", 60.0)
    with Store.open(tmp_path / "r") as store:
        store.write_text("recipe.toml", 'steps = 3\n[[stage]]\nname = "rl"\n[stage.curriculum]\nuse = "levels"\n')
        for i, problems in enumerate(STEPS):
            metrics = {f"curriculum/share@{k}": 0.5 for k in range(3)}
            store.commit(i + 1, metrics=metrics, tree={} if i == 2 else None, problems=problems)
    return Catalogue(tmp_path)


def test_problems_are_summed_over_steps(runs: Catalogue) -> None:
    found = list_problems(runs, "r")
    assert [(p["find"], p["asked"], p["solved"], p["first"], p["last"]) for p in found["problems"]] == [
        ("a/1", 12, 0, 1, 3), ("a/3", 4, 1, 2, 2), ("b/1", 4, 3, 1, 3), ("a/2", 4, 4, 1, 1)]  # fmt: skip
    assert [(t["task"], t["problems"], t["asked"], t["solved"], t["never"], t["always"]) for t in found["tasks"]] == [
        ("a", 3, 20, 5, 1, 1), ("b", 1, 4, 3, 0, 0)]  # fmt: skip
    assert found["curricula"] == {"rl": "{'use': 'levels'}"} and sum(found["rates"]) == 4
    assert found["rates"][0] == 1 and found["rates"][BINS - 1] == 1
    stored = {f"{p['task']}/{p['problem']}": p for p in Run(runs.root / "r").problems()}
    assert all(stored[p["find"]]["asked"] == p["asked"] and stored[p["find"]]["solved"] == p["solved"]
               for p in found["problems"])  # fmt: skip


def test_problems_are_chosen_ordered_and_paged(runs: Catalogue) -> None:
    def find(**asked: Any) -> list[str]:
        return [p["find"] for p in list_problems(runs, "r", **asked)["problems"]]

    assert find(only="never") == ["a/1"] and find(only="always") == ["a/2"] and find(only="between") == ["a/3", "b/1"]
    assert find(task="b") == ["b/1"] and find(words="A/ 3") == ["a/3"] and find(words="nosuch") == []
    assert find(order="first", down=True)[0] == "a/3" and find(limit=1, offset=3) == ["a/2"]
    assert list_problems(runs, "r", limit=1)["total"] == 4


def test_difficulty_is_the_share_that_was_right(runs: Catalogue) -> None:
    found = describe_difficulty(runs, "r")
    assert found["solved"]["a"]["x"].tolist() == [1, 2, 3] and found["solved"]["a"]["y"].tolist() == [0.5, 0.125, 0]
    assert found["solved"]["b"]["x"].tolist() == [1, 3] and found["solved"]["b"]["y"].tolist() == [0.5, 1]
    shares = {k: v.tolist() for k, v in found["shares"].items()}
    assert shares["never"] == [0.3333, 0.5, 0.5] and shares["always"] == [0.3333, 0, 0.5]
    few = describe_difficulty(runs, "r", points=2)
    assert few["shares"]["x"].tolist() == [2, 3] and few["solved"]["a"]["y"].tolist() == [0.3125, 0]


def test_what_a_curriculum_reports_by_level_is_one_chart(runs: Catalogue) -> None:
    charts = {c["title"]: c["names"] for c in describe_curves(runs, "r")["charts"]}
    assert charts["curriculum/share"] == [f"curriculum/share@{k}" for k in range(3)]


def test_a_run_goes_on_and_names_are_text(runs: Catalogue, tmp_path: Path) -> None:
    assert list_problems(runs, "r")["total"] == 4
    runs.numbers.of(tmp_path / "r")._kept.clear()  # as when the time for which it is kept is over
    with Store.open(tmp_path / "r") as store:
        store.commit(4, metrics={}, problems=[("a", MARKUP, 1, 0), ("a", "x" * 1_000_000, 1, 0)])
    found = {p["problem"]: p for p in list_problems(runs, "r")["problems"]}
    assert found[MARKUP]["find"] == f"a/{MARKUP}" and found["x" * 200]["find"] is None and len(found) == 5


def test_a_run_without_counts_has_none(ask: Callable[..., Any], tmp_path: Path) -> None:
    with Store.open(tmp_path / "r") as store:
        store.commit(1, metrics={}, tree={})
    runs = Catalogue(tmp_path)
    assert list_problems(runs, "r")["total"] == 0 and describe_difficulty(runs, "r")["solved"] == {}
    assert ask("curriculum?run=sums/0")["total"] > 0 and ask("difficulty?run=sums/0")["solved"]["arithmetic"]["x"]
    assert "error" in ask("curriculum?run=damaged", 422)
