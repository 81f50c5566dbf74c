"""Whether a model's values find the first mistake of an answer, on tasks that know its position.

Left out: multi-turn answers, and the values of later decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shuhari.bounds import Length, check
from shuhari.data import Request, code
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx, ability


@register("metric", "localisation")
@dataclass
class Localisation:
    """Whether a critic finds the first mistake of an answer: compares its values there with those at right decisions.

    The task's `first_wrong(problem, text)` gives the mistakes. `auc`: probability in [0, 1] that the value at a first
    mistake is lower than at the same position of an answer that is right up to there, ties count half. Only answers at
    the same position are compared, so chance is .5 even if values depend on position alone. NaN if no position has
    both. `wrong`: the share of answers with a mistake. A model `causal_value` with `after = true` has seen the decision
    that it values.
    """

    role: str = "credit"
    """Role of the value model that is measured, a name under `[models]`."""
    split: str = "test"
    """Name of the task's split that is measured, such as `test`."""
    n: Length = 128
    """Number of first problems that are measured."""
    samples: Length = 4
    """Number of answers sampled for each problem."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        """Computes both numbers. Raises ValueError if the task has no `first_wrong`."""
        first_wrong = ability(ctx.task, "first_wrong")
        if first_wrong is None:
            expected = "a task that has first_wrong(problem, text) -> int | None"
            raise ValueError(f"localisation: the task does not locate errors in answers: expected {expected}")
        source = ctx.task.problems(self.split)
        size = source.size()
        problems = [source[i] for i in range(self.n if size is None else min(self.n, size))]
        asked = [Request(p, self.samples) for p in problems]
        batch = ctx.wait(ctx.probe(asked, tag="localisation"))
        need = Need((self.role,), "value")
        values = ctx.score(batch, [need])[need]
        known = {code(p.task, p.id): p for p in problems}
        right: dict[int, list[float]] = defaultdict(list)
        wrong: dict[int, list[float]] = defaultdict(list)
        for row, (problem, step) in enumerate(zip(batch["problem"].tolist(), batch["step"].tolist(), strict=True)):
            text, row_values = str(batch.arena[step].info["text"]), values[row][batch["mask"][row]].tolist()
            at = first_wrong(known[problem], text)
            begin: Any = ctx.encode_text(text[:at], self.role) if at else ()
            place = len(row_values) if at is None else len(begin)
            for i, value in enumerate(row_values[:place]):
                right[i].append(value)
            if place < len(row_values):  # otherwise the answer was right, or cut
                wrong[place].append(row_values[place])
        mistakes = sum(map(len, wrong.values()))
        return {"auc": _auc(wrong, right), "wrong": mistakes / len(batch)}


def _auc(lower: Mapping[int, list[float]], higher: Mapping[int, list[float]]) -> float:
    """Returns the share of pairs with the same key whose first value is lower, ties count half; NaN without pairs."""
    wins = pairs = 0.0
    for key in lower.keys() & higher.keys():
        a, b = np.array(lower[key])[:, None], np.array(higher[key])
        wins, pairs = wins + float((a < b).sum() + (a == b).sum() / 2), pairs + a.size * b.size
    return wins / pairs if pairs else float("nan")
