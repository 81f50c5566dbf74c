"""Alarms about answers that are never paid try their causes on the answers that a run has kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Sampling, Status, Step, Trajectory
from shuhari.desk import causes
from shuhari.desk.cli.diagnosing import describe_finding
from shuhari.lab.diagnosis import RULES, Finding
from shuhari.store import Store

RECIPE = 'name = "a"\nsteps = 3\n[task]\nname = "file/x.jsonl"\n'


def make(path: Path, answers: list[str], truth: Any, *, recipe: str = RECIPE, cut: bool = False, **paid: float) -> Path:
    """A run of one step that has kept these answers to one problem, each with the rewards `paid` (else score 0)."""
    problem = Problem(task="file/x.jsonl", id="1", prompt="?", answer=truth)
    group = []
    for text in answers:
        info, status = {"text": text}, Status.TRUNCATED if cut else Status.FINISHED
        step = Step.of(np.ones(1, np.int32), np.ones(2, np.int32), info=info, reward=paid or {"score": 0.0})
        group.append(Trajectory(Request(problem, len(answers), Sampling(max_new=16)), (step,), status))
    kept = {"group": "1#0", "task": "file/x.jsonl", "problem": "1", "why": "best", "trajectories": group}
    with Store.open(path) as store:
        store.write_text("recipe.toml", recipe)
        store.commit(1, stage="main", metrics={"reward/score": 0.0}, rollouts=[kept], tree={})
    return path


def found(name: str = "starts-at-zero", begin: int = 1, end: int = 1) -> Finding:
    rule = next(r for r in RULES if r.name == name)
    return Finding(rule, "main", "reward/score", 0.0, begin, end)


def test_answers_that_maths_takes_name_its_setting(tmp_path: Path) -> None:
    path = make(tmp_path / "r", ["The answer is 14.", "6 + 8 = 14", "I do not know"], "14")
    told = causes.try_causes(found(), path)
    assert told.startswith("Of 3 kept answers 2 are right by `maths`") and "reward.maths={}" in told
    assert "cut" not in told
    assert "Tried: Of 3 kept answers" in describe_finding("alarm", found(), path)


def test_words_are_looked_for_as_words(tmp_path: Path) -> None:
    path = make(tmp_path / "r", ["It is Paris, of course", "Parisian", "lyon"], "paris")
    assert "1 contains the reference answer" in causes.try_causes(found(), path)


def test_cut_answers_name_a_larger_limit(tmp_path: Path) -> None:
    recipe = RECIPE + "[rollout]\nsampling.max_new = 16\n"
    path = make(tmp_path / "r", ["Let us think"] * 4, "paris", recipe=recipe, cut=True)
    assert "4 are cut at the limit of tokens: --set rollout.sampling.max_new=64" in causes.try_causes(found(), path)


def test_a_template_that_is_turned_off_is_named(tmp_path: Path) -> None:
    recipe = RECIPE + 'chat = false\n[models.policy]\nuse = "causal"\npath = "m"\n'
    assert "--set task.chat=true" in causes.try_causes(found(), make(tmp_path / "r", ["x"], "paris", recipe=recipe))


def test_nothing_is_told_of_what_is_paid_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = make(tmp_path / "right", ["14"], "14", score=1.0)
    assert causes.try_causes(found("groups-alike"), right) == ""
    assert causes.try_causes(found("kl-large") if any(r.name == "kl-large" for r in RULES) else found(), right) == ""
    assert causes.try_causes(found(begin=5, end=9), right) == ""  # none kept of these steps
    by_maths = RECIPE + "[reward]\nmaths = {}\nweights = {maths = 1}\n"
    monkeypatch.setattr(causes, "_count_right", lambda answers: pytest.fail("it is trained: nothing to try"))
    assert causes.try_causes(found(), make(tmp_path / "m", ["no"], "14", recipe=by_maths, maths=0.0)) == ""
