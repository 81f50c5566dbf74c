"""A penalty for answers that repeat themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from shuhari.bounds import Length, check
from shuhari.data import Number, Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text


@register("reward", "repetition")
@dataclass
class Repetition:
    """Penalises answers by the share of their n-grams that repeat earlier ones: {name: -weight x share}, 0 if too
    short.

    For text answers; ungraded without decisions. (The n-gram penalty of Yeo et al. 2025, "Demystifying Long
    Chain-of-Thought Reasoning in LLMs", arXiv 2502.03373, at the end of the answer.)
    """

    counts: ClassVar[bool] = False  # used in addition to another reward
    name: str = "repetition"
    """Name of the reward; list it in `[reward.weights]` if that lists others."""
    n: Length = 4
    """Length of an n-gram, in words or characters; choose it longer than repetitions in right answers."""
    unit: Literal["word", "character"] = "word"
    """Pieces of an n-gram: each a "word" between white space, or a "character"."""
    weight: Number = 1.0
    """Penalty if all n-grams repeat earlier ones, or a schedule; the reward is -weight times the share."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            [t.steps[i] for i in path]
            for t in group
            for path in t.paths()
        ]
        said = [
            answer_text(steps) if any(s.action is not None for s in steps) else None
            for steps in leaves
        ]
        weight = ctx.at(self.weight)
        return [None if text is None else {self.name: -weight * self._share(text)} for text in said]

    def _share(self, text: str) -> float:
        parts = text.split() if self.unit == "word" else list(text)
        grams = [tuple(parts[i : i + self.n]) for i in range(len(parts) - self.n + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0
