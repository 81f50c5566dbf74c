"""Which formats a policy answers in, and whether RL leaves one of them (Echo Chamber, Zhao et al. 2025, arXiv
2504.07912)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import EMPTY, Array
from shuhari.kernel.accuracy import sample_beside_null
from shuhari.kernel.coverage import bootstrap, name_each, note_failures
from shuhari.kernel.findings import Answers, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register

OTHER = "other"
LONG = 40  # characters of a shape
SHAPES = ((re.compile(r"[^\W\d_]+"), "a"), (re.compile(r"\d+(?:[.,]\d+)*"), "0"), (re.compile(r"\s+"), " "))


@register("run_analysis", "formats")
@dataclass
class Formats:
    """Whether RL leaves one format of answers: the share of each, the largest share, and their entropy.

    The first run is the start; each other is compared with it on the same held-out problems, and a single run with
    where its last stage began. Give checkpoints of one run in order (RUN@start RUN@20 RUN@40 RUN) to see when it
    happens. Numbers, of each other run: `largest`, the share in [0, 1] of its most frequent format; `grew`, by how much
    that format's share rose from the start; `entropy`, of its shares, in nats; `entropy change`; if formats are named,
    `share/<format>` and `accuracy/<format>`, the share of its answers that are right, both in [0, 1]. The table has
    these of every format. The null is a second draw from the start: its own shares and accuracies, and a `grew` and
    `entropy change` near 0. Intervals: bootstrap over problems.
    """

    formats: Mapping[str, str] = field(default=EMPTY)
    """Format -> a regular expression that is searched in an answer, such as {code = "^def ", tag = "<tool>"}; the first
    that is found counts, and answers without any are `other`. Without formats, answers are classed by their shape:
    words become a, numbers 0, all else stays."""
    n: Length = 64
    """Number of held-out problems."""
    samples: Length = 16
    """Answers that are drawn to each problem."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)
        for name, pattern in self.formats.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"formats.{name} {pattern!r}: {error}: expected a regular expression") from None

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for what plays no text."""
        start, later, again = sample_beside_null(given, self.n, self.samples, self.temperature)
        every = [start, again, *later]
        classes = [self._classify_all(one) for one in every]
        names = list(dict.fromkeys(chain.from_iterable(chain.from_iterable(classes))))
        counts = [count_formats(one, names) for one in classes]
        right = [count_formats(keep_right(of, one.right), names) for of, one in zip(classes, every, strict=True)]
        rng, numbers, rows = given.draw_from("problems"), dict[str, Number](), []
        for i, one in enumerate(later, 2):
            found = compare_shares(counts[0], counts[i], counts[1], names, rng)
            for name in filter(names.__contains__, self.formats):
                j = names.index(name)
                found |= measure_format(name, j, (counts[i], right[i]), (counts[1], right[1]), rng)
            numbers |= name_each(found, one.name, len(later))
        for i, one in enumerate(every):
            if one is not again:
                rows += _list_rows(one, counts[i], classes[i], names)
        place = np.arange(1 + len(later))
        whole = np.array([count.sum(0) / count.sum() for count in (counts[0], *counts[2:])])
        shown = np.argsort(-whole.max(0))[:6]
        lines = {names[j]: (place, whole[:, j]) for j in shown}
        return Finding(numbers, {"formats": Panel(lines, "run, in order", "share of answers")},
                       ("run", "format", "share", "accuracy"), rows, note_failures((start, *later)))  # fmt: skip

    def _classify_all(self, one: Answers) -> list[list[str]]:
        return [list(map(self.classify, texts)) for texts in one.texts]

    def classify(self, text: str) -> str:
        """Return the format of an answer."""
        if self.formats:
            return next((name for name, pattern in self.formats.items() if re.search(pattern, text)), OTHER)
        for pattern, letter in SHAPES:
            text = pattern.sub(letter, text)
        return text[:LONG]


def count_formats(classes: Sequence[Sequence[str]], names: Sequence[str]) -> Array:
    """Return [n, formats], how many answers to each problem have each format."""
    place = {name: j for j, name in enumerate(names)}
    out = np.zeros((len(classes), len(names)))
    for i, row in enumerate(classes):
        for name, count in Counter(row).items():
            out[i, place[name]] = count
    return out


def keep_right(classes: Sequence[Sequence[str]], right: Array) -> list[list[str]]:
    """Return the formats of the right answers to each problem, of `right` [n, samples] in {0, 1}; NaN is wrong."""
    graded = zip(classes, np.nan_to_num(right), strict=True)
    return [
        [name for name, grade in zip(row, grades, strict=False) if grade]
        for row, grades in graded
    ]


def measure_format(
    name: str, j: int, later: tuple[Array, Array], again: tuple[Array, Array], rng: np.random.Generator
) -> dict[str, Number]:
    """Return the share and the accuracy of format `j`, beside those of the start's second draw; `later`, `again`: the
    counts of all answers and of the right ones, [n, formats] each. NaN if there are none."""

    def share(of: tuple[Array, Array], i: Array) -> float:
        return divide(of[0][i, j].sum(), of[0][i].sum())

    def accuracy(of: tuple[Array, Array], i: Array) -> float:
        return divide(of[1][i, j].sum(), of[0][i, j].sum())

    whole, out = np.arange(len(later[0])), {}
    for key, measure, says in (("share", share, "share of answers"), ("accuracy", accuracy, "share that is right")):
        ends = bootstrap(lambda i, of=measure: of(later, i), len(whole), rng)  # type: ignore[misc]
        out[f"{key}/{name}"] = Number(measure(later, whole), *ends, null=measure(again, whole), says=says)
    return out


def divide(above: float, below: float) -> float:
    """Return a ratio of counts; NaN if there is nothing to count."""
    return float(above / below) if below else math.nan


def compute_entropy(count: Array) -> float:
    """Return the entropy, in nats, of the shares of formats over all problems, of counts [n, formats]."""
    shares = count.sum(0) / count.sum()
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def compare_shares(
    start: Array, later: Array, again: Array, names: Sequence[str], rng: np.random.Generator
) -> dict[str, Number]:
    """Return the numbers of one policy against the start, of counts [n, formats] each."""
    j = int(later.sum(0).argmax())

    def share(count: Array, i: Array) -> float:
        return float(count[i, j].sum() / count[i].sum())

    def fall(count: Array, i: Array) -> float:
        return compute_entropy(count[i]) - compute_entropy(start[i])

    whole, n = np.arange(len(start)), len(start)
    grew = share(later, whole) - share(start, whole)
    fell = fall(later, whole)
    return {
        "largest": Number(share(later, whole), *bootstrap(lambda i: share(later, i), n, rng),
                          says=f"share of {names[j]!r}"),
        "grew": Number(grew, *bootstrap(lambda i: share(later, i) - share(start, i), n, rng),
                       null=share(again, whole) - share(start, whole), says="its share, less that at the start"),
        "entropy": Number(compute_entropy(later), *bootstrap(lambda i: compute_entropy(later[i]), n, rng),
                          says="nats, of the shares"),
        "entropy change": Number(fell, *bootstrap(lambda i: fall(later, i), n, rng),
                                 null=fall(again, whole), says="nats, to the start"),
    }  # fmt: skip


def _list_rows(
    one: Answers, count: Array, classes: Sequence[Sequence[str]], names: Sequence[str]
) -> list[tuple[str, str, float, float]]:
    """Return (run, format, share, accuracy) of the formats that a policy uses, the most frequent first; at most 8."""
    right, wrong = Counter[str](), Counter[str]()
    for row, grades in zip(classes, np.nan_to_num(one.right), strict=True):
        for name, grade in zip(row, grades, strict=False):
            (right if grade else wrong)[name] += 1
    shares = count.sum(0) / count.sum()
    used = [j for j in np.argsort(-shares).tolist() if shares[j]][:8]
    out = []
    for j in used:
        total = right[names[j]] + wrong[names[j]]
        out.append((one.name, names[j], float(shares[j]), right[names[j]] / total if total else math.nan))
    return out


def step_expert_iteration(shares: Array, accuracy: Array) -> Array:
    """Return the shares [formats] after one exact step of expert iteration, which imitates right answers alone:
    p'(f) ~ p(f) a(f)."""
    new: Array = shares * accuracy
    return new / new.sum()


def tilt(shares: Array, accuracy: Array, beta: float) -> Array:
    """Return the shares [formats] at which RL with rewards of 0 or 1 and a price `beta` on the KL to the start ends.
    Each right answer becomes exp(1 / beta) times as likely, so that a format has p (1 - a + a exp(1 / beta)) / Z."""
    with np.errstate(divide="ignore"):  # an accuracy of 0 or 1
        logits = np.log(shares) + np.logaddexp(np.log1p(-accuracy), np.log(accuracy) + 1 / beta)
    new: Array = np.exp(logits - logits.max())
    return new / new.sum()
