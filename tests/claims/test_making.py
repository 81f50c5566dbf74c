"""Cards as they are made, on a bandit: one warm start, its baseline twice with other draws, and a control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from in_process import stay_in_process
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.lab.claims import cards, making
from shuhari.lab.claims.cards import find_change
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.kept_results import find_cards as kept
from shuhari.lab.claims.making import claim_of, make_card, save_card
from shuhari.lab.claims.quantities import Metric
from shuhari.lab.claims.result import find_modules

BED = """extends = "baselines/bandit"
[[stage]]
name = "warm-up"
steps = 2
[[stage]]
name = "rl"
steps = 6
evaluate = {every = 3, n = 8}
"""
CARDS = [p.relative_to(kept()).with_suffix("").as_posix() for p in sorted(kept().rglob("*.json"))]


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stay_in_process(patch, making)
        yield


def bed(tmp_path: Path, lr: float = 0.1) -> Claim:
    for name, text in (("bed", ""), ("control", "part.policy.optimiser.lr = 0.9\n")):
        own = f"part.policy.optimiser.lr = {lr}\n" if name == "bed" else text
        (tmp_path / f"{name}.toml").write_text(BED + own)
    arms = {"baseline": load(str(tmp_path / "bed.toml")), "control": load(str(tmp_path / "control.toml"))}
    return claim_of("beds/own/bed", arms, 3)


def test_a_card_is_read_as_it_was_made(tmp_path: Path) -> None:
    claim = bed(tmp_path)
    made = make_card("beds/own/bed", claim, tmp_path / "runs")
    path = save_card(made, tmp_path)
    found = cards.find("beds/own/bed", tmp_path / "beds")
    assert found is not None and found.file == path and json.loads(path.read_text()) == made
    assert list(found.arms) == ["baseline", "redraw", "control"] and made["seeds"] == [2000, 2001, 2002]
    assert len(made["warm_cpu_s"]) == 3 and min(found.seconds) > 0
    starts = {arm: [Metric("evaluate/greedy:first")(run) for run in found.read_runs(arm)] for arm in found.arms}
    assert starts["baseline"] == starts["redraw"] == starts["control"]  # of one warm start a seed
    noise = found.measure_noise(Metric("reward/mean:area"))
    assert np.abs(noise).min() > 0  # other draws
    now = find_modules(claim)
    assert find_change(made, claim, now) == ""
    elsewhere = made | {"hashes": made["hashes"] | {"shared": {"shuhari.kernel.ratio": "then"}}}
    assert find_change(elsewhere, claim, now) == ""  # what others share makes it older
    assert find_change(made, bed(tmp_path, 0.2), now) == "recipe 'baseline' has changed"
    assert find_change(made, replace(claim, warm={}), now) == "recipe 'warm start' has changed"
    assert "its budget is {'steps': 6.0}, the claim's" in find_change(made, replace(claim, budget=("tokens", 6)), now)
    assert "has changed" in find_change(made, claim, {name: "another" for name in now})


def test_a_bed_has_one_budget(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BED.replace("steps = 6", "tokens = 6\ndecisions = 5"))
    with pytest.raises(RecipeError, match="expected one budget"):
        claim_of("beds/own/bed", {"baseline": load(str(tmp_path / "own.toml"))}, 3)


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_of_the_bed_as_it_stands(name: str) -> None:
    found = cards.read(kept() / f"{name}.json")
    claim = making.plan_card(f"beds/{name}")
    assert find_change(found.table, claim, find_modules(claim)) == "", f"shuhari claim --card beds/{name}"
