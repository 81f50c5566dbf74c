"""The action that a trained ReLU network rates best among those that satisfy linear constraints, by a mixed-integer
programme (Xu et al., "Reinforcement learning with combinatorial actions for coupled restless bandits", 2025, section 4,
after Dumouchelle et al., "Neur2SP", 2022; solved by HiGHS).

Left out: other activations, and bounds of units tighter than those of intervals.

Axes: `J` bits of an action, `E` helper bits, `C` constraints, `F` listed actions, `m` units of a layer, `n` variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from shuhari.data import Array

Layer = tuple[Array, Array]  # weights [m, inputs], biases [m]


@dataclass(frozen=True, eq=False)
class Coupling:
    """Which actions a in {0, 1}^J are feasible: those for which helper bits e in {0, 1}^E exist with matrix (a, e) <=
    most.

    matrix: [C, J + E]; most: [C]; bits: J; listed: [F, J], all feasible actions, None if they are too many.
    """

    matrix: Array
    most: Array
    bits: int
    listed: Array | None = None


def maximise(layers: Sequence[Layer], coupling: Coupling) -> tuple[Array, float]:
    """Returns (the action [J] of bits that a network rates best among the feasible ones, its value).

    layers: each (weights, biases), the first of J inputs, the last of one output; all but the last have ReLUs. A unit
    with input x is x = h - g, 0 <= h <= M+ (1 - z), 0 <= g <= M- z, with a bit z, so that h is its output. M+ and M-
    are the largest and the negative of the smallest x for inputs within their bounds. Raises ValueError if no action is
    feasible, RuntimeError if the solver stops for another reason.
    """
    units = [len(bias) for _, bias in layers[:-1]]
    first, n = coupling.matrix.shape[1], coupling.matrix.shape[1] + 3 * sum(units)
    low, high, whole = np.zeros(n), np.ones(n), np.zeros(n)
    whole[:first] = 1
    rows = [np.pad(coupling.matrix, ((0, 0), (0, n - first)))]
    least, most = [np.full(len(coupling.most), -np.inf)], [coupling.most]
    inputs, at = np.arange(coupling.bits), first
    for weights, bias in layers[:-1]:
        m, i = len(bias), np.arange(len(bias))
        h, g, z = at + i, at + m + i, at + 2 * m + i
        up, down = np.maximum(weights, 0), np.minimum(weights, 0)
        top = up @ high[inputs] + down @ low[inputs] + bias
        bottom = up @ low[inputs] + down @ high[inputs] + bias
        high[h], high[g] = np.maximum(top, 0), np.maximum(-bottom, 0)
        whole[z], high[z], low[z] = 1, bottom < 0, top <= 0  # a unit that is always on or off needs no choice
        row = np.zeros((3 * m, n))
        row[:m, inputs] = weights
        row[i, h], row[i, g] = -1, 1
        row[m + i, h], row[m + i, z] = 1, high[h]
        row[2 * m + i, g], row[2 * m + i, z] = 1, -high[g]
        rows.append(row)
        least.append(np.concatenate([-bias, np.full(2 * m, -np.inf)]))
        most.append(np.concatenate([-bias, high[h], np.zeros(m)]))
        inputs, at = h, at + 3 * m
    weights, bias = layers[-1]
    gain = np.zeros(n)
    gain[inputs] = -weights[0]
    limits = LinearConstraint(np.concatenate(rows), np.concatenate(least), np.concatenate(most))
    found = milp(gain, constraints=limits, integrality=whole, bounds=Bounds(low, high), options={"mip_rel_gap": 0.0})
    if found.status == 2:
        raise ValueError("no action is feasible: expected constraints that at least one action satisfies")
    if found.x is None:
        raise RuntimeError(f"the mixed-integer programme was not solved: {found.message}")
    return found.x[: coupling.bits].round(), float(bias[0] - found.fun)
