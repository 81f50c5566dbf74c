"""Accuracy on fresh problems and on problems that a start has seen, and whether it can complete their questions (Wu et
al. 2025, arXiv 2507.10532)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, ProperShare, check
from shuhari.data import Array, Problem
from shuhari.kernel.accuracy import estimate, find_rates
from shuhari.kernel.coverage import note_failures
from shuhari.kernel.findings import AnalysisError, Finding, Given, Number, Opened, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.run_names import shorten


@register("run_analysis", "fresh_problems")
@dataclass
class FreshProblems:
    """Whether RL gains on fresh problems, or only on ones that its start has seen, and whether the start can complete
    their questions.

    The first run is the start; each other is compared with it. Numbers, of each other run: `fresh` and `seen`, by how
    much its accuracy in [0, 1] on either kind of problems is above the start's. The null of both is a second draw from
    the start. Of the start: `completed fresh` and `completed seen`, the share of questions of which it writes the rest
    exactly, greedily, after their first `cut`; the table has ROUGE-L of these completions. A start that completes
    questions that it should not know was trained on them. Intervals: bootstrap over problems.
    """

    fresh: str = "test"
    """Split of the problems that nobody has seen."""
    seen: str = "train"
    """Split of the problems that the start may have seen."""
    cut: ProperShare = 0.6
    """Share of a question, in characters, that is shown; the start writes the rest."""
    n: Length = 64
    """Number of problems of each split."""
    samples: Length = 8
    """Answers that are drawn to each problem."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a single policy, for what plays no text, and for a task without a split."""
        if len(given.names) < 2:
            raise AnalysisError("1 policy: expected a start, and what RL made of it")
        names, splits = shorten(given.names), {"fresh": self.fresh, "seen": self.seen}
        rng, numbers, notes = given.draw_from("problems"), dict[str, Number](), list[str]()
        rates: dict[str, list[Array]] = {}
        with given.open(0) as start:
            completed = {kind: self._complete_all(split, start) for kind, split in splits.items()}
        for kind, split in splits.items():
            sampled = partial(given.sample, self.n, self.samples, temperature=self.temperature, split=split)
            every, (again,) = sampled(), sampled(draw=1, which=[0])
            rates[kind] = [find_rates(one) for one in every]
            notes += note_failures(every)
            null = float((find_rates(again) - rates[kind][0]).mean())
            for i, rate in enumerate(rates[kind][1:], 1):
                key = f"{kind} of {names[i]}" if len(names) > 2 else kind
                numbers[key] = estimate(rate - rates[kind][0], rng, f"accuracy on {kind} problems, to the start", null)
        for kind, found in completed.items():
            numbers[f"completed {kind}"] = estimate(found[:, 0], rng, f"share of {kind} questions, by the start")
        means = {
            kind: np.array([float(rate.mean()) for rate in rates[kind]])
            for kind in splits
        }
        rows = [
            (name, *row)
            for name, row in zip(names, np.stack(list(means.values()), axis=1).tolist(), strict=True)
        ]
        exact, rouge = np.stack([found.mean(0) for found in completed.values()], axis=1).tolist()
        rows += [("questions completed", *exact), ("ROUGE-L of completions", *rouge)]
        place = np.arange(len(names))
        lines = {kind: (place, mean) for kind, mean in means.items()}
        return Finding(numbers, {"accuracy": Panel(lines, "run, in order", "accuracy", tuple(lines))},
                       ("run", *splits), rows, notes)  # fmt: skip

    def _complete_all(self, split: str, opened: Opened) -> Array:
        """Return [n, 2], of each question whether it is completed exactly, and ROUGE-L."""
        return np.array([self.complete(one, opened) for one in self._list_problems(split, opened)])

    def _list_problems(self, split: str, opened: Opened) -> list[Problem]:
        try:
            source = opened.ctx.task.problems(split)
        except (ValueError, LookupError) as error:
            raise AnalysisError(f"{opened.name}: {error}") from None
        size = source.size()
        return [source[i] for i in range(self.n if size is None else min(self.n, size))]

    def complete(self, problem: Problem, opened: Opened) -> tuple[float, float]:
        """Return (1.0 if the policy completes the question exactly, ROUGE-L in [0, 1]), for a question that is text.
        Raises AnalysisError for one that is not."""
        if not isinstance(problem.prompt, str):
            raise AnalysisError(f"{opened.name} reads messages: this analysis needs questions that are plain text")
        at, ctx = round(self.cut * len(problem.prompt)), opened.ctx
        shown, rest = problem.prompt[:at], problem.prompt[at:]
        sampling = replace(ctx.now(ctx.sampling), greedy=True, epsilon=0.0)
        key = (f"fresh problems {problem.task}/{problem.id}", "complete")
        (trace,) = ctx.wait(ctx.engine.sample("policy", ctx.encode(shown), sampling, 1, key=key))
        said = ctx.text(trace.action)[: len(rest)]
        return float(said == rest), find_rouge(said, rest)


def find_rouge(said: str, right: str) -> float:
    """Return ROUGE-L of two texts, character by character: the harmonic mean of the share of either that their longest
    common subsequence is; 0 if one is empty."""
    last = [0] * (len(right) + 1)
    for a in said:
        row = [0]
        for j, b in enumerate(right):
            row.append(last[j] + 1 if a == b else max(last[j + 1], row[j]))
        last = row
    return 2 * last[-1] / (len(said) + len(right)) if said and right else 0.0
