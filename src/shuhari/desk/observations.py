"""Observations as a user hands them to a policy: one, or a batch, checked against the space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shuhari.kernel.pack import dense


def parse_observations(given: Any, space: Any) -> tuple[Any, bool]:
    """Return (the input of a model's `sample`, whether it was a single observation), for one observation of a space or
    a batch of them. Raises ValueError if the shape or the keys do not fit the space."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        raise ValueError("an observation that is a tuple (.., {..}): reset() returns (observation, info): expected the "
                         "observation alone")  # fmt: skip
    if isinstance(given, Mapping) and hasattr(space, "spaces"):
        from shuhari.tasks.views import flatten  # imports Gymnasium, which text does not need

        parts = flatten(given)
        if parts.keys() != space.keys():
            raise ValueError(f"an observation of {', '.join(parts)}: expected {', '.join(space.keys())}")
        found = {k: parse_observations(parts[k], s) for k, s in space.items()}
        if len(singles := {single for _, single in found.values()}) > 1:
            names = ", ".join(parts)
            raise ValueError(f"parts of an observation with and without a batch axis: {names}: expected all alike")
        return {k: x for k, (x, _) in found.items()}, singles.pop()
    if isinstance(given, Mapping) or hasattr(space, "spaces"):
        raise ValueError(f"an observation {str(given)[:60]}: expected one of {space}")
    x = dense([np.asarray(given)])[0]
    if bool(x.isnan().any()):
        raise ValueError(f"an observation {str(given)[:60]}: expected numbers, and some are NaN")
    axes = len(space.shape or ())
    if x.dim() not in (axes, axes + 1) or tuple(x.shape[x.dim() - axes :]) != tuple(space.shape or ()):
        one = tuple(space.shape or ())
        batch = f"(n{''.join(f', {k}' for k in one)}{'' if one else ','})"
        raise ValueError(f"an observation of shape {tuple(x.shape)}: expected {one}, or {batch} for a batch of n")
    return (x[None], True) if x.dim() == axes else (x, False)
