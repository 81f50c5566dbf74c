"""Shares of formats, by policies that write known ones, and the exact dynamics that the paper's setting has."""

from __future__ import annotations

import math

import numpy as np
import pytest

from known_policies import Known
from shuhari.methods.analysis.echo_chamber.formats import Formats, compute_entropy, step_expert_iteration, tilt

MIXED, LATER = (0.5, 0.3, 0.2), (0.95, 0.05, 0.0)  # code, tag, words
TEXTS = ("def f(): return 3", "<tool>3</tool>", "The answer is 3")
PATTERNS = {"code": "^def ", "tag": "<tool>"}


def write(name: str, problem: int, right: bool, x: float) -> str:
    shares = MIXED if name == "start" else LATER
    return TEXTS[int(np.searchsorted(np.cumsum(shares), x, side="right").clip(0, 2))]


def test_one_step_of_expert_iteration_by_hand() -> None:
    new = step_expert_iteration(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.4]))
    assert new == pytest.approx([0.10 / 0.33, 0.15 / 0.33, 0.08 / 0.33])


def test_the_tilt_of_formats_is_that_of_their_answers() -> None:
    """Of every format two answers, one right: each gets p exp(reward / beta), and a format has the sum of its two."""
    shares, accuracy, beta = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.4]), 0.5
    answers = shares[:, None] * np.stack([1 - accuracy, accuracy * math.exp(1 / beta)], axis=1)
    assert tilt(shares, accuracy, beta) == pytest.approx(answers.sum(1) / answers.sum())
    assert tilt(np.array([0.5, 0.5]), np.array([0.2, 0.8]), 0.1) == pytest.approx([0.2, 0.8], abs=1e-4)
    assert tilt(np.array([0.5, 0.5]), np.array([0.0, 1.0]), math.inf).tolist() == [0.5, 0.5]
    assert tilt(np.array([0.5, 0.5]), np.array([0.0, 1.0]), 1.0)[1] == pytest.approx(math.e / (1 + math.e))


def test_a_high_price_of_the_kl_keeps_the_start_and_a_low_one_is_a_step_of_expert_iteration() -> None:
    shares, accuracy = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.4])
    assert tilt(shares, accuracy, 1e6) == pytest.approx(shares, abs=1e-5)
    assert tilt(shares, accuracy, 1e-3) == pytest.approx(step_expert_iteration(shares, accuracy))


def test_expert_iteration_many_times_leaves_the_most_accurate_format() -> None:
    shares = np.array([0.5, 0.3, 0.2])
    for _ in range(100):
        shares = step_expert_iteration(shares, np.array([0.2, 0.5, 0.4]))
    assert shares.argmax() == 1 and shares.max() > 0.999


def test_every_written_format_is_recognised() -> None:
    assert [Formats(formats=PATTERNS).classify(text) for text in TEXTS] == ["code", "tag", "other"]
    shapes = [Formats().classify(text) for text in ("12+3 = 15", "4+5 = 9", "it is nine")]
    assert shapes == ["0+0 = 0", "0+0 = 0", "a a a"]


def test_the_shares_of_a_policy_that_has_collapsed() -> None:
    chances = {"start": [0.5] * 64, "rl": [0.5] * 64}
    found = Formats(formats=PATTERNS, samples=32)(Known(chances, write))
    n = found.numbers
    assert n["largest"].value == pytest.approx(0.95, abs=0.02) and n["largest"].says == "share of 'code'"
    assert n["grew"].low < 0.45 < n["grew"].high and abs(n["grew"].null) < 0.05
    assert n["entropy"].value == pytest.approx(-(0.95 * math.log(0.95) + 0.05 * math.log(0.05)), abs=0.05)
    assert n["entropy change"].high < 0
    assert [row[1] for row in found.rows if row[0] == "start"] == ["code", "tag", "other"]
    for name, later, start in (("code", 0.95, 0.5), ("tag", 0.05, 0.3)):
        assert n[f"share/{name}"].low < later < n[f"share/{name}"].high
        assert n[f"share/{name}"].null == pytest.approx(start, abs=0.05)
        assert n[f"accuracy/{name}"].null == pytest.approx(0.5, abs=0.06)
    assert n["accuracy/code"].value == pytest.approx(0.5, abs=0.05)


def test_the_entropy_of_equal_shares() -> None:
    assert compute_entropy(np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]])) == pytest.approx(math.log(3))


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"formats.code '\('.*expected a regular expression"):
        Formats(formats={"code": "("})
