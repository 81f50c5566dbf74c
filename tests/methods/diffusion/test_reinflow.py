"""ReinFlow as its recipe says it: whose ratio is clipped, where, and what its noise is."""

from __future__ import annotations

from math import exp

import pytest

from built import built
from flows import chain_of, clipped, imitation_comes_first_and_the_baseline_has_noise_of_one_size


def test_it_clips_the_geometric_mean_of_steps_and_dimensions() -> None:
    """Bounds of 1.25 %, for 1 % of five with the initial noise; the mean of 0.04 over four steps is 0.01, within."""
    loss, gradient = clipped("diffusion/reinflow", [0.04, 0.0, 0.0, 0.0], score="mean_log_prob")
    assert loss == pytest.approx(-exp(0.01)) and gradient == pytest.approx([-exp(0.01) / 4] * 4)
    loss, gradient = clipped("diffusion/reinflow", [0.08, 0.0, 0.0, 0.0], score="mean_log_prob")
    assert loss == pytest.approx(-1.0125) and gradient == [0.0] * 4
    terms = built("diffusion/reinflow").learners["main"].parts["policy"].terms
    assert terms["entropy"].weight == 0.015


def test_imitation_comes_first_and_the_baseline_has_noise_of_one_size() -> None:
    imitation_comes_first_and_the_baseline_has_noise_of_one_size("diffusion/reinflow")


def test_its_noise() -> None:
    model = chain_of("diffusion/reinflow")
    assert (model.law, model.low, model.high, model.bound) == ("noise", 0.1, 0.24, 1.0)
