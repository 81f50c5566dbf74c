"""Grades the content of an answer, whatever its form; or, for comparison, penalises a missing form.

Source: "SimpleRL-Zoo: Investigating and Taming Zero Reinforcement Learning for Open Base Models in the Wild" (Zeng et
al. 2025, arXiv 2503.18892), which rewards only right answers, and its comparison with a reward that requires a form.
Model output is untrusted: all searches are for plain strings. Left out: formulas that are equal but written differently
(the reward `maths`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shuhari.bounds import check
from shuhari.data import Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text


@register("reward", "content")
@dataclass
class Content:
    """Rewards a right answer whether or not it has the required form, such as `\\boxed{...}`: 1.0 if its content is
    `problem.answer`, else 0.0.

    The content is the inside of its last form, or all of it if there is none; likewise for the truth; surrounding white
    space does not count. A problem without an answer, and a sample without decisions, is ungraded. Raises ValueError
    for a form without one of its ends.
    """

    opens: str = "\\boxed{"
    """Beginning of the form, such as `\\boxed{`."""
    closes: str = "}"
    """End of the form; brackets in it may be nested."""
    missing: float | None = None
    """Reward of every answer without the form, right or wrong, such as -1; None grades it by its content."""
    name: str = "content"
    """Name of the reward; list it in `[reward.weights]` if that lists others."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        if not self.opens or not self.closes:
            raise ValueError(f"content: a form of {self.opens!r} and {self.closes!r}: expected something of both")

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            (t, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        said = [
            (t, answer_text(steps) if any(s.action is not None for s in steps) else None)
            for t, steps in leaves
        ]
        return [self._grade(text, t.request.problem.answer) for t, text in said]

    def _grade(self, text: str | None, truth: object) -> Mapping[str, float] | None:
        if text is None or truth is None:
            return None
        inside = find_inside(text, self.opens, self.closes)
        if inside is None and self.missing is not None:
            return {self.name: self.missing}
        wanted = find_inside(str(truth), self.opens, self.closes)
        right = (text if inside is None else inside).strip() == (str(truth) if wanted is None else wanted).strip()
        return {self.name: float(right)}


def find_inside(text: str, opens: str, closes: str) -> str | None:
    """Returns the text between the last `opens` and its matching `closes`, so that brackets may nest; None if there is
    no such form, or the last one does not close."""
    at = text.rfind(opens)
    if at < 0:
        return None
    begin, depth = at + len(opens), 0
    if opens[-1] + closes not in ("()", "[]", "{}", "<>"):  # only brackets can nest
        end = text.find(closes, begin)
        return None if end < 0 else text[begin:end]
    for i, letter in enumerate(text[begin:], begin):
        if letter == closes and depth == 0:
            return text[begin:i]
        depth += (letter == opens[-1]) - (letter == closes)
    return None
