"""Flow-SDE as its recipe says it: whose ratio is clipped, where, and what its noise is."""

from __future__ import annotations

from math import log

import pytest

from flows import chain_of, clipped, imitation_comes_first_and_the_baseline_has_noise_of_one_size


def test_it_clips_the_ratio_of_its_one_step() -> None:
    loss, gradient = clipped("diffusion/flow_sde", [0.0, log(1.1), 0.0, 0.0])
    assert loss == pytest.approx(-1.1) and gradient == pytest.approx([-1.1] * 4)  # of the others nothing is scored
    assert clipped("diffusion/flow_sde", [0.0, log(1.3), 0.0, 0.0])[0] == pytest.approx(-1.2)
    assert clipped("diffusion/flow_sde", [0.0, log(0.7), 0.0, 0.0], advantage=-1.0)[0] == pytest.approx(0.8)


def test_imitation_comes_first_and_the_baseline_has_noise_of_one_size() -> None:
    imitation_comes_first_and_the_baseline_has_noise_of_one_size("diffusion/flow_sde")


def test_its_noise() -> None:
    model = chain_of("diffusion/flow_sde")
    assert (model.law, model.level, model.single) == ("sde", 0.5, True)
