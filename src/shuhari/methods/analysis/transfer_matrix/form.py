"""A reward for the form of an answer alone: the control of transfer between domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shuhari.data import Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text

CLASSES = (str.isdigit, str.islower, str.isupper)


@register("reward", "form")
@dataclass
class Form:
    """A reward of 1 for an answer that looks like the right one, right or wrong: digits and letters at the same places.

    What follows the last `after` is compared with the problem's answer, which has to be text: `132` looks like `047`,
    not like `13`. Name it alone in `[reward.weights]`.
    """

    after: str = ">"
    """What ends the work before an answer; an answer without it counts from its beginning."""

    stamps = ("reward/form",)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float]]:
        """Returns one grade per leaf."""
        out: list[Mapping[str, float]] = []
        for one in group:
            right = find_form(str(one.request.problem.answer))
            for path in one.paths():
                said = answer_text([one.steps[i] for i in path]).rpartition(self.after)[2]
                out.append({"form": float(find_form(said) == right)})
        return out


def find_form(text: str) -> str:
    """Return a text with `0` for each digit, `1` for a small letter and `2` for a capital one; the rest as it is."""
    def mark(c: str) -> str:
        return next((str(i) for i, of in enumerate(CLASSES) if of(c)), c)

    return "".join(map(mark, text))
