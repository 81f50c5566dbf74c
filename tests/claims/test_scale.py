"""The same claim on other beds: what it keeps, where its results lie, and how they are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from shuhari.config.overlay import RecipeError
from shuhari.desk.cli import main
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.kept_results import find_results
from shuhari.lab.claims.protocol import find_mark
from shuhari.lab.claims.scale import by_size, correlate_ranks, folder_of, read_on, read_results

METHOD = """on = "beds/trie/easy"
part.policy.epochs = 2
[claim]
says = "x"
warm = "warm-up"
budget = {steps = 6}
arms.once = {part.policy.minibatches = 2}
check = [
  {role = "premise", metric = "evaluate/exact.mean:first", against = 0.9, direction = "down"},
  {role = "premise", metric = "evaluate/exact.mean:area", arm = "control", against = "baseline", direction = "up"},
  {role = "headline", metric = "evaluate/exact.mean:area", direction = "up", margin = 0.1},
  {role = "because", metric = "evaluate/exact.mean:area", direction = "up", against = "once"},
]
"""


def test_the_claim_stands_on_the_other_bed(tmp_path: Path) -> None:
    path, bed = tmp_path / "own.toml", tmp_path / "wide.toml"
    path.write_text(METHOD)
    bed.write_text('extends = "beds/trie/easy"\nmodels.policy.hidden = 32\npart.policy.optimiser.lr = 1e-4\n')
    own, wide = read(str(path)), read_on(str(path), str(bed))
    stages = {name: arm.stages[-1] for name, arm in wide.arms.items()}
    assert {s["models"]["policy"]["hidden"] for s in stages.values()} == {32}
    assert stages["method"]["part"]["policy"]["epochs"] == 2 and wide.budget == own.budget and bed in wide.files
    assert compute_digest(wide.arms["baseline"]) != compute_digest(own.arms["baseline"])
    assert [c.rule.role for c in wide.checks] == ["premise", "headline"]  # no control, no ablation
    assert "no card" in wide.notes[-1] and "ablations were not asked" in wide.notes[-2]
    assert wide.checks[1] == own.checks[2] and wide.name == own.name
    assert folder_of(str(bed), tmp_path) == tmp_path / "scale" / "wide"
    with pytest.raises(RecipeError, match="baselines/grpo is a recipe of its own, and its claim cannot be laid over"):
        read_on("baselines/grpo", str(bed))


def test_a_card_of_the_other_bed_keeps_its_premises(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(METHOD)
    (tmp_path / "trie").mkdir()
    arms = {name: {"curves": {}} for name in ("baseline", "control")}
    card = {"format": 1, "bed": "trie/rare", "budget": {"steps": 80}, "seeds": [], "hashes": {}, "arms": arms}
    (tmp_path / "trie" / "rare.json").write_text(json.dumps(card))
    assert len(read_on(str(path), "beds/trie/rare", beds=tmp_path).checks) == 3


def result(method: str, bed: str, weights: int, effect: float | None, margin: float = 0.1) -> dict[str, Any]:
    head = {"check": 0, "metric": "m", "direction": "up", "margin": margin, "effect": effect}
    ends = {"low": effect - 0.05, "high": effect + 0.05} if effect is not None else {}
    verdict = "holds" if effect is not None else "not tested"
    about = {"method": method, "bed": bed, "model": {"parameters": weights}, "verdict": verdict}
    return {**about, "headline": head | ends, "checks": [head | ends]}


def test_results_of_one_headline_are_compared_by_size_in_margins(tmp_path: Path) -> None:
    for bed, weights, effect in (("beds/b_large", 2_000_000, 0.2), ("beds/b_mid", 400_000, -0.1)):
        at = tmp_path / "scale" / bed / "claims" / "rlvr" / "x.json"
        at.parent.mkdir(parents=True)
        at.write_text(json.dumps(result("rlvr/x", bed, weights, effect)))
    own = [result("rlvr/x", "beds/b", 50_000, 0.3), result("rlvr/y", "beds/b", 50_000, 0.3)]
    changed = result("rlvr/y", "beds/b_mid", 400_000, 0.3, margin=0.2)  # of another protocol
    found = by_size(own, [*read_results(tmp_path), changed])
    assert list(found) == ["rlvr/x"]
    assert [(s.weights, pytest.approx(s.effect)) for s in found["rlvr/x"]] == [
        (50_000, 3),
        (400_000, -1),
        (2_000_000, 2),
    ]
    assert (found["rlvr/x"][0].low, found["rlvr/x"][0].high) == pytest.approx((2.5, 3.5))
    changed = {**result("rlvr/x", "beds/b_mid", 4, None), "stale": "its claim has changed"}
    (untested,) = by_size(own[:1], [changed])["rlvr/x"][1:]
    assert math.isnan(untested.effect) and untested.verdict == "not tested (stale)"


def test_beds_are_compared_by_the_method_as_it_stands() -> None:
    own, large = result("rlvr/x", "beds/b", 50_000, 0.3), result("rlvr/x", "beds/b_large", 2_000_000, 0.2)
    values = {"method": [0.1, 0.2, 0.3, 0.4, None], "turned": [0.9] * 5, "baseline": [0.0] * 5}
    sides = {"arm": "method", "against": "baseline", "factor": 1.0, "level": 0.95, "values": values, "ours": "turned"}
    turned = {**own, "checks": [{**own["checks"][0], **sides}]}
    assert by_size([turned], [large])["rlvr/x"][0].effect == pytest.approx(0.25 / 0.1)  # the mean of four, in margins


def test_rank_correlations_by_hand() -> None:
    """Of five ranks 1 - 6 * sum of squares / 120; the interval of Fisher's z has 1.96 * sqrt(1.06 / 2) to each side."""
    found = correlate_ranks([1, 2, 3, 4, 5, math.nan], [10, 30, 20, 40, 50, 60])
    assert found.value == pytest.approx(1 - 6 * 2 / 120) and found.n == 5
    half = norm.ppf(0.975) * math.sqrt(0.53)
    assert (found.low, found.high) == pytest.approx(
        (math.tanh(math.atanh(0.9) - half), math.tanh(math.atanh(0.9) + half))
    )
    few = correlate_ranks([1, 2, 3], [1, 2, 3])
    assert few.value == pytest.approx(1.0) and math.isnan(few.low)
    assert math.isnan(correlate_ranks([1, 1, 1], [1, 2, 3]).value)


