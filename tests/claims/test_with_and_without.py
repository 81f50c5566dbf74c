"""Demonstrations: both sides on the same seeds, the quantity and the dose as by hand, and mistakes named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from in_process import stay_in_process
from shuhari.config import library
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.cli import main
from shuhari.lab import demonstrations
from shuhari.lab.claims import runs

SHOWN = """says = "a larger step learns sooner"
budget = {steps = 6}
settings = {evaluate = {every = 0, n = 0}}
without = {part.policy.optimiser.lr = 0.02}
quantity = "reward/mean:mean"
dose = "1 - policy/grad_norm:mean"
"""
METHODS = Path(library.__file__).parents[1] / "methods"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_in_process(monkeypatch, runs)


def state(tmp_path: Path, text: str = SHOWN) -> str:
    folder = tmp_path / "own"
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text('extends = "baselines/bandit"\n')
    (folder / "demonstration.toml").write_text(text)
    return str(folder / "recipe.toml")


def test_both_sides_have_the_quantity_and_the_dose_of_their_curves(tmp_path: Path) -> None:
    shown = demonstrations.read(state(tmp_path))
    found = demonstrations.demonstrate(shown, tmp_path / "runs")
    assert found["seeds"] == [1000, 1001, 1002] and found["changes"] == {"part.policy.optimiser.lr": 0.02}
    for side in ("with", "without"):
        means = [sum(c["y"]) / len(c["y"]) for c in found[side]["curves"]["reward/mean"]]
        assert found[side]["values"] == pytest.approx(means, rel=1e-3)
    doses = [1 - sum(c["y"]) / len(c["y"]) for c in found["with"]["curves"]["policy/grad_norm"]]
    assert found["dose"]["values"] == pytest.approx(doses, rel=1e-3)
    path = demonstrations.write(found, tmp_path / "out")
    assert path.is_file() and (tmp_path / "out/plots" / f"{shown.name}.png").stat().st_size > 1000
    again = demonstrations.read_result(shown.name, tmp_path / "out" / demonstrations.FOLDER)
    assert again is not None and again["with"] == found["with"]
    assert demonstrations.find_stale(shown, found) == ""
    changed = demonstrations.read(state(tmp_path, SHOWN.replace("0.02", "0.03")))
    assert demonstrations.find_stale(changed, found) == "recipe 'baseline' has changed"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("reward/mean:mean", "reward/mean:maen", "did you mean 'mean'"),
        ("steps = 6", "seconds = 6", "seconds"),
        ("says", "sais", "did you mean 'says'"),
        ("budget = {steps = 6}", "budget = {steps = 6}\nseeds = 2", "seeds"),
        ("without = {part.policy.optimiser.lr = 0.02}", "", "does the same|missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        demonstrations.read(state(tmp_path, SHOWN.replace(old, new, 1)))


def test_a_recipe_without_one_or_with_both_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="it has a claim"):
        demonstrations.read("rlvr/pacs")
    here = state(tmp_path)
    (tmp_path / "own/claim.toml").write_text('says = "x"\n')
    with pytest.raises(RecipeError, match="expected one of them"):
        demonstrations.read(here)


@pytest.mark.parametrize("name", demonstrations.list_names())
def test_what_is_kept_is_of_the_demonstration_as_it_stands(name: str) -> None:
    shown, found = demonstrations.read(name), demonstrations.read_result(name)
    if found is None:
        pytest.skip(f"not measured: shuhari demonstrate {name}")
    assert demonstrations.find_stale(shown, found) == "", f"shuhari demonstrate {name}"
    assert len(found["seeds"]) >= 3 and shown.stated.says and shown.stated.why
    assert all(v is not None for side in ("with", "without") for v in found[side]["values"])


def test_a_method_has_a_claim_or_a_demonstration() -> None:
    for file in METHODS.glob("*/*/recipe.toml"):
        both = [file.with_name(name).is_file() for name in ("claim.toml", "demonstration.toml")]
        inside = "claim" in load(f"{file.parent.parent.name}/{file.parent.name}").tree
        assert sum(both) == 1 or (inside and not any(both)), f"{file}: expected a claim or a demonstration beside it"


def test_a_setting_that_json_does_not_have_is_stored_as_text(tmp_path: Path) -> None:
    """As in results of claims: a clip without a bound is `inf` in a recipe."""
    side = {"curves": {"score": [{"x": [0.0, 1.0], "y": [0.0, 1.0]}]}}
    found = {"method": "own/made", "budget": {"steps": 1}, "with": side, "without": side, "changes": {"low": math.inf}}
    path = demonstrations.write(found, tmp_path)
    assert json.loads(path.read_text())["changes"] == {"low": "inf"}


def test_the_demonstration_that_is_brought_along_is_shown_where_none_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demonstrate", "rlvr/cispo", "--show", "--out", str(tmp_path)])
    told = capsys.readouterr()
    assert not end.value.code and "rlvr/cispo" in told.out and "that shuhari brings" in told.err
