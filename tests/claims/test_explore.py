"""Any method on any bed: its arms, what is refused, and the page of methods by beds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shuhari.claims.digest import digest
from shuhari.claims.explore import cells, explore, matrix, score
from shuhari.cli import main
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load


def test_the_method_over_the_bed_is_compared_with_the_bed_alone() -> None:
    claim = explore("rlvr/kl_cov", "baselines/grpo")
    assert list(claim.arms) == ["method", "baseline"] and claim.name == "rlvr/kl_cov" and claim.bed == "baselines/grpo"
    terms = [list(arm.stages[-1]["part"]["policy"]["terms"]) for arm in claim.arms.values()]
    assert terms == [["kl_cov"], ["clip"]] and claim.budget == ("steps", 120.0)
    assert len({id(r) for r in claim.warm.values()}) == 1 and [s["name"] for s in claim.arms["method"].stages] == ["rl"]
    assert digest(claim.warm["method"]) == digest(explore("rlvr/lite_ppo", "baselines/grpo").warm["baseline"])
    assert claim.checks[0].quantity["metric"] == "evaluate/mean:area" and not claim.looks


def test_what_is_measured_is_what_the_bed_reports() -> None:
    assert score({"evaluate": {"metrics": {"x": {"use": "exact"}}}}) == "evaluate/x.mean:area"
    assert [score({"evaluate": {"samples": n}}) for n in (1, 4)] == ["evaluate/greedy:area", "evaluate/mean:area"]
    assert explore("rlvr/clip_cov", "baselines/bandit", "reward/mean:final").checks[0].rule.arm == "method"


def test_what_cannot_be_laid_or_does_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="0 losses of the policy gradient"):
        explore("rlvr/kl_cov", "baselines/dpo")
    with pytest.raises(RecipeError, match="cannot be laid over another: it is a study"):
        explore("curriculum/mbtl", "baselines/grpo")
    assert load("rlvr/lite_ppo").stages[-1]["collect"]["advantage"]["scale"] == "raw"


def write(at: Path, method: str, bed: str, effect: float, *, old: bool = False) -> None:
    check = {"metric": "evaluate/mean:area", "low": effect - 0.1, "high": effect + 0.1}
    result = {"method": method, "verdict": "holds", "task": {"name": "chain"}}
    if old:
        result["checks"] = [{**check, "difference": effect}]
    else:
        result |= {"bed": bed, "headline": {**check, "effect": effect}, "checks": []}
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps(result))


def test_methods_by_beds(tmp_path: Path) -> None:
    write(tmp_path / "claims" / "rlvr" / "a.json", "rlvr/a", "beds/x", 0.25)
    write(tmp_path / "claims" / "rlvr" / "b.json", "rlvr/b", "", -0.5, old=True)
    write(tmp_path / "explore" / "beds/x" / "claims" / "rlvr" / "a.json", "rlvr/a", "beds/x", 0.75)  # the claim stands
    write(tmp_path / "explore" / "mine" / "claims" / "rlvr" / "a.json", "rlvr/a", "mine", 0.5)
    assert matrix(tmp_path) == [
        ("method", "beds/x", "mine", "task chain"),
        ("rlvr/a", "+0.25 [0.15, 0.35]", "+0.5 [0.4, 0.6]?", ""),
        ("rlvr/b", "", "", "-0.5 [-0.6, -0.4]"),
    ]
    assert [cell.exploratory for cell in cells(tmp_path)] == [False, False, True, True]


def test_it_is_measured_and_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bed = tmp_path / "own.toml"
    bed.write_text('extends = "baselines/bandit"\nsteps = 2\nbuffer.size = 4\nevaluate = {every = 1, n = 4}\n')
    at = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as ended:
        main(["claim", "rlvr/clip_cov", "--bed", str(bed), *at, "--json"])
    assert ended.value.code == 0 and not (tmp_path / "out" / "claims").exists()
    found = json.loads((tmp_path / "out" / "explore" / "own" / "claims" / "rlvr" / "clip_cov.json").read_text())
    assert found["bed"] == "own" and found["exploratory"] and found["seeds"] == list(range(1000, 1008))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["claim", "--matrix", "--out", str(tmp_path / "out")])
    assert "rlvr/clip_cov" in capsys.readouterr().out
