"""Best of several short answers beside one long answer, at equal compute (Qin et al. 2025, arXiv 2504.07052)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shuhari.bounds import Count, Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.accuracy import estimate
from shuhari.kernel.coverage import compute_pass, note_failures
from shuhari.kernel.findings import AnalysisError, Answers, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.run_names import shorten

POINTS = 24  # budgets of the picture


@dataclass(frozen=True)
class Size:
    """What the compute of a transformer depends on: `weights`, `layers`, and the `width` of its hidden states."""

    weights: int
    layers: int
    width: int

    def count_flops(self, tokens: Array) -> Array:
        """Return F(T) = 2 N T + 2 L d T^2 for T tokens, [...]: the weights once a token, and attention."""
        out: Array = 2.0 * self.weights * tokens + 2.0 * self.layers * self.width * tokens**2
        return out


@register("run_analysis", "equal_compute")
@dataclass
class EqualCompute:
    """Whether the best of several short answers is more often right than one long answer, at equal compute.

    Give an even number of policies: the first half answers directly, the second half searches, in the same order
    (DIRECT@start DIRECT SEARCH@start SEARCH makes two pairs). An answer of T tokens costs F(T) = 2 N T + 2 L d T^2
    operations, of N weights, L layers and the width d. Numbers, of each pair: `short`, the chance in [0, 1] that one of
    n short answers is right (pass@n), where n short answers cost as much as the mean long one; `long`, the accuracy of
    one long answer; `gap`, short - long; `n`; `one short`, the accuracy of one short answer. The null of `gap` is a
    second draw from the direct policy, one answer against one. A best of n presumes a verifier that is never wrong.
    Intervals: bootstrap over problems.
    """

    n: Length = 64
    """Number of held-out problems."""
    samples: Length = 16
    """Answers that are drawn to each problem; n short answers must not be more."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""
    role: str = "policy"
    """Role whose size is counted."""
    layers: Count = 0
    """Number of layers, for a model that does not tell it; 0 reads it from the model."""
    width: Count = 0
    """Width of the hidden states, for a model that does not tell it; 0 reads it from the model."""

    reads: ClassVar[Reads] = "policies"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for an odd number of policies, and for a model of unknown size."""
        pairs, odd = divmod(len(given.names), 2)
        if odd or not pairs:
            raise AnalysisError(f"{len(given.names)} policies: expected as many that answer directly, then as many "
                                "that search")  # fmt: skip
        sizes = [self._read_size(given, i) for i in range(2 * pairs)]
        every = given.sample(self.n, self.samples, temperature=self.temperature)
        again = given.sample(self.n, self.samples, temperature=self.temperature, draw=1, which=list(range(pairs)))
        names, rng = shorten(given.names), given.draw_from("problems")
        numbers, rows, panels, notes = dict[str, Number](), [], dict[str, Panel](), note_failures(every)
        for i in range(pairs):
            short, long = every[i], every[pairs + i]
            costs = sizes[i].count_flops(short.lengths), sizes[pairs + i].count_flops(long.lengths)
            n = count_affordable(costs[0], float(costs[1].mean()))
            if n > self.samples:
                notes.append(f"{names[i]}: {n} short answers cost as much as a long one, and {self.samples} were "
                             f"drawn: set samples={n}")  # fmt: skip
                n = self.samples
            found = compare(short, long, again[i], n, rng)
            numbers |= {f"{key} of {names[pairs + i]}" if pairs > 1 else key: one for key, one in found.items()}
            rows.append((names[i], names[pairs + i], *(float(one.lengths.mean()) for one in (short, long)), n,
                         *(found[key].value for key in ("one short", "short", "long", "gap"))))  # fmt: skip
            panels[f"{names[i]}, {names[pairs + i]}"] = draw_budgets(short, long, *costs)
        heads = ("direct", "search", "tokens of a short answer", "of a long one", "n", "one short", "short", "long",
                 "gap")  # fmt: skip
        return Finding(numbers, panels, heads, rows, notes)

    def _read_size(self, given: Given, i: int) -> Size:
        with given.open(i) as opened:
            if self.role not in opened.models:
                raise AnalysisError(f"{opened.name} has no model {self.role!r}: it has {', '.join(opened.models)}")
            return read_size(opened.models[self.role], opened.name, self.layers, self.width)


def read_size(model: Any, name: str, layers: int = 0, width: int = 0) -> Size:
    """Return the size of a model, with the layers and the width that are given or that its configuration tells. Raises
    AnalysisError if neither does."""
    config = next((m.config for m in model.module.modules() if hasattr(m, "config")), None)
    layers = layers or getattr(config, "num_hidden_layers", 0)
    width = width or getattr(config, "hidden_size", 0)
    if not layers or not width:
        raise AnalysisError(f"{name} does not tell its layers and the width of its hidden states: set layers and width")
    return Size(sum(p.numel() for p in model.module.parameters()), int(layers), int(width))


def count_affordable(short: Array, budget: float) -> int:
    """Return how many short answers, of costs [n, samples], a budget pays on average: at least 1."""
    return max(1, int(budget / float(short.mean()) + 1e-9))


def compare(short: Answers, long: Answers, again: Answers, n: int, rng: np.random.Generator) -> dict[str, Number]:
    """Return the numbers of one pair: pass@n of the short answers beside the accuracy of a long one."""
    one, best = compute_pass(short.right, (1, n)).T if n > 1 else compute_pass(short.right, (1, 1))[:, [0, 0]].T
    searched, redrawn = compute_pass(long.right, (1,))[:, 0], compute_pass(again.right, (1,))[:, 0]

    return {
        "short": estimate(best, rng, "pass@n of direct answers"),
        "long": estimate(searched, rng, "accuracy of one answer that searches"),
        "gap": estimate(best - searched, rng, "short - long", float((one - redrawn).mean())),
        "n": Number(float(n), says="direct answers at the cost of one that searches"),
        "one short": estimate(one, rng, "accuracy of one direct answer"),
    }


def draw_budgets(short: Answers, long: Answers, cost: Array, long_cost: Array) -> Panel:
    """Return accuracy at each budget: pass@n of as many short answers as it pays, and long answers cut there, which are
    wrong if they had not ended."""
    most = min(float(long_cost.max()), float(cost.mean()) * short.right.shape[1])
    budgets = np.linspace(float(cost.mean()), max(most, float(cost.mean())), POINTS)
    ns = [min(count_affordable(cost, float(b)), short.right.shape[1]) for b in budgets]
    best = [float(compute_pass(short.right, (n,)).mean()) for n in ns]
    return Panel({"best of n direct answers": (budgets, np.array(best)),
                  "one answer that searches": (budgets, cut_at(long.right, long_cost, budgets))},
                 "operations", "share of problems solved")  # fmt: skip


def cut_at(right: Array, cost: Array, budgets: Sequence[float] | Array) -> Array:
    """Return the accuracy of answers [n, samples] at each budget, those that cost more being wrong."""
    graded = np.nan_to_num(right)
    return np.array([float((graded * (cost <= budget)).mean()) for budget in budgets])
