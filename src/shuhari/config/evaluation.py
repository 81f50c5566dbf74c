"""`[evaluate]` of a recipe: when and how a run is measured. The measuring itself is in `loop.evaluation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from shuhari.bounds import Bounds, Count, Length, check
from shuhari.buffers.references import KNOWN, find_reference
from shuhari.data import EMPTY, Sampling, nearest
from shuhari.ports import Metric, Rollout, Task

PLAYED = ("greedy", "mean", "length", "start_kl", "turns", "distinct", "ungraded", "tokens", "pass", "quantile", "cvar")


@dataclass
class Further:
    """A further way to roll out or decode at evaluation, of the same problems under the same noise.

    Of the values of `k`, the ones up to the samples are reported; if there are none, 1, 2, 4, ... of them."""

    rollout: Rollout | None = None
    """Rollout of this way; None takes that of the evaluation."""
    settings: Mapping[str, Any] = EMPTY
    """Settings of the rollout, which lie over [evaluate]'s; with a `rollout` they stand alone."""
    sampling: Sampling | None = None
    """Sampling settings that differ from [evaluate]'s; None changes nothing."""
    n: Count = 0
    """Number of problems; 0 takes that of [evaluate]."""
    samples: Count = 0
    """Number of samples of each problem; 0 takes that of [evaluate]."""

    def __post_init__(self) -> None:
        check(self)

    def of(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation with this way's settings."""
        settings = self.settings if self.rollout else {**evaluation.settings, **self.settings}
        n, samples = self.n or evaluation.n, self.samples or evaluation.samples
        return replace(evaluation, n=n, samples=samples, sampling=self.sampling or evaluation.sampling,
                       settings=settings, start_kl=0, k=tuple(k for k in evaluation.k if k <= samples))  # fmt: skip


@dataclass
class Evaluation:
    """When and how a run is measured on held-out problems: greedily, and by samples for the mean and pass@k.

    ValueError for names in `more` and `metrics` that a report cannot have."""

    every: Count = 0
    """Number of steps between two evaluations; 0 evaluates only at the beginning and the end."""
    n: Count = 256
    """Number of problems, the first of the split, or all if it has fewer; 0 plays none."""
    samples: Count = 1
    """Number of samples of each problem, for the mean and pass@k; 0 and 1 play greedily alone."""
    split: str = "test"
    """Split of the task that is played."""
    k: tuple[Length, ...] = ()
    """Values of k for pass@k, at most `samples`; empty takes 1, 2, 4 and so on."""
    sampling: Sampling | None = None
    """Sampling settings of the samples; None takes [rollout.sampling], a table stands alone. Greedy play takes the mode
    of the same."""
    measure: str = ""
    """Reward that is reported; empty takes `score` (of environments `task`) if it is trained or nothing else is, else
    the one reward that is trained, or `reward`, their weighted sum."""
    solved: float = 1.0
    """Value of the measured reward from which a sample counts as solved, for pass@k."""
    reference: str = ""
    """Data set of D4RL whose reference returns give the normalised score `greedy.normalised`, such as
    `hopper-medium-v2` or `hopper`; empty takes that of the recorded data, where its name says it, "none" gives none."""
    settings: Mapping[str, Any] = EMPTY
    """Settings of the rollout that differ from training's, by name."""
    watch: Count = 0
    """Number of further problems, which are not reported, on whose scores a rule that waits for a `plateau` acts; 0
    acts on what is reported."""
    tail: tuple[Annotated[float, Bounds(0, 1, open="both")], ...] = ()
    """Shares in (0, 1): for each, that quantile of the episodes' scores and the mean below it (CVaR) are reported."""
    start_kl: Count = 8
    """Number of first greedy answers over whose tokens a loaded model (`path`) is compared with what was loaded, as
    `start_kl`, nats a token; 0 leaves it out. A model without adapters is read again from `path` for it."""
    fresh: bool = False
    """Draw new noise for each evaluation; false repeats it, so that two checkpoints differ by their weights alone."""
    task: Task | None = None
    """Task that is tested, with the spaces of the trained one; None tests what is trained."""
    more: Mapping[str, Further] = EMPTY
    """Further ways to play the same problems by name, reported as `<name>.<score>`."""
    metrics: Mapping[str, Metric] = EMPTY
    """Metrics beside the scores of episodes by name, reported as `<name>.<number>`."""

    def __post_init__(self) -> None:
        check(self)
        self.samples = self.samples or 1
        if self.reference not in ("", "none") and find_reference(self.reference) is None:
            message = f"no data set of D4RL with reference returns; {nearest(self.reference, KNOWN)}"
            raise ValueError(f"reference is {self.reference!r}: {message}")
        for section, named in {"more": self.more, "metrics": self.metrics}.items():
            for name in named:
                if not name or not set(name).isdisjoint(".:/@") or name in PLAYED:
                    message = "a name of its own, without . : / @, which reports of an evaluation need"
                    raise ValueError(f"{section} has an entry called {name!r}: expected {message}")
        if both := sorted(set(self.more) & set(self.metrics)):
            raise ValueError(f"more and metrics both have an entry {both[0]!r}: expected different names, as reports "
                             "have both")  # fmt: skip
