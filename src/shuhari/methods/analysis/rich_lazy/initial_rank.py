"""Whether the rank of initial weights decides how far training moves features: two-layer networks from initial weights
of one norm and several ranks (How connectivity structure shapes rich and lazy learning in neural circuits, Liu et al.
2024, arXiv 2310.08513). Left out: recurrent networks and measured connectivity.

Axes: `N` networks that train side by side; `E` examples; `I` inputs; `H` hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from scipy.stats import spearmanr

from shuhari.bounds import Length, Positive, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register

INPUTS, HIDDEN, EXAMPLES, PROBES = 16, 32, 64, 64
RANKS = (1, 2, 4, 8, 16)
RATE = 0.02  # of gradient descent, over the largest curvature at the start: near the gradient flow
Net = Literal["linear", "tanh"]
NETS: tuple[Net, ...] = ("linear", "tanh")


@register("analysis", "rich_lazy")
@dataclass
class RichLazy:
    """Whether networks from initial weights of low rank change their features more than those from high rank, at equal
    norm and to equal loss; two-layer networks are trained by gradient descent, apart from the library's loop.

    The hidden weights begin as a Gaussian matrix of which the largest 1, 2, 4, 8 or 16 singular values are kept, scaled
    to one norm; the task is the regression of a linear function of 16 inputs. For networks `linear` and `tanh`, and
    each of `scales`: `spearman/<measure>/<net>/<scale>` is the rank correlation of the effective rank (participation
    ratio of the squared singular values) with a measure, over all networks but the aligned. Measures: `kernel`, the
    alignment of the tangent kernel after training with that before it, 1 if nothing but its size changed; `hidden`, the
    same of the hidden layer's Gram matrix; `moved`, the change of the hidden weights over their norm.
    `kernel/<rank>/<net>/<scale>` is the mean alignment at rank 1, 16, and `aligned`, rank 1 along the task's own
    direction; `gain/<net>/<scale>` is that of `aligned` less that of rank 1. `unfinished`: networks that did not reach
    the loss.
    """

    draws: Length = 3
    """Number of tasks, with one network of each kind, rank and scale."""
    scales: tuple[Positive, ...] = (1.0, 0.3)
    """Factors on both layers' usual initial weights, whose variance is 1 / inputs of the layer."""
    loss: ProperShare = 0.02
    """Share of the targets' mean square at which training stops."""
    steps: Length = 20_000
    """Most steps of gradient descent."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng, values, unfinished = np.random.default_rng([seed, 117]), dict[tuple[str, ...], list[Array]](), 0
        effective = list[list[float]]()
        for _ in range(self.draws):
            inputs = rng.standard_normal((EXAMPLES, INPUTS))
            direction = rng.standard_normal(INPUTS)
            targets = inputs @ (direction / np.linalg.norm(direction))
            start, left = rng.standard_normal((HIDDEN, INPUTS)), rng.standard_normal(HIDDEN)
            norm = HIDDEN**0.5
            aligned = rescale(np.outer(left, inputs.T @ targets), norm)
            first = np.stack([*(truncate(start, rank, norm) for rank in RANKS), aligned])
            effective.append([find_effective_rank(weights) for weights in first[:-1]])
            second = np.tile(rng.standard_normal(HIDDEN) / HIDDEN**0.5, (len(first), 1))
            probes = rng.standard_normal((PROBES, INPUTS))
            for net, scale in product(NETS, self.scales):
                before = (scale * first, scale * second)
                after, done = train(net, *before, inputs, targets, self.loss, self.steps)
                unfinished += int((~done).sum())
                for measure, found in compare(net, before, after, probes).items():
                    values.setdefault((measure, net, f"{scale:g}"), []).append(found)
        return sum_up(values, np.array(effective)) | {"unfinished": float(unfinished)}


def sum_up(values: Mapping[tuple[str, ...], list[Array]], effective: Array) -> dict[str, float]:
    """Return numbers by name, of measures by (measure, net, scale): for each draw, of networks by rank and of the
    aligned one. effective: effective ranks, [draws, ranks]."""
    out: dict[str, float] = {}
    for (measure, *place), each in values.items():
        end, found = "/".join(place), np.stack(each)  # [draws, ranks + 1]
        out[f"spearman/{measure}/{end}"] = float(spearmanr(effective.ravel(), found[:, :-1].ravel()).statistic)
        if measure == "kernel":
            low, *_, high, aligned = found.mean(0)
            out |= {f"kernel/{RANKS[0]}/{end}": float(low), f"kernel/{RANKS[-1]}/{end}": float(high)}
            out |= {f"kernel/aligned/{end}": float(aligned), f"gain/{end}": float(aligned - low)}
    return out


# ------------------------------------------------------------------------------------------------ initial weights


def rescale(matrix: Array, norm: float) -> Array:
    """Return a matrix scaled to a Frobenius norm."""
    out: Array = matrix * (norm / np.linalg.norm(matrix))
    return out


def truncate(matrix: Array, rank: int, norm: float) -> Array:
    """Return the part of a matrix with its `rank` largest singular values, scaled to a Frobenius norm."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    return rescale((u[:, :rank] * s[:rank]) @ v[:rank], norm)


