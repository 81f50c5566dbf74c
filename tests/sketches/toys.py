"""What sketches are tried on: a task of text that an untrained model is sometimes right about, and an onlooker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from shuhari.batch import Batch
from shuhari.data import Problem, Step
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.tasks.source import Listed, answer_text


@dataclass
class Echo:
    """`ab=` -> `ab`: say the word of `length` of the `letters` again. Both splits are all the words."""

    letters: str = "ab"
    length: int = 1

    @property
    def alphabet(self) -> str:
        return self.letters + "="

    def problems(self, split: str) -> Listed:
        words = ["".join(w) for w in product(self.letters, repeat=self.length)]
        return Listed([Problem("echo", w, f"{w}=", w) for w in words])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None:
        return {"score": float(answer_text(steps) == problem.answer)}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


@dataclass
class Watch:
    """A transform that keeps what was drawn."""

    seen: list[Batch] = field(default_factory=list)
    needs: tuple[Need, ...] = ()

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        self.seen.append(batch)
        return batch
