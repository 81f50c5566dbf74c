"""The `tune` table of a claim: what is tried for the baseline and, in as many settings, for the method.

```toml
[tune]
by = "evaluate/mean:area"    # the reading that decides, the same for both; the highest mean is taken
direction = "up"             # or "down"
baseline = {"part.policy.optimiser.lr" = [5e-4, 1e-3, 2e-3], "part.policy.terms.kl.weight" = [0.0, 0.01, 0.1]}
method = {"part.policy.optimiser.lr" = [5e-4, 1e-3, 2e-3], "part.policy.terms.loss.fraction" = [0.01, 0.02, 0.04]}
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.curve import Reading

MOST = 16  # settings of an arm
SIDES = (BASELINE, METHOD)
Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Tune:
    """The `tune` table of a claim."""

    by: str
    """Metric and reading that decides, such as `evaluate/mean:area`."""
    baseline: Grid
    """Dotted key -> values to try, for the baseline."""
    method: Grid
    """Dotted key -> values to try, for the method; as many settings as for the baseline."""
    direction: Literal["up", "down"] = "up"
    """Whether the highest or the lowest mean is taken."""

    def __post_init__(self) -> None:
        Reading.of(self.by)
        sizes = {side: math.prod(map(len, getattr(self, side).values())) for side in SIDES}
        if sizes[BASELINE] != sizes[METHOD]:
            told = f"{sizes[BASELINE]} settings of the baseline and {sizes[METHOD]} of the method"
            raise ValueError(f"{told}: expected equal numbers")
        if not 1 < sizes[METHOD] <= MOST:
            raise ValueError(f"{sizes[METHOD]} settings for each arm: expected 2 to {MOST}")

    def list_settings(self, side: str) -> list[dict[str, Any]]:
        """Return every setting of a side's grid: dotted key -> value."""
        grid: Grid = getattr(self, side)
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
