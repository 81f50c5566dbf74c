"""Tuning: equal grids, seeds of their own, the best by the reading that was named; other arms are a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from in_process import stay_in_process, write_changed
from shuhari.config.overlay import RecipeError
from shuhari.lab.claims import runs, tuning
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.gaps import find_gaps

RECIPE = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
budget = {steps = 8}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.lr = 0.02
check = [
  {role = "premise", metric = "reward/mean:last=5", against = 1.0, direction = "down"},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.05},
]
[claim.tune]
by = "reward/mean:area"
baseline = {"part.policy.optimiser.lr" = [0.001, 0.02, 0.2]}
method = {"part.policy.optimiser.lr" = [0.3, 0.001, 0.002]}
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    made: list[tuple[str, int]] = []
    stay_in_process(monkeypatch, runs, lambda job: made.append((job.arm, job.seed)))
    return made


def state(tmp_path: Path, *changes: tuple[str, str]) -> str:
    return write_changed(tmp_path, RECIPE, *changes)


def test_both_sides_are_tuned_by_halving_on_seeds_of_their_own(tmp_path: Path, plain: Any) -> None:
    claim = read(state(tmp_path))
    assert claim.tune is not None
    found = tuning.tune(claim, claim.tune, tmp_path / "runs")
    assert {seed for _, seed in plain} == {3000, 3001, 3002}
    assert sum(seed == 3000 for _, seed in plain) == 6 and len(plain) == 6 + 2 * 2  # three each, then the best of each
    assert found["sides"]["baseline"]["best"] == {"part.policy.optimiser.lr": 0.2}
    assert found["sides"]["method"]["best"] == {"part.policy.optimiser.lr": 0.3}
    assert [len(one["values"]) for one in found["sides"]["baseline"]["grid"]] == [1, 1, 3]
    tuning.write(found, tmp_path / "out")
    kept = tuning.read(claim.name, tmp_path / "out" / tuning.FOLDER)
    assert kept == found
    told = "arm 'baseline' is not the tuned one (part.policy.optimiser.lr = 0.2)"
    assert told in find_gaps(claim, kept)
    tuned = read(state(tmp_path, ("optimiser.lr = 0.02", "optimiser.lr = 0.2")))
    assert not any("knob" in gap or "tuned" in gap for gap in find_gaps(tuned, kept))
    assert any("were not tuned" in gap for gap in find_gaps(tuned))


def test_the_lowest_is_taken_if_less_is_better(tmp_path: Path) -> None:
    claim = read(state(tmp_path, ('by = "reward/mean:area"', 'by = "reward/mean:area"\ndirection = "down"')))
    assert claim.tune is not None
    found = tuning.tune(claim, claim.tune, tmp_path / "runs")
    assert found["sides"]["method"]["best"]["part.policy.optimiser.lr"] in (0.001, 0.002)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[0.3, 0.001, 0.002]", "[0.3, 0.001]", "3 settings of the baseline and 2 of the method"),
        ('by = "reward/mean:area"', 'by = "reward/mean:aera"', "did you mean 'area'"),
        ("[0.001, 0.02, 0.2]", "[0.02]", "expected equal numbers"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        read(state(tmp_path, (old, new)))


def test_a_key_that_an_arm_does_not_set_is_named(tmp_path: Path) -> None:
    claim = read(state(tmp_path, ('method = {"part.policy.optimiser.lr"', 'method = {"part.policy.optimiser.lrr"')))
    assert claim.tune is not None
    with pytest.raises(RecipeError, match="sets no such key"):
        tuning.tune(claim, claim.tune, tmp_path / "runs")
