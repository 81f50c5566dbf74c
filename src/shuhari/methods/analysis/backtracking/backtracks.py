"""How often policies backtrack, and whether those that do are better after the same RL (Cai et al. 2025, arXiv
2505.24273)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.accuracy import estimate, find_rates
from shuhari.kernel.coverage import note_failures
from shuhari.kernel.findings import START, Answers, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.run_names import find_starts, shorten


@register("run_analysis", "backtracks")
@dataclass
class Backtracks:
    """How many backtracks answers have, and how right they are, for runs that were taught different numbers of them.

    A run RUN whose start RUN@start is given too is compared with it. Numbers, of each run: `right`, the accuracy in
    [0, 1]; `gain`, to its start; `better`, to the first run that is no start; `backtracks` and `tokens`, means of an
    answer. `best`: the backtracks of an answer, at the start, of the run with the highest accuracy. The null of
    `better` is a second draw from the first run. All answer the same held-out problems. Intervals: bootstrap over
    problems.
    """

    marker: str = r"(?i)\b(wait|alternatively|go back|let me try|try again)\b"
    """Regular expression of a backtrack; each place that it matches in an answer is one."""
    n: Length = 64
    """Number of held-out problems."""
    samples: Length = 8
    """Answers that are drawn to each problem."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)
        try:
            re.compile(self.marker)
        except re.error as error:
            raise ValueError(f"marker {self.marker!r}: {error}: expected a regular expression") from None

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for what plays no text."""
        every = given.sample(self.n, self.samples, temperature=self.temperature)
        names, starts = shorten(given.names), find_starts(given.names)
        runs = [i for i, name in enumerate(given.names) if not name.endswith(START)] or list(range(len(every)))
        first, rng = runs[0], given.draw_from("problems")
        (again,) = given.sample(self.n, self.samples, temperature=self.temperature, draw=1, which=[first])
        right = [find_rates(one) for one in every]
        taught = [float(self.count(one).mean()) for one in every]
        numbers, rows = dict[str, Number](), []
        for i in runs:
            begun = starts.get(i)
            found = {"right": estimate(right[i], rng, "accuracy")}
            if begun is not None:
                found["gain"] = estimate(right[i] - right[begun], rng, "accuracy, to the start")
            if i != first:
                null = float(find_rates(again).mean() - right[first].mean())
                found["better"] = estimate(right[i] - right[first], rng, f"accuracy, to {names[first]}", null)
            found["backtracks"] = Number(taught[i], says="of an answer")
            found["tokens"] = Number(float(every[i].lengths.mean()), says="of an answer")
            numbers |= {f"{key} of {names[i]}" if len(runs) > 1 else key: number for key, number in found.items()}
            at = i if begun is None else begun
            rows.append((names[i], taught[at], float(right[at].mean()), float(right[i].mean()), taught[i],
                         float(every[i].lengths.mean())))  # fmt: skip
        if len(runs) > 1:
            best = max(rows, key=lambda row: row[3])
            numbers["best"] = Number(best[1], says="backtracks of an answer at the start of the most accurate run")
        x, start, end = np.array([row[1:4] for row in sorted(rows, key=lambda row: row[1])]).T
        lines = {"start": (x, start), "end": (x, end)}
        heads = ("run", "backtracks at the start", "right at the start", "right", "backtracks", "tokens")
        panel = Panel(lines, "backtracks of an answer at the start", "accuracy", ("end",))
        return Finding(numbers, {"accuracy": panel}, heads, rows, note_failures(every))  # fmt: skip

    def count(self, one: Answers) -> Array:
        """Return [n, samples], the number of backtracks of each answer."""
        def find(text: str) -> int:
            return len(list(re.finditer(self.marker, text)))

        return np.array([list(map(find, texts)) for texts in one.texts])
