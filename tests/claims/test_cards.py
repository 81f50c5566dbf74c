"""Cards of beds: what they tell of a baseline, and of what is no card."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims import cards
from shuhari.lab.claims.checks import Check
from shuhari.lab.claims.quantities import Metric
from shuhari.lab.claims.verdict import Rule, Verdict

SEEDS = 6


def line(start: float, end: float) -> dict[str, list[float]]:
    return {"x": [0.0, 5.0, 10.0], "y": [start, (start + end) / 2, end]}


def card(**more: Any) -> dict[str, Any]:
    """Baselines that fall from 1 to 0.1, a redraw that ends by i/10 higher in seed i, a control that stays."""
    lines = {
        "baseline": [line(1.0, 0.1) for _ in range(SEEDS)],
        "redraw": [line(1.0, 0.1 + i / 10) for i in range(SEEDS)],
        "control": [line(1.0, 0.9 + i / 100) for i in range(SEEDS)],
    }
    arms = {name: {"curves": {"evaluate/entropy": c}, "cpu_s": [4.0] * SEEDS} for name, c in lines.items()}
    plain = {"format": 1, "bed": "trie/twins", "budget": {"steps": 10}, "seeds": list(range(2000, 2000 + SEEDS))}
    return {**plain, "arms": arms, "warm_cpu_s": [13.0] * SEEDS, "hashes": {}, **more}


def written(tmp_path: Path, table: Any) -> Path:
    path = tmp_path / "trie" / "twins.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table))
    return path


def test_a_quantity_reads_a_card_as_it_reads_runs(tmp_path: Path) -> None:
    found = cards.read(written(tmp_path, card()))
    assert found.bed == "trie/twins" and found.seconds == (4.0, 13.0)
    area = [Metric("evaluate/entropy:area")(run) for run in found.read_runs("baseline")]
    assert area == pytest.approx([0.55] * SEEDS)
    with pytest.raises(RecipeError, match="did you mean 'control'"):
        found.read_runs("controll")


def test_the_noise_of_a_claim_is_that_of_a_redraw(tmp_path: Path) -> None:
    found = cards.read(written(tmp_path, card()))
    ends = np.array([-i / 10 for i in range(SEEDS)])
    quantity = Metric("evaluate/entropy:final")
    np.testing.assert_allclose(found.measure_noise(quantity), ends, atol=1e-12)
    assert found.measure_spread(quantity) == pytest.approx(ends.std(ddof=1))
    shares = np.array([-(i / 10) / (0.1 + i / 10) for i in range(SEEDS)])
    assert found.measure_spread(quantity, ratio=True) == pytest.approx(shares.std(ddof=1))


@pytest.mark.parametrize(
    ("given", "met", "effect"),
    [
        ({"against": "start", "factor": 0.25, "direction": "down"}, Verdict.HOLDS, 0.15),  # 0.1 < 1 / 4
        ({"against": "start", "factor": 0.05, "direction": "down"}, Verdict.FAILS, -0.05),
        ({"arm": "control", "against": "baseline", "direction": "up", "margin": 0.5}, Verdict.HOLDS, 0.825),
        ({"arm": "control", "against": "baseline", "direction": "up", "margin": 0.9}, Verdict.FAILS, 0.825),
        ({"against": 0.1, "direction": "not higher"}, Verdict.HOLDS, 0.0),
    ],
)
def test_premises_are_read_from_a_card(tmp_path: Path, given: dict[str, Any], met: Verdict, effect: float) -> None:
    found = cards.read(written(tmp_path, card()))
    check = Check({"metric": "evaluate/entropy:final"}, Rule(**{"arm": "baseline", "role": "premise", **given}))
    runs = {arm: found.read_runs(arm) for arm in check.arms}
    told, verdict, sides = cards.judge_premise(check, 0, Metric("evaluate/entropy:final"), runs)
    assert verdict is met and told.value == pytest.approx(effect) and told.n == SEEDS
    assert sides.get("start", [1.0] * SEEDS) == [1.0] * SEEDS


@pytest.mark.parametrize(
    ("metrics", "where"),
    [(("entrpy", "entropy"), "claim.check.0 (premise)"), (("entropy", "entrpy"), "claim.check.1 (headline)")],
)
def test_a_metric_that_a_card_does_not_have_is_a_mistake_of_its_check(
    tmp_path: Path, metrics: tuple[str, str], where: str
) -> None:
    found = cards.read(written(tmp_path, card()))
    tables = [{"metric": f"evaluate/{metric}:final"} for metric in metrics]
    rules = Rule("down", arm="baseline", against=0.5, role="premise"), Rule("up", 0.1, role="headline")
    claim: Any = SimpleNamespace(checks=[Check(t, rule) for t, rule in zip(tables, rules, strict=True)])
    with pytest.raises(RecipeError) as told:
        cards.check_metrics(found, claim, [Metric(t["metric"]) for t in tables])
    expected = f"{where}: arm 'baseline', by the card of trie/twins: no metric 'evaluate/entrpy' in the run; did you"
    assert str(told.value).startswith(expected) and "kept" not in str(told.value)


def test_what_is_no_card_is_told_of(tmp_path: Path) -> None:
    assert cards.find("beds/trie/twins", tmp_path) is None
    path = written(tmp_path, card())
    found = cards.find("beds/trie/twins", tmp_path)
    assert found is not None and found.file == path and cards.find("trie/twins", tmp_path) is None
    broken = ((card(format=2), "format 2, not 1"), ({"format": 1}, "without bed, budget"),
              ([], "is no card"))  # fmt: skip
    for table, told in broken:
        with pytest.raises(RecipeError, match=told):
            cards.read(written(tmp_path, table))


def test_a_card_that_changes_by_a_digit_is_another(tmp_path: Path) -> None:
    before = cards.read(written(tmp_path, card())).digest
    assert cards.read(written(tmp_path, card())).digest == before
    assert cards.read(written(tmp_path, card(seeds=[1]))).digest != before
