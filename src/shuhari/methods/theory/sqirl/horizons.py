"""How many samples two algorithms take to solve each of several tables, and whether they agree on which are hard.

Source: Laidlaw, Zhu, Russell and Dragan, "The Effective Horizon Explains Deep RL Performance in Stochastic
Environments" (2024), section 5: the rank correlation of SQIRL's samples with those of deep algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

from shuhari.bounds import check
from shuhari.data import EMPTY, Info, code
from shuhari.kernel.registry import register
from shuhari.ports import Runs, ability


@register("study", "horizons")
@dataclass
class Horizons:
    """Compares how many samples two algorithms need on each of several worlds, and whether they find the same ones
    hard.

    Each table (a world with its transitions) has a seed of its own, which is also its `layout`. Of an arm's runs the
    quickest counts. A run ends once `measure` is `solved`; it has then spent that many `env_steps`, and if it never
    does the run's budget.

    A row a table: `study/<arm>`, the logarithm to the base 10 of what it took; `study/size`, that of the number `size`
    of its runs. From the third on, of all tables so far: `study/spearman`, the rank correlation of the first arm with
    the second, `study/spearman_size`, that of the size with the second, and `study/unsolved`, the share of tables that
    some arm did not solve. ValueError for contexts of unlike numbers of values, or other than two arms.
    """

    contexts: Mapping[str, tuple[Any, ...]]
    """Setting -> its value in each table; several settings change together."""
    arms: Mapping[str, tuple[Mapping[str, Any], ...]] = EMPTY
    """Name of each of the two algorithms -> the settings of its runs, of which the quickest counts."""
    measure: str = "evaluate/table.share"
    """Name of the reported number by which a table is solved."""
    size: str = "evaluate/table.states"
    """Name of the reported number that is the size of a table, such as its number of states."""
    solved: float = 0.9
    """Value of `measure` from which on a table counts as solved."""

    def __post_init__(self) -> None:
        check(self)
        if len({len(x) for x in self.contexts.values()}) != 1 or len(self.arms) != 2:
            sizes = {k: len(x) for k, x in self.contexts.items()}
            raise ValueError(f"horizons: contexts of {sizes} values and arms {list(self.arms)}: expected as many values"
                             " of each, and two arms")  # fmt: skip

    def __call__(self, runs: Runs) -> Iterator[Info]:
        first, second = self.arms
        tables: list[dict[str, float]] = []
        for i in range(len(next(iter(self.contexts.values())))):
            layout = code(runs.seed, "table", i) % 2**31
            here = {**{k: x[i] for k, x in self.contexts.items()}, "seed": layout, "task.kwargs.layout": layout}
            took, unsolved, size = dict[str, float](), 0.0, 0.0
            for arm, settings in self.arms.items():
                spent = dict[str, tuple[float, bool]]()
                for j, more in enumerate(settings):
                    name = f"{arm}-{j}-{i}"
                    yield from self._go_on(runs, name, {**here, **more})
                    rows = [r for r in runs.reports(name) if r.get(self.measure) is not None]
                    done = next((r for r in rows if r[self.measure] >= self.solved), rows[-1])
                    spent[name] = done["spent/env_steps"], done[self.measure] >= self.solved
                    size = done[self.size]
                took[arm] = math.log10(min(x for x, _ in spent.values()))
                unsolved = max(unsolved, float(not any(ok for _, ok in spent.values())))
            tables.append({**took, "size": math.log10(size), "unsolved": unsolved})
            row = {f"study/{k}": x for k, x in tables[-1].items() if k != "unsolved"}
            if len(tables) > 2:
                x, y, z = (
                    [t[n] for t in tables]
                    for n in (first, second, "size")
                )
                row |= {"study/spearman": _rank(x, y), "study/spearman_size": _rank(z, y)}
                row |= {"study/unsolved": sum(t["unsolved"] for t in tables) / len(tables)}
            yield row

    def _go_on(self, runs: Runs, name: str, settings: Mapping[str, Any]) -> Iterator[Info]:
        """The reports of a run until it has solved its table."""
        run = runs.train(name, settings)
        try:
            if any((r.get(self.measure) or 0.0) >= self.solved for r in runs.reports(name)):
                return
            for report in run:
                yield report
                if report.get(self.measure, 0.0) >= self.solved:
                    return
        finally:
            ability(run, "close")()


def _rank(x: list[float], y: list[float]) -> float:
    """Spearman's correlation; 0 where one of them is all alike."""
    return float(spearmanr(x, y).statistic) if len(set(x)) > 1 < len(set(y)) else 0.0
