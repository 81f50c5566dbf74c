"""What sketches are tried on: a task of text that an untrained model is sometimes right about, and an onlooker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from shuhari.batch import Batch
from shuhari.data import Payload, Problem, Status, Step
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


@dataclass
class Relay:
    """`ab=`: say the word of `length` letters, one in each of as many turns; the world answers `/` to each."""

    letters: str = "ab"
    length: int = 4

    @property
    def alphabet(self) -> str:
        return self.letters + "=/?"

    def problems(self, split: str) -> Listed:
        words = ["".join(w) for w in product(self.letters, repeat=self.length)]
        return Listed([Problem("relay", w, f"{w}=", w) for w in words])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None:
        said = [str(s.info["text"])[:1] for s in steps if "observation" in s.info]  # what the world took
        return {"score": sum(a == b for a, b in zip(said, str(problem.answer), strict=False)) / self.length}

    def environment(self, problem: Problem) -> Turns:
        return Turns(self.length)

    def spaces(self) -> None:
        return None


@dataclass
class Turns:
    """Answers `/`, `left` times."""

    left: int

    def reset(self, problem: Problem) -> Payload:
        return problem.prompt

    def step(self, action: Any) -> tuple[Payload, Mapping[str, float], Status | None]:
        self.left -= 1
        return "/", {}, None if self.left else Status.FINISHED

    def snapshot(self) -> Payload:
        return self.left

    def restore(self, snapshot: Payload) -> Payload:
        raise NotImplementedError
