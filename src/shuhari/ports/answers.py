"""The answers to a problem, if a task can list them; they make a policy's metrics exact (`metrics/exact`)."""

from __future__ import annotations

from dataclasses import dataclass

from shuhari.data import Payload


@dataclass(frozen=True)
class Answers:
    """The answers to a problem: texts (or actions of one decision), the `score` that the task gives each, and
    optionally a label of each. All that score above 0 are here, and possibly labelled wrong ones; with `complete` all
    that exist."""

    texts: tuple[Payload, ...]
    scores: tuple[float, ...]
    labels: tuple[str, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.texts) or len(self.labels) not in (0, len(self.texts)):
            found = f"{len(self.texts)} answers, {len(self.scores)} scores and {len(self.labels)} labels"
            raise ValueError(f"{found}: expected one score an answer, and one label or none at all")
