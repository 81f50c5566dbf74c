"""Types of analyses: what they are given, and what they find. `shuhari analyze` calls them; the loop uses none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from shuhari.data import EMPTY, Array, nearest

NAN = math.nan
START = "@start"  # ends the name of a run: the checkpoint from which its last stage began


class AnalysisError(ValueError):
    """An analysis that cannot be done with what was given; the message names what to give or to record."""


@dataclass(frozen=True)
class Number:
    """A number that was found, with its 95 % interval if it has one.

    `null`: its value if there is no effect by construction, such as for a redraw of the same model; NaN if that was not
    measured. `says`: what it is, in a phrase, with its unit."""

    value: float
    low: float = NAN
    high: float = NAN
    null: float = NAN
    says: str = ""


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel of the picture: `lines`, label -> (x, y), with the labels of both axes; `dots`: those of `lines` that are
    drawn as points; `logarithmic`: the axes that are ("x", "y")."""

    lines: Mapping[str, tuple[Array, Array]]
    x: str = "step"
    y: str = ""
    dots: tuple[str, ...] = ()
    logarithmic: str = ""


@dataclass(frozen=True, eq=False)
class Finding:
    """What an analysis has found: numbers by name, a table if there is more to show, panels to draw, and notes on what
    limits the numbers."""

    numbers: Mapping[str, Number]
    panels: Mapping[str, Panel] = field(default=EMPTY)
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Curves:
    """The metrics of one run, of whatever program: column -> values of equal length, None if a row has none.

    `kind`: "run" (of shuhari), "trainer" (`trainer_state.json`), "progress" and "monitor" (of Stable-Baselines3),
    "table" (CSV or Parquet). `axis`: the column that its rows are in order of. `arm`: what it is one of several runs
    of, "" if unknown; `facts`: what else is known of it, such as its seed and task."""

    name: str
    path: Path
    kind: str
    columns: Mapping[str, Sequence[Any]]
    axis: str = "step"
    arm: str = ""
    facts: Mapping[str, str] = field(default=EMPTY)

    def read(self, metric: str, over: str = "") -> tuple[Array, Array]:
        """Return (x, y) of a metric, at the rows that have a finite number of both. over: the column of x (default: the
        axis). Raises AnalysisError with the nearest column if there is no such metric, or no value of it."""
        over = over or self.axis
        for name in (metric, over):
            if name not in self.columns:
                raise AnalysisError(f"{self.name} has no column {name!r}; {nearest(name, self.columns)}")
        rows = zip(self.columns[over], self.columns[metric], strict=True)
        pairs = [(float(x), float(y)) for x, y in rows if _is_number(x) and _is_number(y)]
        if not pairs:
            raise AnalysisError(f"{self.name} has no number in the column {metric!r}: expected one a row")
        found = np.array(pairs)
        return found[:, 0], found[:, 1]

    def select_last(self, over: str = "") -> Curves:
        """Return the rows of the last stage alone, with the column `over` (default: the axis) counted from the
        beginning of the stage; a run without stages as it is."""
        over = over or self.axis
        stages = self.columns.get("stage", ())
        rows = [i for i, stage in enumerate(stages) if stage == stages[-1]]
        if len(rows) == len(stages) or over not in self.columns:
            return self
        columns: dict[str, list[Any]] = {}
        for name, values in self.columns.items():
            columns[name] = [values[i] for i in rows]
        begun = next((x for x in reversed(self.columns[over][: rows[0]]) if _is_number(x)), 0.0)
        columns[over] = [x - begun if _is_number(x) else x for x in columns[over]]
        return replace(self, columns=columns)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, eq=False)
class Answers:
    """Sampled answers of one policy to held-out problems: `ids` and `prompts` [n], `texts` [n][samples] and `right`
    [n, samples], in {0, 1}, NaN if an answer was not graded; `lengths` [n, samples], in tokens."""

    name: str
    ids: Sequence[str]
    prompts: Sequence[str]
    texts: Sequence[Sequence[str]]
    right: Array
    lengths: Array


@dataclass(frozen=True)
class Opened:
    """A policy that is open: its `name`, the context of its task, and the models of its roles by name."""

    name: str
    ctx: Any
    models: Mapping[str, Any]


class Given(Protocol):
    """What the user named, in order, and ways to read, play and open it.

    `names`: of what was given. `seed`: of all draws. If the first run must be the start of the others, the docstring of
    the analysis states it."""

    names: tuple[str, ...]
    seed: int

    def draw_from(self, name: str) -> np.random.Generator:
        """Return a generator of the stream `name`, the same for the same seed."""
        ...

    def read_curves(self) -> list[Curves]:
        """Return the curves of each run, of whatever program."""
        ...

    def sample(
        self, n: int, samples: int, *, temperature: float = 1.0, draw: int = 0, which: Sequence[int] | None = None,
        split: str = "",
    ) -> list[Answers]:  # fmt: skip
        """Return sampled answers of each policy (or of those at the places `which`) to the same `n` problems.

        `draw`: another number gives other samples of the same policies. `split`: of the problems (default: the
        held-out ones). Raises AnalysisError for curves without a policy, and for policies that do not write text."""
        ...

    def open(self, i: int) -> AbstractContextManager[Opened]:
        """Open the policy at place `i`, read-only. Raises AnalysisError for curves without a policy."""
        ...

    def repeat(self, i: int) -> Curves:
        """Train the run at place `i` again, by the recipe that it has stored, in a folder that is removed then, and
        return its curves. Raises AnalysisError for what is no run."""
        ...

    def note(self, text: str) -> None:
        """Show what is being done."""
        ...


Reads = Literal["curves", "policies"]  # what an analysis needs: its class attribute `reads`; if it also has
# `from_start`, a single run is given with its start before it


def ignore(_: str) -> None:
    """Show nothing."""
