"""Kernels beside autograd, ranks and norms by hand, and gradient descent beside a closed form."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from shuhari.config.overlay import RecipeError
from shuhari.desk.analyzing.running import make_analysis
from shuhari.methods.analysis.rich_lazy.initial_rank import (
    RichLazy,
    align,
    compare,
    find_effective_rank,
    find_kernel,
    rescale,
    train,
    truncate,
)


def make_net(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden weights [1, 5, 3], output weights [1, 5] and inputs [7, 3]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, 5, 3)), rng.standard_normal((1, 5)), rng.standard_normal((7, 3))


@pytest.mark.parametrize("net", ["linear", "tanh"])
def test_the_tangent_kernel_is_that_of_autograd(net: Literal["linear", "tanh"]) -> None:
    first, second, inputs = make_net()
    w, v, x = (torch.tensor(a) for a in (first[0], second[0], inputs))

    def output(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = x @ w.T
        return (torch.tanh(hidden) if net == "tanh" else hidden) @ v

    parts = torch.autograd.functional.jacobian(output, (w, v))
    jacobian = torch.cat([part.flatten(1) for part in parts], 1)
    assert find_kernel(net, first, second, inputs)[0] == pytest.approx((jacobian @ jacobian.T).numpy())


def test_the_kernel_of_a_linear_network_in_closed_form() -> None:
    """X' (W' W + |w|^2 I) X."""
    first, second, inputs = make_net(1)
    middle = first[0].T @ first[0] + (second**2).sum() * np.eye(3)
    assert find_kernel("linear", first, second, inputs)[0] == pytest.approx(inputs @ middle @ inputs.T)


def test_alignment_knows_no_size() -> None:
    first, second, inputs = make_net(2)
    kernel = find_kernel("tanh", first, second, inputs)
    assert align(kernel, kernel) == pytest.approx([1]) and align(kernel, 3 * kernel) == pytest.approx([1])
    assert align(np.diag([1.0, 0.0])[None], np.diag([0.0, 1.0])[None]) == pytest.approx([0])
    still = compare("tanh", (first, second), (first, second), inputs)
    assert [float(x[0]) for x in still.values()] == pytest.approx([1, 1, 0])


def test_truncation_keeps_the_norm_and_lowers_the_rank() -> None:
    matrix = np.random.default_rng(3).standard_normal((6, 4))
    for rank in (1, 2, 4):
        found = truncate(matrix, rank, 2.5)
        assert np.linalg.norm(found) == pytest.approx(2.5) and np.linalg.matrix_rank(found) == rank
    assert truncate(matrix, 4, float(np.linalg.norm(matrix))) == pytest.approx(matrix)


def test_the_effective_rank_of_equal_singular_values_is_their_number() -> None:
    columns = np.linalg.qr(np.random.default_rng(4).standard_normal((6, 6)))[0]
    for rank in (1, 3, 6):
        assert find_effective_rank(columns[:, :rank] @ columns[:rank]) == pytest.approx(rank)
    assert find_effective_rank(np.diag([2.0, 1.0])) == pytest.approx(25 / 17)


def test_one_unit_follows_the_gradient_flow() -> None:
    """f = w v x with one input of mean square 1: w^2 - v^2 is kept, and each stops at its first step below the loss."""
    first, second = np.array([[[0.5]], [[0.2]]]), np.array([[0.1], [0.9]])
    inputs = np.array([[1.0], [-1.0]])
    (w, v), done = train("linear", first, second, inputs, 2 * inputs[:, 0], 0.01, 10_000)
    assert done.all()
    kept = first[:, 0, 0] ** 2 - second[:, 0] ** 2
    assert w[:, 0, 0] ** 2 - v[:, 0] ** 2 == pytest.approx(kept, abs=0.1)
    error = 1 - w[:, 0, 0] * v[:, 0] / 2
    assert ((error <= 0.1) & (error > 0.05)).all()
    assert not train("linear", first, second, inputs, 2 * inputs[:, 0], 0.01, 3)[1].any()


def test_a_fixed_kernel_is_lazy() -> None:
    """Large output weights hold the kernel: w moves by little, and the kernel is that of the inputs."""
    rng = np.random.default_rng(5)
    first, second = rescale(rng.standard_normal((5, 3)), 1.0)[None], 100 * rng.standard_normal((1, 5))
    inputs = rng.standard_normal((20, 3))
    after, done = train("linear", first, second, inputs, inputs @ np.ones(3), 0.02, 20_000)
    assert done.all() and compare("linear", (first, second), after, inputs)["kernel"][0] > 0.9999


def test_more_rank_is_lazier_and_the_tasks_own_direction_is_the_exception() -> None:
    found = RichLazy(draws=2)(0)
    for net in ("linear", "tanh"):
        assert found[f"spearman/kernel/{net}/0.3"] > 0.5 and found[f"gain/{net}/0.3"] > 0.02
    assert found["unfinished"] == 0


def test_a_scale_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="scales"):
        make_analysis("rich_lazy", {"scales": [0.0]})
