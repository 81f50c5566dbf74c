"""Whether RL was trained on a problem, by how alike two greedy answers are uncertain (Self-Critique, Tao et al. 2025,
arXiv 2510.09259), beside the likelihood of the answer and Min-K %.

Left out: Recall and CDD, two other detectors of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from shuhari.bounds import Length, ProperShare, check
from shuhari.data import Array, Problem, Request, is_tokens
from shuhari.kernel.coverage import LEVEL
from shuhari.kernel.findings import AnalysisError, Finding, Given, Number, Opened, Panel, Reads
from shuhari.kernel.registry import register

DETECTORS = {
    "self critique": "likeness of the entropies of two answers",
    "likelihood": "mean log-probability of the greedy answer",
    "min k": "mean log-probability of its least likely tokens",
}


@register("run_analysis", "contamination")
@dataclass
class Contamination:
    """Whether a policy was trained with RL on given problems: how well detectors tell them from held-out ones.

    The policy answers each problem greedily, then is asked to answer in another way, below its first answer. If RL has
    collapsed its answers there, both answers are uncertain at like places: the score is the cosine of their entropies a
    token, times the ratio of their lengths. Numbers, of each detector: the area under the ROC curve in [0, 1], of
    problems of `members` against problems of `others`; 1/2 tells nothing. The null is the same of the start of the run:
    problems may differ in difficulty by themselves. Intervals: bootstrap over problems. One run is given, or the start
    and then the run.
    """

    n: Length = 64
    """Number of problems of each split."""
    members: str = "train"
    """Split whose problems the run was trained on."""
    others: str = "test"
    """Split whose problems it was not trained on."""
    critique: str = "Now solve it in a different way."
    """What follows the first answer; of a model without a chat template it is the prompt again."""
    lowest: ProperShare = 0.2
    """Share of an answer's tokens that Min-K % averages, the least likely ones, at least one."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)
        if self.members == self.others:
            raise ValueError(f"members and others are both {self.others!r}: expected two splits")

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a policy that acts, and for a task without one of the splits."""
        if len(given.names) != 2:
            raise AnalysisError(f"{len(given.names)} policies: expected a run, or its start and the run")
        found = [self._measure(given, i) for i in range(2)]
        rng, numbers = given.draw_from("problems"), dict[str, Number]()
        for name, says in DETECTORS.items():
            start, (members, others) = found[0][name], found[1][name]
            sizes = len(members), len(others)
            draws = [find_auc(rng.choice(members, sizes[0]), rng.choice(others, sizes[1])) for _ in range(1000)]
            low, high = np.quantile(draws, LEVEL).tolist()
            value, null = find_auc(members, others), find_auc(*start)
            numbers[name] = Number(value, low, high, null, f"AUC of the {says}")
        members, others = found[1]["self critique"]
        lines = {"trained on": _accumulate(members), "not trained on": _accumulate(others)}
        return Finding(numbers, {"self critique": Panel(lines, "score", "share of problems below")})

    def _measure(self, given: Given, i: int) -> dict[str, tuple[Array, Array]]:
        """Return detector -> (scores of members, scores of others)."""
        given.note(f"asking {given.names[i]} twice about {2 * self.n} problems")
        scores: dict[str, list[list[float]]] = {name: [] for name in DETECTORS}
        with given.open(i) as opened:
            if opened.ctx.task.spaces() is not None:
                raise AnalysisError(f"{opened.name} answers with actions: this analysis needs one that writes text")
            for split in (self.members, self.others):
                rows = [self.measure_problem(problem, opened) for problem in self._list_problems(split, opened)]
                for name in DETECTORS:
                    scores[name].append([row[name] for row in rows])
        return {name: (np.array(both[0]), np.array(both[1])) for name, both in scores.items()}

    def _list_problems(self, split: str, opened: Opened) -> list[Problem]:
        try:
            source = opened.ctx.task.problems(split)
        except (ValueError, LookupError) as error:
            raise AnalysisError(f"{opened.name}: {error}") from None
        size = source.size()
        return [source[i] for i in range(self.n if size is None else min(self.n, size))]

    def measure_problem(self, problem: Problem, opened: Opened) -> dict[str, float]:
        """Return the score of each detector for one problem; higher means rather trained on."""
        ctx = opened.ctx
        context = ctx.encode(problem.prompt)
        first, entropies, logs = answer(context, problem, ctx, "first")
        again = self._ask_again(problem, context, first, ctx)
        _, later, _ = answer(again, problem, ctx, "second")
        least = np.sort(logs)[: max(1, round(self.lowest * len(logs)))]
        return {"self critique": compare_profiles(entropies, later), "likelihood": float(logs.mean()),
                "min k": float(least.mean())}  # fmt: skip

    def _ask_again(self, problem: Problem, context: Any, first: Any, ctx: Any) -> Any:
        if isinstance(problem.prompt, str) or is_tokens(problem.prompt):
            return np.concatenate([context, first, context])
        turns: Any = problem.prompt
        said = {"role": "assistant", "content": ctx.text(first)}
        return ctx.encode([*turns, said, {"role": "user", "content": self.critique}])


def answer(context: Any, problem: Problem, ctx: Any, name: str) -> tuple[Any, Array, Array]:
    """Return (tokens, entropies, log-probabilities) of the greedy answer to a context of tokens."""
    sampling = replace(ctx.now(ctx.sampling), greedy=True, epsilon=0.0)
    request = Request(problem, 1, sampling)
    key = (f"contamination {problem.task}/{problem.id}", name)
    (trace,) = ctx.wait(ctx.engine.sample("policy", context, request.sampling, 1, key=key))
    found: Mapping[str, Any] = ctx.wait(ctx.engine.score("policy", context, trace.action, ["entropy", "log_prob"]))
    return trace.action, np.asarray(found["entropy"], np.float64), np.asarray(found["log_prob"], np.float64)


def compare_profiles(first: Array, second: Array) -> float:
    """Return cos(e1, e2) min(n1, n2) / max(n1, n2) of two sequences of entropies, the shorter one filled with zeros; 0
    if one is empty or all zeros."""
    n = max(len(first), len(second))
    a, b = np.zeros(n), np.zeros(n)
    a[: len(first)], b[: len(second)] = first, second
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size * min(len(first), len(second)) / n if size else 0.0


def find_auc(members: Sequence[float] | Array, others: Sequence[float] | Array) -> float:
    """Return the chance that a member's score is above another's, a tie counting half."""
    a, b = np.asarray(members)[:, None], np.asarray(others)[None]
    return float(((a > b) + 0.5 * (a == b)).mean())


def _accumulate(scores: Array) -> tuple[Array, Array]:
    return np.sort(scores), np.arange(1, len(scores) + 1) / len(scores)
