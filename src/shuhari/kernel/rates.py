"""Usual learning rates of pretrained models, with Adam and its relatives."""

from __future__ import annotations

WHOLE, ADAPTED = 1e-5, 2e-4  # of all weights, and of adapters
FAR = 10.0  # times the usual, from where on a rate is told


def find_usual(*, adapted: bool) -> float:
    """Return the usual learning rate of adapters, or of all weights."""
    return ADAPTED if adapted else WHOLE
