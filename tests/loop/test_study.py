"""A study is a run of runs: what it stores, what it has spent, and that it goes on as if it had never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import shuhari
from shuhari.config.build import make_component
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, load
from shuhari.loop.study import train
from shuhari.store import Run, list_runs
from shuhari.testing.compare import contents, differences
from small_runs import BANDIT

STUDY = """
[study]
use = "mbtl"
contexts = {"task.seed" = [0, 1, 2, 3]}
trainings = 3
restarts = 1
"""


def made(folder: Path, text: str = STUDY, **settings: Any) -> Recipe:
    file = folder / "study.toml"
    file.write_text(BANDIT.replace("steps = 12", "steps = 6") + "[store]\nevery = 1\n" + text)
    return load(file, settings={k.replace("__", "."): v for k, v in settings.items()})


def left(path: Path) -> dict[str, Any]:
    """All that a study leaves behind, and its runs, but for times."""
    run = Run(path)
    tree = run.load()
    summary = {k: v for k, v in (run.summary or {}).items() if k != "wall_s"}
    metrics = {k: v for k, v in run.metrics().items() if k != "wall"}
    children = {p.name: contents(p) for p in sorted((path / "children").iterdir())}
    return {"rows": tree["rows"], "measured": tree["measured"], "summary": summary, "metrics": metrics, **children}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A study in one sitting, and what it reported."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    return folder / "run", list(train(made(folder), folder / "run"))


def test_a_study_is_a_run_with_a_step_a_row(whole: tuple[Path, list[Any]]) -> None:
    path, reports = whole
    run = Run(path)
    metrics = run.metrics()
    assert run.status == "complete" and metrics["step"] == [1, 2, 3] and metrics["stage"] == ["study"] * 3
    assert metrics["study/trained"] == [1, 2, 3]
    assert run.summary is not None and run.summary["after"]["study/coverage"] == metrics["study/coverage"][-1]
    rows = [r for r in reports if "child" not in r]
    assert [r["study/coverage"] for r in rows] == metrics["study/coverage"]
    assert len(reports) == 3 + 3 * 6  # and every step of the runs, as progress
    assert [r["step"] for r in reports] == [i + (j == 6) for i in range(3) for j in range(7)]
    assert {s.status for s in list_runs(path.parent)} == {"complete"}


def test_a_study_that_a_callback_stops_goes_on_by_the_same_call(
    whole: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    seen: list[Any] = []

    def look(report: Any) -> bool:
        seen.append(report)
        return len(seen) < 9  # within the second run

    more: dict[str, Any] = {"progress": False, "rehearsal": False}
    shuhari.train(made(tmp_path), tmp_path / "run", observe=look, **more)
    assert len(seen) == 9 and Run(tmp_path / "run").status == "stopped"
    shuhari.train(made(tmp_path), tmp_path / "run", **more)
    assert not differences(left(whole[0]), left(tmp_path / "run"))


def test_what_is_spent_is_what_its_runs_have_spent(whole: tuple[Path, list[Any]]) -> None:
    path, reports = whole
    children = [Run(p) for p in sorted((path / "children").iterdir())]
    spent = Run(path).summary["spent"]  # type: ignore[index]
    for unit in ("steps", "decisions", "updates"):
        assert spent[unit] == sum(c.summary["spent"][unit] for c in children)  # type: ignore[index]
    assert spent["steps"] == 18 and Run(path).metrics()["spent/steps"] == [6, 12, 18]
    own = sum(c.summary["spent"]["evaluate/decisions"] for c in children)  # type: ignore[index]
    assert spent["evaluate/decisions"] == own + 3 * 4 * 2 * 8  # each run in four contexts, twice eight problems
    steps = [r["spent/steps"] for r in reports]
    assert steps == sorted(steps)


def test_a_run_of_a_study_is_an_ordinary_run(whole: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """Trained alone it is the same bits; measured where it was trained, the study finds what the run says of itself."""
    path, _ = whole
    folder = next((path / "children").iterdir())
    context = int(folder.name.removeprefix("context-"))
    recipe = Recipe("study", {k: v for k, v in made(tmp_path).tree.items() if k != "study"})
    list(shuhari.loop.run.train(recipe.with_settings({"task.seed": context}), tmp_path / "alone"))
    assert not differences(contents(folder), contents(tmp_path / "alone"))
    measured = Run(path).load()["measured"][f'{folder.name} {{"task.seed": {float(context)}}}']
    assert measured["scores"] == Run(folder).summary["after"]  # type: ignore[index]
    assert shuhari.load(folder).act(0) in range(10)


@pytest.mark.parametrize("stops", [(3, 7, 10), (6, 1), (20,)])
def test_a_study_in_sittings_is_the_study_in_one(
    stops: tuple[int, ...], whole: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    path, recipe = tmp_path / "run", made(tmp_path)
    for stop in stops:
        reports = train(recipe, path)
        for _ in zip(range(stop), reports, strict=False):
            pass
        reports.close()  # type: ignore[attr-defined]
    list(train(recipe, path))
    assert not differences(left(whole[0]), left(path))
    assert list(train(recipe, path)) == []  # complete


def test_a_killed_study_goes_on(whole: tuple[Path, list[Any]], tmp_path: Path) -> None:
    recipe, path = made(tmp_path), tmp_path / "run"
    script = f"""
