"""Flow-Noise as its recipe says it: whose ratio is clipped, where, and what its noise is."""

from __future__ import annotations

from math import exp

import pytest

from flows import chain_of, clipped, imitation_comes_first_and_the_baseline_has_noise_of_one_size


def test_it_clips_the_mean_of_steps_at_a_fifth() -> None:
    loss, gradient = clipped("diffusion/flow_noise", [0.4, 0.0, 0.0, 0.0])
    assert loss == pytest.approx(-exp(0.1)) and gradient == pytest.approx([-exp(0.1) / 4] * 4)
    assert clipped("diffusion/flow_noise", [1.0, 0.0, 0.0, 0.0])[0] == pytest.approx(-1.2)


def test_imitation_comes_first_and_the_baseline_has_noise_of_one_size() -> None:
    imitation_comes_first_and_the_baseline_has_noise_of_one_size("diffusion/flow_noise")


def test_its_noise() -> None:
    model = chain_of("diffusion/flow_noise")
    assert (model.law, model.low, model.high, model.single) == ("noise", 0.08, 0.16, False)
