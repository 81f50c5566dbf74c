"""Simulated claims: against normal theory, and by counting every sign of a few pairs."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import nct, t, ttest_rel

from shuhari.lab.claims.looks import LOOKS, compute_mde, find_chance
from shuhari.lab.claims.verdict import Headline, Rule


def load_benchmark(name: str) -> ModuleType:
    """A module of benchmarks/, which are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


trials = load_benchmark("trials")
draw_pairs, judge_pairs, plant, simulate = trials.draw_pairs, trials.judge_pairs, trials.plant, trials.simulate


def normal(claims: int, effect: float = 0.0, most: int = 12) -> np.ndarray:
    """[K, P, 2] pairs whose differences have the deviation 1."""
    rng = np.random.default_rng(4)
    x = rng.normal(0.5, 1.0, (claims, most))
    return np.stack([x + rng.normal(effect, 1.0, x.shape), x], -1)


RULE = Rule("up", compute_mde(1.0, LOOKS), role="headline")


def test_claims_without_an_effect_hold_as_often_as_the_level_says() -> None:
    found = simulate(RULE, normal(1000))
    assert found.held.low < 0.025 < found.held.high
    assert found.excludes.low < 0.05  # fewer, as a claim that ends below its margin cannot turn out reversed
    assert sum(found.verdicts.values()) == 1000


def test_an_effect_of_the_margin_is_found_as_often_as_the_mde_says() -> None:
    found = simulate(RULE, normal(400, RULE.margin))
    assert found.held.low < find_chance(RULE.margin) < found.held.high  # 80 %
    planted = simulate(RULE, plant(RULE, normal(50), 2 * RULE.margin))
    assert planted.held.value > 0.95 and planted.pairs < 9  # most end at the first look


def test_one_look_agrees_with_the_noncentral_t_and_with_scipys_test() -> None:
    pairs, effect = normal(600, 0.8, most=9), 0.8
    found = simulate(Rule("up", 1.0, role="headline"), pairs, looks=(9,))
    theory = 1 - nct.cdf(t.ppf(0.975, 8), 8, effect * 3)
    assert found.held.value == pytest.approx(theory, abs=4 * (theory * (1 - theory) / 600) ** 0.5)
    p = ttest_rel(pairs[..., 0], pairs[..., 1], axis=1).pvalue
    assert found.excludes.value == (p < 0.05).mean()  # the same of every claim


def test_by_every_sign_of_five_pairs() -> None:
    """A claim of one look of five pairs whose differences are 1 to 5 with any signs: 2 of 32 have all one sign."""
    d = np.arange(1.0, 6.0)
    signs = np.array(list(product([-1, 1], repeat=5)))
    pairs = np.stack([100 + signs * d, np.full(signs.shape, 100.0)], -1)
    found = simulate(Rule("up", 2.0, role="headline"), pairs, looks=(5,))
    critical = t.ppf(0.975, 4)
    by_hand = [s @ d / 5 / (np.std(s * d, ddof=1) / np.sqrt(5)) for s in signs]
    assert found.held.value == np.mean(np.array(by_hand) > critical) == 1 / 32
    assert found.verdicts[Headline.REVERSED.value] == 1


def test_claims_are_drawn_from_a_pool_without_replacement_and_sides_by_lot() -> None:
    pool = np.stack([np.arange(24.0), np.arange(24.0) + 0.5], 1)
    pool[3, 0] = np.nan
    drawn = draw_pairs(pool, 400)
    assert drawn.shape == (400, 12, 2) and all(len({*one.min(1)}) == 12 for one in drawn)
    assert 3.0 not in drawn and set(np.abs(drawn[..., 0] - drawn[..., 1]).ravel()) == {0.5}
    first = (drawn[..., 0] > drawn[..., 1]).mean()
    assert first == pytest.approx(0.5, abs=0.03)
    kept = draw_pairs(pool, 400, by_lot=False)
    assert (kept[..., 1] - kept[..., 0] == 0.5).all()
    with pytest.raises(ValueError, match="11 pairs: expected at least 12"):
        draw_pairs(pool[:12], 1)


def test_what_is_planted_is_what_was_asked_for() -> None:
    pairs = normal(3)
    np.testing.assert_allclose(plant(RULE, pairs, 0.3)[..., 0] - pairs[..., 0], 0.3)
    lower = replace(RULE, direction="down")
    np.testing.assert_allclose(plant(lower, pairs, 0.3)[..., 0] - pairs[..., 0], -0.3)
    assert simulate(lower, plant(lower, normal(50), 2 * RULE.margin)).held.value > 0.95
    grown = plant(replace(RULE, ratio=True), pairs, 0.3)
    np.testing.assert_allclose((grown[..., 0] - pairs[..., 0]) / np.abs(pairs[..., 1]), 0.3)


def test_a_claim_that_ends_early_says_when() -> None:
    far = np.stack([np.full(12, 5.0) + np.arange(12) / 100, np.zeros(12)], -1)
    assert judge_pairs(RULE, far).pairs == 5 and judge_pairs(RULE, far).headline is Headline.HOLDS
    noisy = np.stack([np.tile([9.0, -9.0, 5.0], 4), np.zeros(12)], -1)
    assert judge_pairs(RULE, noisy).pairs == 5  # hopeless
    assert judge_pairs(Rule("up", 8.0, role="headline"), noisy).pairs == 12
