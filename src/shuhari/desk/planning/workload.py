"""What is sampled: groups of answers, each a sequence of turns that read, write and wait for a tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shuhari.bounds import AtLeast0, Count, Positive, check


class Turn(NamedTuple):
    """One call of a model: tokens that it reads, tokens that it writes, and seconds that a tool or a grader takes
    afterwards."""

    read: int
    new: int
    wait: float = 0.0


Answer = tuple[Turn, ...]
Group = tuple[Answer, ...]


@dataclass(frozen=True)
class Workload:
    """Observed groups; `stream` yields them in one random order after the other. `n`: answers of a group (0: as
    observed; otherwise drawn from one observed group). `waits`: evenly spaced quantiles of the seconds after a turn
    that is not the last; without them the turns' own. `length`: factor of the tokens of an answer, `limit`: their bound
    a turn (0: none)."""

    groups: tuple[Group, ...]
    n: Count = 0
    waits: tuple[AtLeast0, ...] = ()
    length: Positive = 1.0
    limit: Count = 0

    def __post_init__(self) -> None:
        check(self)
        if not self.groups or not all(
            a and a[0].new > 0
            for g in self.groups
            for a in g
        ):
            raise ValueError("a workload needs groups of answers, each with a turn that writes at least one token")

    @property
    def size(self) -> int:
        """Answers of a group."""
        return self.n or round(float(np.mean([len(g) for g in self.groups])))

    @property
    def tokens(self) -> float:
        """Mean tokens of an answer that training reads: its last context and what follows."""
        return float(np.mean([
            count_tokens(self._scaled(a))
            for g in self.groups
            for a in g
        ]))

    @property
    def written(self) -> float:
        """Mean tokens that an answer writes."""
        return float(np.mean([
            sum(t.new for t in self._scaled(a))
            for g in self.groups
            for a in g
        ]))

    def stream(self, seed: int = 0) -> Iterator[Group]:
        """Yield groups without end."""
        rng = np.random.default_rng(seed)
        while True:
            for i in rng.permutation(len(self.groups)):  # drawn with replacement, the few long ones would add noise
                seen = self.groups[i]
                if self.n and self.n != len(seen):
                    seen = tuple(seen[j] for j in rng.integers(len(seen), size=self.n))
                yield tuple(self._wait(self._scaled(a), rng) for a in seen)

    def _scaled(self, answer: Answer) -> Answer:
        if self.length == 1.0 and not self.limit:
            return answer
        limit = self.limit or 1 << 40
        return tuple(t._replace(new=max(1, min(limit, round(t.new * self.length)))) for t in answer)

    def _wait(self, answer: Answer, rng: np.random.Generator) -> Answer:
        if not self.waits or len(answer) < 2:
            return answer
        at = np.linspace(0, 1, len(self.waits))
        drawn = np.interp(rng.random(len(answer) - 1), at, self.waits)
        return (*(t._replace(wait=float(w)) for t, w in zip(answer, drawn, strict=False)), answer[-1])


def count_tokens(answer: Answer) -> int:
    """Return the tokens of an answer as one row: its turns share a prefix."""
    return max(t.read + t.new for t in answer)


def lognormal(
    mean: float, *, limit: int, read: int, n: int, cv: float = 1.0, groups: int = 512, seed: int = 0
) -> Workload:
    """Return answers of one turn whose lengths are log-normal, cut at `limit`, with this mean after the cut and this
    coefficient of variation before it: the shape of reasoning lengths if only a mean and a limit are known. Raises
    ValueError if the cut allows no such mean."""
    if not 1 <= mean < limit:
        raise ValueError(
            f"a mean of {mean:g} tokens with a limit of {limit}: expected a mean from 1 to below the limit"
        )
    sigma = float(np.sqrt(np.log(1 + cv**2)))
    normal = np.random.default_rng(seed).standard_normal((groups, n))
    low, high = 0.0, float(np.log(limit)) + 3 * sigma
    for _ in range(60):  # the mean after the cut grows with the location
        at = (low + high) / 2
        if np.minimum(np.exp(at + sigma * normal), limit).mean() < mean:
            low = at
        else:
            high = at
    lengths = np.clip(np.rint(np.exp(low + sigma * normal)), 1, limit).astype(int)
    return Workload(tuple(
        tuple((Turn(read, int(x)),) for x in row)
        for row in lengths
    ))


def of_lengths(groups: Sequence[Sequence[int]], read: int = 0) -> Workload:
    """Return answers of one turn with these lengths."""
    return Workload(tuple(
        tuple((Turn(read, x),) for x in g)
        for g in groups
    ))


def without_waits(workload: Workload) -> Workload:
    """Return the workload with tools that reply at once."""
    groups = tuple(
        tuple(
            tuple(t._replace(wait=0.0) for t in a)
            for a in g
        )
        for g in workload.groups
    )
    return replace(workload, groups=groups, waits=())
