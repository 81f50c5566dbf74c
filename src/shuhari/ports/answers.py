"""The answers to a problem, where a task can list them: what makes a policy's numbers exact (`metrics/exact`)."""

from __future__ import annotations

from dataclasses import dataclass

from shuhari.data import Payload


@dataclass(frozen=True)
class Answers:
    """The answers to a problem: texts (or actions of one decision), the `score` that the task gives each, and maybe a
    label of each. They are all that score above 0, and maybe wrong ones that a label names; with `complete` all that
    there are."""

    texts: tuple[Payload, ...]
    scores: tuple[float, ...]
    labels: tuple[str, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.texts) or len(self.labels) not in (0, len(self.texts)):
            found = f"{len(self.texts)} answers, {len(self.scores)} scores and {len(self.labels)} labels"
            raise ValueError(f"{found}: expected one score an answer, and one label or none at all")
