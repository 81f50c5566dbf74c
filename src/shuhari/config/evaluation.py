"""`[evaluate]` of a recipe: when and how a run is measured. How it is done: `loop.evaluation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from shuhari.bounds import Bounds, Count, Length, check
from shuhari.data import EMPTY, Sampling
from shuhari.ports import Metric, Rollout, Task

PLAYED = ("greedy", "mean", "length", "turns", "distinct", "ungraded", "tokens", "pass", "quantile", "cvar")


@dataclass
class Further:
    """A further way to roll out or decode at evaluation, of the same problems under the same noise. `rollout`,
    `sampling` (None), `n` and `samples` (0) are those of [evaluate] where left out; `settings` lie over its own, or
    with a rollout stand alone. Of `k`, those up to the samples are reported: where none is, 1, 2, 4, ... of them."""

    rollout: Rollout | None = None
    settings: Mapping[str, Any] = EMPTY
    sampling: Sampling | None = None
    n: Count = 0
    samples: Count = 0

    def __post_init__(self) -> None:
        check(self)

    def of(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation as this way does it."""
        settings = self.settings if self.rollout else {**evaluation.settings, **self.settings}
        n, samples = self.n or evaluation.n, self.samples or evaluation.samples
        return replace(evaluation, n=n, samples=samples, sampling=self.sampling or evaluation.sampling,
                       settings=settings, k=tuple(k for k in evaluation.k if k <= samples))  # fmt: skip


@dataclass
class Evaluation:
    """When and how a run is measured: every `every` steps (0: at the ends only), `n` problems of `split` greedily (all,
    where it has fewer; 0: nothing is played), and `samples` draws each for the mean and pass@k where that is above 1.

    `measure`: the reward that is read (default: `score`, of environments `task`, if it is trained or nothing else is;
    else the one reward that is trained, or `reward`, their weighted sum); `solved`: from which value a sample counts as
    solved; `tail`: shares in (0, 1), for a quantile of the episodes and the mean of those below it. `watch`: so many
    further problems of the split, behind those, on whose scores a rule that waits for a `plateau` acts, so that what is
    reported was chosen by nothing (0: it acts on what is reported). `fresh`: each evaluation samples with noise of its
    own. `task`: what is tested, where that is not what is trained.
    `more`: further ways to play, reported as `<name>.<score>`; `metrics`: numbers beside the scores of episodes, as
    `<name>.<number>`."""

    every: Count = 0
    n: Count = 256
    samples: Length = 1
    split: str = "test"
    k: tuple[Length, ...] = ()
    sampling: Sampling | None = None
    measure: str = ""
    solved: float = 1.0
    settings: Mapping[str, Any] = EMPTY
    watch: Count = 0
    tail: tuple[Annotated[float, Bounds(0, 1, open="both")], ...] = ()
    fresh: bool = False
    task: Task | None = None
    more: Mapping[str, Further] = EMPTY
    metrics: Mapping[str, Metric] = EMPTY

    def __post_init__(self) -> None:
        check(self)
        for section, named in {"more": self.more, "metrics": self.metrics}.items():
            for name in named:
                if not name or not set(name).isdisjoint(".:/@") or name in PLAYED:
                    message = "a name of its own, without . : / @, which reports of an evaluation need"
                    raise ValueError(f"{section} has an entry called {name!r}: expected {message}")
        if both := sorted(set(self.more) & set(self.metrics)):
            raise ValueError(f"both more and metrics have {both[0]!r}: expected different names, as both are reported")
