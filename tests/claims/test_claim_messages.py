"""What `claim` and `demonstrate` say: of a plan, of a file that is no recipe, of nothing to prove, and of a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.cli import main
from shuhari.desk.cli.claiming import describe_stop
from shuhari.lab.claims import protocol
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.pool import Progress
from shuhari.lab.claims.result import compute_hashes

RECIPE = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
bed = "beds/own/bed"
budget = {steps = 12}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.lr = 0.02
arms.half.part.policy = {optimiser.lr = 0.02, epochs = 2}
arms.method_half.part.policy.epochs = 2
check = [
  {role = "premise", metric = "reward/mean:last=5", against = 1.0, direction = "down"},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.05},
  {role = "rival", against = "half", kind = "knob", turned = "method_half"},
]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(RECIPE)
    return path


def told(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    """What a command prints, on one line."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, argv)])
    out, err = capsys.readouterr()
    assert int(end.value.code or 0) == code, err
    return " ".join(f"{out} {err}".replace("│", " ").split())


def test_a_plan_names_all_arms_of_the_method_and_what_is_not_committed(
    recipe: Path, tmp_path: Path, capsys: Any
) -> None:
    said = told(capsys, 0, "claim", recipe, "--dry-run", "--out", tmp_path)
    assert "the better of method, method_half above half" in said
    assert f"in no git repository, so the result will be exploratory: commit {recipe} first" in said
    assert 'would end "not tested"' not in said


@pytest.mark.parametrize(
    ("noise", "ends"), [(0.001, ""), (0.1, "12 seeds find 0.0867 at best, and the margin is 0.05"), (0.0, "no noise")]
)
def test_a_plan_says_that_a_claim_would_end_at_once(
    recipe: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, noise: float, ends: str
) -> None:
    def curves(shift: float) -> dict[str, Any]:
        return {"curves": {"reward/mean": [{"x": [0.0, 12.0], "y": [0.2, 0.5 + i * shift]} for i in range(6)]}}

    arms = {"baseline": curves(0.0), "redraw": curves(noise)}
    hashed, known = compute_hashes(read(str(recipe))), {"format": 1, "bed": "own/bed", "budget": {"steps": 12}}
    (tmp_path / "own").mkdir()
    card = {**known, "seeds": [*range(6)], "arms": arms, "hashes": hashed}
    (tmp_path / "own" / "bed.json").write_text(json.dumps(card))
    find = protocol.cards.find
    monkeypatch.setattr(protocol.cards, "find", lambda bed, root=None: find(bed, tmp_path))
    said = told(capsys, 0, "claim", recipe, "--dry-run", "--out", tmp_path / "out")
    assert "planned MDE" in said and ('would end "not tested": ' in said) is bool(ends) and ends in said


def test_a_claim_or_a_demonstration_is_no_recipe(tmp_path: Path, capsys: Any) -> None:
    claim, shown = tmp_path / "claim.toml", tmp_path / "shown.toml"
    claim.write_text('says = "x"\ncheck = []\n')
    shown.write_text('quantity = "reward/mean:final"\ndose = "policy/grad_norm:mean"\n')
    said = told(capsys, 2, "claim", claim, "--show")
    assert "this is a claim.toml, not a recipe: name the recipe beside it (a recipe.toml), or write these keys" in said
    (tmp_path / "recipe.toml").write_text("")
    said = told(capsys, 2, "demonstrate", shown)
    assert "a demonstration.toml, not a recipe: name the recipe beside it, " in said and said.endswith("or its folder")


def test_what_was_not_measured_shows_no_progress_of_a_proof(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    said = told(capsys, 1, "claim", recipe, "--prove", "--out", tmp_path, "--runs", tmp_path / "runs")
    assert "not measured, so there is nothing to prove" in said and "0/0" not in said
    assert not (tmp_path / "runs").exists()


def test_a_stop_says_how_much_was_made() -> None:
    at = Path("runs/claims")
    assert describe_stop(None, at).startswith("stopped before the first run")
    said = [describe_stop(Progress(0.1, made, 48), at) for made in (0, 5)]
    assert said[0] == "stopped after 0 of 48 runs of this look; the same command goes on"
    assert said[1].startswith("stopped after 5 of 48 runs of this look, which are in runs/claims; ")


def test_tries_of_the_result_that_is_brought_along_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["claim", "curriculum/again", "--dry-run"])
    assert "seeds and tries begin anew; the result that shuhari brings counts" in capsys.readouterr().err
