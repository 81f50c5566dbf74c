"""Compares the samples that two algorithms need to solve several tables, and whether they find the same ones hard.

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
from shuhari.data import EMPTY, Info, code, nearest
from shuhari.kernel.registry import register
from shuhari.ports import Runs, ability


@register("study", "horizons")
@dataclass
class Horizons:
    """Compares how many samples two algorithms need on each of several environments, and whether they find the same
    ones hard.

    Each table (an environment with its transitions) has its own seed, which is also its `layout`. The fastest of an
    arm's runs counts. A run ends once `measure` reaches `solved`, at a cost of its `env_steps` so far; if it never
    does, the cost is the run's budget.

    Yields a row per table: `study/<arm>`, the base-10 logarithm of its cost; `study/size`, that of the number `size` of
    its runs. From the third on, over all tables so far: `study/spearman`, the rank correlation of the first arm with
    the second, `study/spearman_size`, that of the size with the second, `study/spearman_<last part of the key>` that of
    each setting in `known`, and `study/unsolved`, the share of tables that some arm did not solve. Raises ValueError
    for contexts with different numbers of values, for a `known` setting that is none of them, or unless there are two
    arms.
    """

    contexts: Mapping[str, tuple[Any, ...]]
    """Setting -> its value in each table; several settings change together."""
    arms: Mapping[str, tuple[Mapping[str, Any], ...]] = EMPTY
    """Name of each of the two algorithms -> the settings of its runs, the fastest of which counts."""
    measure: str = "evaluate/table.share"
    """Name of the reported number that decides whether a table is solved."""
    size: str = "evaluate/table.states"
    """Name of the reported number that is the size of a table, such as its number of states."""
    solved: float = 0.9
    """Smallest value of `measure` for a solved table."""
    known: tuple[str, ...] = ()
    """Settings in `contexts` whose own rank correlation with the second arm is reported beside, such as the distance of
    a goal."""

    def __post_init__(self) -> None:
        check(self)
        if len({len(x) for x in self.contexts.values()}) != 1 or len(self.arms) != 2:
            sizes = {k: len(x) for k, x in self.contexts.items()}
            raise ValueError(f"horizons: contexts of {sizes} values and arms {list(self.arms)}: expected as many values"
                             " of each, and two arms")  # fmt: skip
        for key in self.known:
            if key not in self.contexts:
                near = nearest(key, self.contexts)
                raise ValueError(f"horizons: known is {key!r}: expected one of the contexts; {near}")

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
                row |= {f"study/spearman_{key.rpartition('.')[2]}": _rank(list(self.contexts[key][: len(y)]), y)
                        for key in self.known}  # fmt: skip
                row |= {"study/unsolved": sum(t["unsolved"] for t in tables) / len(tables)}
            yield row

    def _go_on(self, runs: Runs, name: str, settings: Mapping[str, Any]) -> Iterator[Info]:
        """Yields the reports of a run until it has solved its table."""
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
    """Returns Spearman's correlation; 0 if one of them is constant."""
    return float(spearmanr(x, y).statistic) if len(set(x)) > 1 < len(set(y)) else 0.0