def find_effective_rank(matrix: Array) -> float:
    """Return the participation ratio of the squared singular values, (sum s^2)^2 / sum s^4."""
    square = np.linalg.svd(matrix, compute_uv=False) ** 2
    return float(square.sum() ** 2 / (square**2).sum())


# ------------------------------------------------------------------------------------------------ networks


def forward(net: Net, first: Array, inputs: Array) -> tuple[Array, Array]:
    """Return (hidden units, their slopes), [N, E, H] each, of hidden weights [N, H, I]."""
    x = inputs @ first.swapaxes(-1, -2)
    if net == "linear":
        return x, np.ones_like(x)
    hidden = np.tanh(x)
    return hidden, 1 - hidden**2


def find_kernel(net: Net, first: Array, second: Array, inputs: Array) -> Array:
    """Return the tangent kernels J J' of the outputs, [N, E, E], of both layers' weights [N, H, I] and [N, H]."""
    hidden, slopes = forward(net, first, inputs)
    back = slopes * second[:, None]
    out: Array = hidden @ hidden.swapaxes(-1, -2) + (inputs @ inputs.T) * (back @ back.swapaxes(-1, -2))
    return out


def train(
    net: Net, first: Array, second: Array, inputs: Array, targets: Array, loss: float, steps: int
) -> tuple[tuple[Array, Array], Array]:
    """Return (both layers' weights, whether the loss was reached [N]) after gradient descent on half the mean squared
    error. Each network stops at its first step with an error of at most `loss` times the targets' mean square."""
    first, second, n = first.copy(), second.copy(), len(inputs)
    curvature = np.linalg.eigvalsh(find_kernel(net, first, second, inputs))[:, -1] / n
    rate = RATE / curvature
    done = np.zeros(len(first), bool)
    for _ in range(steps):
        hidden, slopes = forward(net, first, inputs)
        error = np.einsum("neh,nh->ne", hidden, second) - targets
        done |= (error**2).mean(-1) <= loss * (targets**2).mean()
        if done.all():
            break
        step = (np.where(done, 0.0, rate) / n)[:, None] * error
        back = step[..., None] * slopes * second[:, None]
        first, second = first - back.swapaxes(-1, -2) @ inputs, second - np.einsum("neh,ne->nh", hidden, step)
    return (first, second), done


# ------------------------------------------------------------------------------------------------ measures


def align(a: Array, b: Array) -> Array:
    """Return the cosine of two matrices' entries, Tr(a b) / (|a| |b|), [N]; a and b are symmetric."""
    out: Array = (a * b).sum((-1, -2)) / (np.linalg.norm(a, axis=(-1, -2)) * np.linalg.norm(b, axis=(-1, -2)))
    return out


def compare(net: Net, before: tuple[Array, Array], after: tuple[Array, Array], probes: Array) -> dict[str, Array]:
    """Return by name how far networks moved, [N] each: alignment of tangent kernels and of hidden Gram matrices at
    `probes`, and the relative change of the hidden weights."""
    grams = [
        h @ h.swapaxes(-1, -2)
        for h in (
            forward(net, first, probes)[0]
            for first, _ in (before, after)
        )
    ]  # fmt: skip
    moved = np.linalg.norm(after[0] - before[0], axis=(-1, -2)) / np.linalg.norm(before[0], axis=(-1, -2))
    kernels = [find_kernel(net, *weights, probes) for weights in (before, after)]
    return {"kernel": align(*kernels), "hidden": align(*grams), "moved": moved}