import os, signal, torch
from pathlib import Path
from shuhari.config.recipe import load
from shuhari.loop.study import train
torch.set_num_threads(1)
for i, report in enumerate(train(load({str(tmp_path / "study.toml")!r}), Path({str(path)!r}))):
    if i == 9:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert Run(path).step == 1 and Run(path).status == "stopped"
    list(train(recipe, path))
    assert not differences(left(whole[0]), left(path))


def test_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shuhari.loop import study as studying

    asked = []
    opened = studying.open_run
    monkeypatch.setattr(studying, "open_run", lambda *a, **k: asked.append(k) or opened(*a, **k))
    reports = train(made(tmp_path), tmp_path / "run")
    for _ in zip(range(10), reports, strict=False):  # into the second run
        pass
    reports.close()  # type: ignore[attr-defined]
    asked.clear()
    list(train(made(tmp_path), tmp_path / "run"))
    assert len([k for k in asked if "origin" not in k]) == 2 * 4 * 2  # of the second and the third run


def test_kept_nowhere_it_is_the_same_study(whole: tuple[Path, list[Any]], tmp_path: Path) -> None:
    rows = [r for r in train(made(tmp_path)) if "child" not in r]
    assert [r["study/coverage"] for r in rows] == Run(whole[0]).metrics()["study/coverage"]


def test_from_python(tmp_path: Path) -> None:
    made(tmp_path)
    seen: list[Any] = []
    settings = {"study.pick": "equidistant", "study.trainings": 2, "steps": 2}
    found = shuhari.train(tmp_path / "study.toml", tmp_path / "run", progress=seen.append, **settings)
    assert found.metrics["study/context"] == [1, 2]  # 0.75 and 2.25 of 0..3
    assert [r.get("child") for r in seen] == ["context-1"] * 2 + [None] + ["context-2"] * 2 + [None]
    with pytest.raises(RecipeError, match="children/"):
        shuhari.load(found.path)


def test_another_study_at_the_same_place_is_refused(tmp_path: Path) -> None:
    recipe = made(tmp_path, steps=1)
    list(train(recipe, tmp_path / "run"))
    with pytest.raises(RecipeError, match=r"study\.pick"):
        next(iter(train(recipe.with_settings({"study.pick": "random"}), tmp_path / "run")))


def test_a_study_belongs_to_the_whole_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such key"):
        made(tmp_path, STUDY + '[stage.late]\nsteps = 1\nstudy.use = "mbtl"\n')
    assert "study" not in made(tmp_path, remove=["study"]).tree
    assert made(tmp_path).total is None and made(tmp_path, remove=["study"]).total == 6


@dataclass
class Wayward:
    """Reports a number from outside: a study that does not repeat itself."""

    file: str

    def __call__(self, runs: Any) -> Any:
        yield {"study/number": float(Path(self.file).read_text())}
        yield from runs.train("only")
        yield {"study/seed": runs.seed, "study/after": runs.evaluate("only")["greedy"]}


def test_a_study_of_ones_own_and_one_that_does_not_repeat_itself(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("1")
    text = f'[study]\nuse = "{__file__}:Wayward"\nfile = {json.dumps(str(number))}\n'
    recipe = made(tmp_path, text, steps=2, seed=3)
    assert type(make_component("study", recipe.tree["study"])).__name__ == "Wayward"
    reports = train(recipe, tmp_path / "run")
    next(iter(reports))
    reports.close()  # type: ignore[attr-defined]
    number.write_text("2")
    with pytest.raises(RecipeError, match=r"made with another '.*number'"):
        list(train(recipe, tmp_path / "run"))
    with pytest.raises(RuntimeError, match="does not repeat itself"):
        list(train(recipe, tmp_path / "run", accept=True))
    number.write_text("1")
    assert list(train(recipe, tmp_path / "run"))[-1]["study/seed"] == 3


def test_a_study_that_measures_needs_an_evaluation(tmp_path: Path) -> None:
    recipe = made(tmp_path, remove=["evaluate"], steps=1)
    with pytest.raises(RecipeError, match="evaluate"):
        list(train(recipe, tmp_path / "run"))
