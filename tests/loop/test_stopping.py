"""A run that ends before its budget: cleanly, with a reason, and going on from there changes no bit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import shuhari
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe
from shuhari.config.stopping import FORMS, read_stop
from shuhari.loop.run import train as loop_of
from shuhari.store import Run, list_runs
from shuhari.testing.compare import contents, differences
from small_runs import recipe

EVERY = {"every": 2}


def bandit(home: Path, steps: int = 6, **more: Any) -> Recipe:
    return recipe("bandit", home, steps=steps, **more)


def read(text: str, evaluate: Any = EVERY) -> Any:
    found = read_stop(text, evaluate)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("op", "below", "at", "above"),
    [(">=", False, True, True), (">", False, False, True), ("<=", True, True, False), ("<", True, False, False)],
)
def test_a_limit_by_its_definition(op: str, below: bool, at: bool, above: bool) -> None:
    stop = read(f"evaluate/greedy{op}2e2")
    asked = [bool(stop.ask({"evaluate/greedy": x}, {})) for x in (199.5, 200, 201.0)]
    assert asked == [below, at, above]
    assert not stop.ask({"evaluate/greedy": float("nan")}, {}) and not stop.ask({"other": 300.0}, {})


def test_patience_counts_readings_and_nothing_else() -> None:
    """By hand: 3 is the best; 2, 3 and 1 are no better; steps without a reading do not count."""
    stop, seen = read("reward/mean not better for 3"), dict[str, Any]()
    readings = [1.0, None, 3.0, 2.0, None, 3.0, 1.0, 5.0]
    found = [bool(stop.ask({} if x is None else {"reward/mean": x}, seen)) for x in readings]
    assert found == [False] * 6 + [True, False] and seen == {"best": 5.0, "since": 0}
    lower, seen = read("loss not lower for 1"), {}
    assert [bool(lower.ask({"loss": x}, seen)) for x in (3.0, 2.0, 2.0)] == [False, False, True]


@pytest.mark.parametrize(
    "text",
    ["evaluate/greedy = 3", "evaluate/greedy >= much", "x >= inf", "x not better for 0", "x not worse for 3",
     "__import__('os') >= 1 or 1", "", 3],
)  # fmt: skip
def test_other_forms_are_refused_with_those_that_there_are(text: Any) -> None:
    if text == "":
        assert read_stop(text) is None
        return
    with pytest.raises(RecipeError, match="stop_when") as error:
        read_stop(text, EVERY)
    assert FORMS in str(error.value) or "1 reading or more" in str(error.value)


def test_a_word_for_a_metric_is_refused_with_the_metric() -> None:
    for word, meant in (("greedy", "evaluate/greedy"), ("reward", "reward/mean")):
        with pytest.raises(RecipeError, match=f"no metric is called '{word}': did you mean '{meant}'"):
            read_stop(f"{word} > 1", EVERY)


def test_a_held_out_number_that_is_not_measured_in_time_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"measured at the ends alone: set evaluate\.every"):
        read_stop("evaluate/greedy >= 1", {"n": 4})
    made = bandit(tmp_path, stop_when="evaluate/gredy >= 1", evaluate={"every": 2, "n": 4})
    with pytest.raises(RecipeError, match=r"no metric 'evaluate/gredy'.*did you mean 'evaluate/greedy'"):
        list(loop_of(made, tmp_path / "run"))


def test_a_held_out_number_where_nothing_is_measured(tmp_path: Path) -> None:
    made = bandit(tmp_path, stop_when="evaluate/greedy >= 1", evaluate={"every": 2, "n": 0})
    with pytest.raises(RecipeError, match=r"nothing is measured in stage 'main': set evaluate\.n"):
        list(loop_of(made, tmp_path / "run"))


def test_another_metric_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    reports = list(loop_of(bandit(tmp_path, 2, stop_when="spent/stepz >= 1"), tmp_path / "run"))
    assert len(reports) == 2 and "did you mean 'spent/steps'" in reports[0]["problems"][-1]


def test_a_condition_ends_the_run_and_going_on_changes_no_bit(tmp_path: Path) -> None:
    list(loop_of(bandit(tmp_path), tmp_path / "whole"))
    reports = list(loop_of(bandit(tmp_path, stop_when="spent/steps >= 3"), tmp_path / "parts"))
    run = Run(tmp_path / "parts")
    assert [r["step"] for r in reports] == [1, 2, 3] and run.status == "complete"
    assert run.summary is not None and run.summary["stopped"] == "spent/steps is 3 (spent/steps >= 3)"
    assert run.summary["after"].keys() == (Run(tmp_path / "whole").summary or {})["after"].keys()
    assert "stopped: spent/steps is 3" in list_runs(tmp_path, ["parts"])[0].note
    assert not list(loop_of(bandit(tmp_path, stop_when="spent/steps >= 3"), tmp_path / "parts"))  # nothing to do
    rest = list(loop_of(bandit(tmp_path), tmp_path / "parts"))
    assert [r["step"] for r in rest] == [4, 5, 6] and "stopped" not in (run.summary or {})
    ours, theirs = contents(tmp_path / "whole"), contents(tmp_path / "parts")
    assert not [d for d in differences(ours, theirs) if "recipe" not in d and "event" not in d]


def test_a_kill_between_the_end_and_the_summary_does_not_undo_it(tmp_path: Path) -> None:
    made = bandit(tmp_path, stop_when="spent/steps >= 2")
    reports = loop_of(made, tmp_path / "run")
    for _ in range(2):
        next(reports)
    reports.close()  # type: ignore[attr-defined]
    assert Run(tmp_path / "run").status == "stopped"
    assert not list(loop_of(made, tmp_path / "run")) and Run(tmp_path / "run").status == "complete"


def test_a_condition_of_a_stage_ends_that_stage(tmp_path: Path) -> None:
    made = recipe("stages", tmp_path)
    first = made.stages[0]["name"]
    ended = made.with_settings({f"stage.{first}.stop_when": "spent/steps >= 1"})
    stages = [r["stage"] for r in loop_of(ended, tmp_path / "run")]
    assert stages.count(first) == 1 and len(set(stages)) == len({s["name"] for s in made.stages})


def stop_by(kind: str) -> Any:
    def call(report: Any) -> Any:
        if report["step"] < 2:
            return None
        if kind == "stop":
            raise shuhari.Stop("good enough")
        if kind == "iteration":
            raise StopIteration
        return False

    return call


@pytest.mark.parametrize("place", ["observe", "progress"])
@pytest.mark.parametrize("kind", ["stop", "iteration", "false"])
def test_a_callback_ends_the_run_after_the_step(kind: str, place: str, tmp_path: Path) -> None:
    made = bandit(tmp_path)
    quiet: dict[str, Any] = {} if place == "progress" else {"progress": False}
    run = shuhari.train(made, tmp_path / "run", rehearsal=False, **{place: stop_by(kind)}, **quiet)
    assert Run(run.path).status == "complete" and [r["step"] for r in run.reports] == [1, 2]
    why = {"stop": "good enough", "iteration": "a callback asked for it", "false": "a callback returned False"}[kind]
    assert json.loads((run.path / "summary.json").read_text())["stopped"] == why


def test_a_run_that_a_callback_has_ended_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    made = bandit(tmp_path)
    whole = shuhari.train(made, tmp_path / "whole", progress=False)
    run = shuhari.train(made, tmp_path / "parts", observe=stop_by("stop"), progress=False)
    again = shuhari.train(made, tmp_path / "parts", progress=False)
    assert len(again.reports) == 2  # a complete run is read
    longer = run.extend(progress=False)
    assert len(longer.reports) == 6 and not differences(contents(whole.path), contents(longer.path))
    with pytest.raises(RecipeError, match="has spent its budget"):
        longer.extend(progress=False)
    assert not longer.summary.get("stopped")


def test_one_that_raises_something_else_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(report: Any) -> None:
        raise OSError("x")

    def fail_later(report: Any) -> None:
        if report["step"] > 1:
            raise KeyError("x")

    with caplog.at_level(logging.WARNING, "shuhari"):
        run = shuhari.train(bandit(tmp_path, 3), tmp_path / "run", observe=[fail, fail_later], progress=False)
    assert len(run.reports) == 3
    assert all(f"{name} is called no more" in caplog.text for name in ("step 1: fail", "step 2: fail_later"))


def test_a_mistake_in_a_callback_is_raised_at_once(tmp_path: Path) -> None:
    """A misspelt name of an early stop would else train to the end of the budget; mended, the same call goes on."""

    def stop_early(report: Any) -> bool:
        return bool(report["num_timesteps"] < 100)

    with pytest.raises(KeyError) as error:
        shuhari.train(bandit(tmp_path, 3), tmp_path / "run", observe=stop_early, progress=False)
    (note,) = error.value.__notes__
    assert "the callback 'stop_early'" in note and "rollout/" in note
    assert len(shuhari.train(bandit(tmp_path, 3), tmp_path / "run", progress=False).reports) == 3


def test_a_larger_budget_goes_on_from_a_stop(tmp_path: Path) -> None:
    run = shuhari.train(bandit(tmp_path), tmp_path / "run", observe=stop_by("stop"), progress=False)
    assert len(run.extend(progress=False, steps=8).reports) == 8