def test_it_is_planned_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(METHOD)
    at = ["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as ended:
        main(["claim", str(tmp_path / "own.toml"), "--on", "beds/trie/twins_400k", "--dry-run", *at])
    mark = find_mark(read_on(str(tmp_path / "own.toml"), "beds/trie/twins_400k"))
    assert ended.value.code == 0 and f"protocol {mark}" in capsys.readouterr().out


def test_what_was_measured_on_another_bed_is_shown_and_found_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kept result of `--on`, whose learning rate is not that of now: named with its bed, alone or beside the own."""

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["claim", *words, "--out", str(tmp_path)])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((out + err).split())

    bed, source = "beds/trie/twins4_400k", find_results().parent / "scale"
    kept = tmp_path / "scale" / bed / "claims" / "rlvr" / "kl_cov.json"
    kept.parent.mkdir(parents=True)
    found = json.loads((source / bed / "claims" / "rlvr" / "kl_cov.json").read_text())
    kept.write_text(json.dumps({**found, "stale": "seen in a test"}))
    code, told = run("--stale")
    assert code == 0 and f"rlvr/kl_cov on {bed}" in told and "seen in a test" in told
    code, told = run("--stale", "--on", "beds/trie/easy_400k")
    assert code == 0 and f"no result is in {tmp_path}" in told
    code, told = run("rlvr/kl_cov", "--show")
    assert code == 0 and "that shuhari brings" in told and f"on {bed}:" in told
    code, told = run("rlvr/kl_cov", "--show", "--on", bed)
    assert code == 0 and "that shuhari brings" not in told and f"on {bed}:" in told
    code, told = run("rlvr/pacs", "--show", "--on", bed)
    assert code == 2 and f"rlvr/pacs on {bed}: not measured" in told
