"""Pass@k of a start and of what RL made of it, and where the start catches up (Yue et al. 2025, arXiv 2504.13837).

Left out: the perplexity of the later policy's answers under the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.accuracy import estimate, sample_beside_null
from shuhari.kernel.coverage import (
    bootstrap,
    compute_pass,
    count_solved,
    find_crossing,
    list_budgets,
    name_each,
    note_failures,
)
from shuhari.kernel.findings import Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register


@register("run_analysis", "pass_at_k")
@dataclass
class PassAtK:
    """Where the start of RL catches up with what RL made of it, as the number of samples k grows.

    The first run is the start, such as RUN@start or the model that a run began with; each other is compared with it, on
    the same held-out problems. A single run is compared with where its last stage began.

    Numbers, of each other run: `pass@1` and `pass@<samples>`, the difference to the start in the unbiased pass@k of a
    problem, in [-1, 1]; `crossing`, the smallest k of 1, 2, 4, ... at which the start is at least as good, NaN if there
    is none; `lost` and `gained`, problems that only the start, or only the later policy, ever solves. The null of the
    others is a second draw from the start in the place of the later policy: problems that are solved rarely are lost
    and gained by chance; `crossing` has none, as two draws of one policy cross anywhere. Intervals: bootstrap over
    problems.
    """

    n: Length = 64
    """Number of held-out problems."""
    samples: Length = 64
    """Answers that are drawn to each problem, the largest k."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        start, later, again = sample_beside_null(given, self.n, self.samples, self.temperature)
        budgets, rng = list_budgets(self.samples), given.draw_from("problems")
        base, null = compute_pass(start.right, budgets), compute_pass(again.right, budgets)
        numbers: dict[str, Number] = {}
        lines: dict[str, tuple[Array, Array]] = {start.name: (np.array(budgets), base.mean(0)),
                                                "start, drawn again": (np.array(budgets), null.mean(0))}  # fmt: skip
        rows = []
        for one in later:
            curve = compute_pass(one.right, budgets)
            lines[one.name] = (np.array(budgets), curve.mean(0))
            found = self._compare(base, curve, null, budgets, rng)
            solved, chance = count_solved(start.right, one.right), count_solved(start.right, again.right)
            for key in ("lost", "gained"):
                found[key] = Number(solved[key], null=chance[key], says=f"of {len(start.ids)} problems")
            numbers |= name_each(found, one.name, len(later))
            means = zip(budgets, base.mean(0), curve.mean(0), strict=True)
            rows += [(one.name, k, float(before), float(after)) for k, before, after in means]
        panels = {"pass@k": Panel(lines, "k", "share of problems", logarithmic="x")}
        return Finding(numbers, panels, ("run", "k", "start", "run's"), rows, note_failures((start, *later)))

    def _compare(
        self, base: Array, curve: Array, null: Array, budgets: tuple[int, ...], rng: np.random.Generator
    ) -> dict[str, Number]:
        found = {}
        for j in (0, len(budgets) - 1):
            chance = float((null - base)[:, j].mean())
            gap = curve[:, j] - base[:, j]
            found[f"pass@{budgets[j]}"] = estimate(gap, rng, "more than the start's, a problem", chance)
        ends = bootstrap(lambda i: find_crossing(base[i], curve[i], budgets), len(base), rng)
        found["crossing"] = Number(find_crossing(base, curve, budgets), *ends, says="k at which the start is as good")
        return found

