"""Rules about held-out scores: whether a stage leaves the policy worse than before.

A score in [0, 1] that is the mean of n problems has at most the variance p (1 - p) / n. Two scores of one policy thus
differ by chance by a few standard errors sqrt(2 p (1 - p) / n), with p their mean (the test of two proportions). This
holds for problems drawn anew; on the same problems, as in most evaluations, they differ by less.

Left out: returns, because a run does not store their variance; runs that did not record the scores at the start of
their stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, nan, sqrt

from shuhari.kernel.stats import UNGRADED
from shuhari.lab.diagnosis.evidence import Evidence
from shuhari.lab.diagnosis.rule import Rule

CLEAR = 3.0  # standard errors
LEAST = 0.1  # share of the score at the start; a smaller fall is ignored, whatever the number of problems


def find_start(e: Evidence, name: str) -> tuple[float, int] | None:
    """Return (a held-out score when the stage began, the number of problems averaged); None if unknown."""
    key, began = name.removeprefix("evaluate/"), e.began
    if not name.startswith("evaluate/") or key not in began.get("scores", {}) or not began["problems"].get(key):
        return None
    return float(began["scores"][key]), int(began["problems"][key])


def list_scores(e: Evidence, name: str) -> Iterator[tuple[int, float]]:
    """Yield (step, score) of the complete evaluations of a stage, in [0, 1]; not of those over a few episodes, or with
    many ungraded."""
    gone = [None] * len(e)
    rows = (e.columns.get(key, gone) for key in ("step", name, "evaluate/episodes", "evaluate/ungraded"))
    for step, score, few, ungraded in zip(*rows, strict=True):
        if few is None and (ungraded or 0) <= UNGRADED and score is not None and isfinite(score) and 0 <= score <= 1:
            yield int(step), float(score)


def measure_noise(p: float, q: float, n: int) -> float:
    """Return the standard error of the difference of two scores of one policy on n problems."""
    mean = (p + q) / 2
    return sqrt(2 * mean * (1 - mean) / n)


def fall(e: Evidence, name: str) -> float:
    """how many standard errors the last two evaluations lie below the start of the stage, by the better one"""
    found = [score for _, score in list_scores(e, name)]
    start = find_start(e, name)
    if start is None or not found:
        return nan
    return _fall(max(found[-2:]), *start)


def _fall(score: float, start: float, n: int) -> float:
    return (start - score) / measure_noise(start, score, n) if start - score > LEAST * start else 0.0


def describe_fall(e: Evidence, name: str) -> str:
    """Return a sentence on how far a score fell, and since which step it is below the start."""
    start = find_start(e, name)
    if start is None:
        return ""
    began, n = start
    found = list(list_scores(e, name))
    since = found[-1][0]
    for step, score in reversed(found):
        if _fall(score, began, n) <= CLEAR:
            break
        since = step
    last = " and ".join(f"{score:.3g} (step {step})" for step, score in found[-2:])
    error = measure_noise(began, max(score for _, score in found[-2:]), n)
    told = f"It was {began:.3g} as the stage began and is {last}, below since step {since}"
    return f"{told}; the standard error of such a difference is {error:.2g}, of {n} problems."


RULES = (
    *(
        Rule(
            name,
            reads,
            fall,
            (-inf, CLEAR),
            "the stage makes the policy worse at what is held out than it was as the stage began",
            "a smaller part.policy.optimiser.lr, fewer part.policy.epochs, a KL term to a reference "
            "(part.policy.terms.divergence), a larger rollout.n or buffer.size; if another reward is trained than the "
            "one that fell, look at what earns it: shuhari show RUN --rollouts. The weights of the best step are kept "
            "(`RUN@best`)",
            tells=describe_fall,
        )
        for name, reads in (("score-falls", "evaluate/greedy"), ("accuracy-falls", "evaluate/*/accuracy"))
    ),
    Rule(
        "own-score-falls",
        "evaluate/greedy.score",
        fall,
        (-inf, CLEAR),
        "another reward is trained and measured, and the task's own score falls meanwhile: it may be earned by what "
        "the task does not want",
        "look at what earns it: shuhari show RUN --rollouts; a weight for the score (reward.weights.score), another "
        "grader; evaluate.measure = 'score' has the best step kept by the score",
        tells=describe_fall,
    ),
)
