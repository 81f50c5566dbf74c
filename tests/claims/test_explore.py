"""Any method on any bed: its arms, what is refused, and the page of methods by beds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from in_process import stay_in_process
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.desk.cli import main
from shuhari.lab.claims import runs
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.explore import arrange, choose_metric, explore, read_cells
from shuhari.lab.claims.looks import compute_mde


def test_the_method_over_the_bed_is_compared_with_the_bed_alone() -> None:
    claim = explore("rlvr/kl_cov", "baselines/grpo")
    assert list(claim.arms) == ["method", "baseline"] and claim.name == "rlvr/kl_cov" and claim.bed == "baselines/grpo"
    uses = [arm.stages[-1]["part"]["policy"]["terms"]["loss"]["use"] for arm in claim.arms.values()]
    assert uses == ["kl_cov", "clip"] and claim.budget == ("steps", 120.0)
    assert len({id(r) for r in claim.warm.values()}) == 1 and [s["name"] for s in claim.arms["method"].stages] == ["rl"]
    assert compute_digest(claim.warm["method"]) == compute_digest(
        explore("rlvr/lite_ppo", "baselines/grpo").warm["baseline"]
    )
    assert claim.checks[0].quantity["metric"] == "evaluate/mean:area" and claim.looks == (5, 8, 12)


def write_card(beds: Path, noise: float) -> None:
    """A card of beds/trie/twins whose baseline and redraw have areas that differ by 0, noise, .. 5 noise."""

    def curves(shift: float) -> dict[str, Any]:
        each = [{"x": [0.0, 80.0], "y": [0.3 + i * shift] * 2} for i in range(6)]
        return {"curves": {"evaluate/exact.mean": each}}

    arms = {"baseline": curves(0.0), "redraw": curves(noise)}
    card = {"format": 1, "bed": "trie/twins", "seeds": list(range(6)), "arms": arms, "budget": {"steps": 80}}
    (beds / "trie").mkdir(parents=True)
    (beds / "trie" / "twins.json").write_text(json.dumps(card | {"hashes": {}}))


def test_the_margin_is_what_can_be_found(tmp_path: Path) -> None:
    """By a card .9272 deviations, of 0 to 5 that is 1.871. Without one .02 of a share, else a twentieth."""
    write_card(tmp_path, 0.01)
    (check,) = explore("rlvr/lite_ppo", "beds/trie/twins", beds=tmp_path).checks
    assert check.rule.role == "headline" and check.rule.margin == pytest.approx(0.9272 * 0.01871, rel=0.01)
    assert check.rule.margin >= compute_mde(0.01 * 3.5**0.5, (5, 8, 12))  # so that no plan fails it
    assert explore("rlvr/lite_ppo", "beds/trie/twins", margin=0.3, beds=tmp_path).checks[0].rule.margin == 0.3
    (share,) = explore("rlvr/lite_ppo", "beds/trie/twins", beds=tmp_path / "none").checks
    assert (share.rule.margin, share.rule.ratio, share.rule.range) == (0.02, False, (0.0, 1.0))
    (other,) = explore("rlvr/clip_cov", "baselines/bandit", "reward/mean:area").checks
    assert (other.rule.margin, other.rule.ratio) == (0.05, True)
    one = explore("rlvr/lite_ppo", "beds/trie/twins", seeds=6, beds=tmp_path)
    assert one.looks == (6,) and one.seeds[-1] == 1005 and one.checks[0].rule.margin > check.rule.margin
    with pytest.raises(RecipeError, match="4 seeds: expected 5 or more"):
        explore("rlvr/lite_ppo", "beds/trie/twins", seeds=4)


def test_methods_are_joined_in_order() -> None:
    claim = explore("rlvr/kl_cov+rlvr/lite_ppo", "baselines/grpo")
    stage = claim.arms["method"].stages[-1]
    assert claim.name == "rlvr/kl_cov+rlvr/lite_ppo" and list(stage["laid"]) == ["rlvr/kl_cov", "rlvr/lite_ppo"]
    with pytest.raises(RecipeError, match="no recipe"):
        explore("rlvr/kl_cov+rlvr/none", "baselines/grpo")


def test_what_is_measured_is_what_the_bed_reports() -> None:
    assert choose_metric({"evaluate": {"metrics": {"x": {"use": "exact"}}}}) == "evaluate/x.mean:area"
    assert [choose_metric({"evaluate": {"samples": n}}) for n in (1, 4)] == [
        "evaluate/greedy:area",
        "evaluate/mean:area",
    ]
    assert explore("rlvr/clip_cov", "baselines/bandit", "reward/mean:final").checks[0].rule.arm == "method"


def test_what_cannot_be_laid_or_does_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="no term of that name, which is the loss of the policy gradient"):
        explore("rlvr/kl_cov", "baselines/dpo")
    with pytest.raises(RecipeError, match="cannot be applied to another: it is a study"):
        explore("curriculum/mbtl", "baselines/grpo")
    assert load("rlvr/lite_ppo").stages[-1]["collect"]["advantage"]["scale"] == "raw"


def write(at: Path, method: str, bed: str, effect: float) -> None:
    head = {"metric": "evaluate/mean:area", "effect": effect, "low": effect - 0.1, "high": effect + 0.1}
    result = {"method": method, "verdict": "holds", "task": {"name": "chain"}, "bed": bed, "headline": head}
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps(result))


def test_methods_by_beds(tmp_path: Path) -> None:
    write(tmp_path / "claims" / "rlvr" / "a.json", "rlvr/a", "beds/x", 0.25)
    write(tmp_path / "claims" / "rlvr" / "b.json", "rlvr/b", "", -0.5)
    write(tmp_path / "explore" / "beds/x" / "claims" / "rlvr" / "a.json", "rlvr/a", "beds/x", 0.75)  # the claim stands
    (tmp_path / "explore" / "mine" / "begun").mkdir(parents=True)
    (tmp_path / "explore" / "mine" / "begun" / "x.json").write_text("[]")  # a try without a result
    write(tmp_path / "explore" / "mine" / "claims" / "rlvr" / "a.json", "rlvr/a", "mine", 0.5)
    assert arrange(tmp_path) == [
        ("method", "beds/x", "mine", "task chain"),
        ("rlvr/a", "+0.25 [0.15, 0.35]", "+0.5 [0.4, 0.6]?", ""),
        ("rlvr/b", "", "", "-0.5 [-0.6, -0.4]"),
    ]
    assert [cell.exploratory for cell in read_cells(tmp_path)] == [False, False, True, True]


def test_it_is_measured_and_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_in_process(monkeypatch, runs)
    bed = tmp_path / "own.toml"
    bed.write_text('extends = "baselines/bandit"\nsteps = 2\nbuffer.size = 4\nevaluate = {every = 1, n = 4}\n')
    at = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as ended:
        main(["claim", "rlvr/clip_cov", "--bed", str(bed), "--seeds", "5", *at, "--json"])
    assert ended.value.code == 0 and not (tmp_path / "out" / "claims").exists()
    found = json.loads((tmp_path / "out" / "explore" / "own" / "claims" / "rlvr" / "clip_cov.json").read_text())
    assert found["bed"] == "own" and found["exploratory"] and len(found["seeds"]) == 5
    assert found["headline"]["margin"] == 0.02 and found["because"] == "not asked"
    assert found["verdict"] == "not tested" and "does not act here" in found["premise"]["failing"][-1]  # of two arms
    with pytest.raises(SystemExit):
        main(["claim", "--board", "own", "--by", found["headline"]["metric"], "--out", str(tmp_path / "out")])
    assert "rlvr/clip_cov" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["claim", "--matrix", "--out", str(tmp_path / "out")])
    assert "rlvr/clip_cov" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:  # the first is there
        main(["claim", "rlvr/clip_cov", "baselines/dr_grpo", "--bed", str(bed), "--seeds", "5", *at])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "plot: " in told and told.count("own (baseline)") == 1
    together = told[told.index("own (baseline)") :]  # the last table
    assert "rlvr/clip_cov" in together and "rlvr/dr_grpo" in together
    with pytest.raises(SystemExit):
        main(["claim", "--board", str(bed), "--out", str(tmp_path / "out")])
    assert "own (baseline)" in capsys.readouterr().out
    asked = ["--guard", "reward/mean:final", "--svg", str(tmp_path / "x.svg"), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--bed", str(bed), *at, *asked])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and {*found["arms"]} == {"own (baseline)", "rlvr/clip_cov", "rlvr/dr_grpo"}
    assert found["guards"]["reward/mean:final"]["own (baseline)"]["n"] == 5  # of the runs
    assert all(name in (tmp_path / "x.svg").read_text() for name in found["arms"])
