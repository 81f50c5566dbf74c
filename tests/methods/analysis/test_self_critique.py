"""Likeness of entropies and areas under ROC curves by hand, and on a run that was made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shuhari.desk.analyzing.given import Names
from shuhari.desk.api import train
from shuhari.kernel.findings import AnalysisError
from shuhari.methods.analysis.self_critique.contamination import Contamination, compare_profiles, find_auc


def test_likeness_by_hand() -> None:
    assert compare_profiles(np.array([0.3, 0.7]), np.array([0.3, 0.7])) == pytest.approx(1)
    assert compare_profiles(np.ones(2), np.ones(4)) == pytest.approx(2 / np.sqrt(8) * 2 / 4)  # .3536
    assert compare_profiles(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0
    assert compare_profiles(np.zeros(3), np.ones(3)) == 0
    assert compare_profiles(np.ones(0), np.ones(3)) == 0


def test_areas_by_hand() -> None:
    assert find_auc([3, 4], [1, 2]) == 1
    assert find_auc([1, 2], [3, 4]) == 0
    assert find_auc([1, 1], [1, 1]) == 0.5
    assert find_auc([1, 3], [2]) == 0.5


def test_the_same_policy_twice_is_its_own_null(tmp_path: Path) -> None:
    small = {"models.policy.hidden": 16, "models.policy.layers": 1, "models.policy.heads": 2, "evaluate.n": 4}
    train("beds/work/errors", tmp_path / "run", progress=False, **{
        "stage.warm-up.steps": 3, "stage.rl.steps": 2, **small})  # fmt: skip
    found = Contamination(n=8)(Names((f"{tmp_path / 'run'}@start", f"{tmp_path / 'run'}@start"))).numbers
    assert set(found) == {"self critique", "likelihood", "min k"}
    for number in found.values():
        assert number.value == number.null and 0 <= number.low <= number.value <= number.high <= 1


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="members and others are both 'test': expected two splits"):
        Contamination(members="test")
    with pytest.raises(AnalysisError, match="3 policies: expected a run, or its start and the run"):
        Contamination()(Names(("a", "b", "c")))
