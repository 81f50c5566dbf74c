"""Which right answers RL keeps, loses and gains, and how varied its answers are (Wu et al. 2025, arXiv 2507.14843)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.accuracy import estimate, sample_beside_null
from shuhari.kernel.coverage import bootstrap, count_solved, name_each, note_failures
from shuhari.kernel.findings import Answers, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register


@register("run_analysis", "support")
@dataclass
class Support:
    """Whether RL stays within what its start could solve already: problems kept, lost and gained, and answer entropy.

    A problem is in the support of a policy if at least one of `samples` answers is right. The first run is the start;
    each other is compared with it on the same held-out problems, and a single run with where its last stage began.

    Numbers, of each other run, with P kept, S lost and E gained problems: `retention` P / (P + S); `discovery`
    E / (P + E); `change` (E - S) / (P + E + S), the net change of the support in [-1, 1]; `balance`, the harmonic mean
    of retention and discovery; `answer entropy`, the difference to the start in the entropy, in nats, of the texts that
    are drawn to a problem. The null of each is a second draw from the start: rare answers are lost and gained by
    chance. Intervals: bootstrap over problems.
    """

    n: Length = 64
    """Number of held-out problems."""
    samples: Length = 64
    """Answers that are drawn to each problem; a right answer rarer than about one in `samples` is outside the
    support."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for what plays no text."""
        start, later, again = sample_beside_null(given, self.n, self.samples, self.temperature)
        rng, numbers, rows = given.draw_from("problems"), dict[str, Number](), []
        before = compute_entropies(start)
        for one in later:
            found = compare_support(start, one, again, rng)
            gap, null = compute_entropies(one) - before, float((compute_entropies(again) - before).mean())
            found["answer entropy"] = estimate(gap, rng, "nats a problem, less the start's", null)
            numbers |= name_each(found, one.name, len(later))
            rows.append((one.name, *count_solved(start.right, one.right).values()))
        rows.append(("start, drawn again", *count_solved(start.right, again.right).values()))
        panel = Panel({one.name: _rank(one.right) for one in (start, *later)}, "problem, by its share of right answers",
                      "share of right answers")  # fmt: skip
        return Finding(numbers, {"right answers a problem": panel}, ("run", "kept", "lost", "gained", "unsolved"), rows,
                       note_failures((start, *later)))  # fmt: skip


def _rank(right: Array) -> tuple[Array, Array]:
    shares = np.sort(np.nan_to_num(right).mean(1))[::-1]
    return np.arange(len(shares)), shares


def compare_support(start: Answers, one: Answers, again: Answers, rng: np.random.Generator) -> dict[str, Number]:
    """Return the numbers of kept, lost and gained problems, with those of a second draw from the start as null."""
    found = {}
    for name, (of, says) in MEASURES.items():

        def read(i: Array, of: Callable[[Mapping[str, int]], float] = of) -> float:
            return of(count_solved(start.right[i], one.right[i]))

        null = of(count_solved(start.right, again.right))
        ends = bootstrap(read, len(start.ids), rng)
        found[name] = Number(of(count_solved(start.right, one.right)), *ends, null=null, says=says)
    return found


def compute_retention(of: Mapping[str, int]) -> float:
    """Return the share of the start's problems that are kept; NaN if it had none."""
    return of["kept"] / total if (total := of["kept"] + of["lost"]) else math.nan


def compute_discovery(of: Mapping[str, int]) -> float:
    """Return the share of the later policy's problems that are new; NaN if it has none."""
    return of["gained"] / total if (total := of["kept"] + of["gained"]) else math.nan


def compute_change(of: Mapping[str, int]) -> float:
    """Return the net change of the support over all problems that either solves; NaN if there is none."""
    total = of["kept"] + of["gained"] + of["lost"]
    return (of["gained"] - of["lost"]) / total if total else math.nan


def compute_balance(of: Mapping[str, int]) -> float:
    """Return the harmonic mean of retention and discovery; 0 if both are 0."""
    kept, new = compute_retention(of), compute_discovery(of)
    return 2 * kept * new / (kept + new) if kept + new else 0.0


MEASURES: dict[str, tuple[Callable[[Mapping[str, int]], float], str]] = {
    "retention": (compute_retention, "share of the start's problems that are kept"),
    "discovery": (compute_discovery, "share of its problems that are new"),
    "change": (compute_change, "gained less lost, of all that either solves"),
    "balance": (compute_balance, "harmonic mean of retention and discovery"),
}


def compute_entropies(answers: Answers) -> Array:
    """Return [n], the entropy in nats of the texts that were drawn to each problem; at most the logarithm of their
    number."""
    out = []
    for texts in answers.texts:
        shares = np.array(list(Counter(texts).values()), np.float64) / max(len(texts), 1)
        out.append(float(-(shares * np.log(shares)).sum()))
    return np.array(out)
