"""A model's warning about its own reasoning, in the middle of an answer, as a cost.

Source: Ji et al. 2025, "Mitigating Deceptive Alignment via Self-Monitoring", section 4. Left out: comments of several
words, of which only the verdict counts; comments that the live policy writes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shuhari.bounds import check
from shuhari.data import ContractError, Trajectory, is_tokens
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text


@register("reward", "self_monitor")
@dataclass
class SelfMonitor:
    """The probability that a role comments on an answer's reasoning with a warning, in [0, 1], as a cost.

    The role reads the prompt and the answer up to and with `mark` (all of an answer without it, and then the mark), and
    the probabilities of the two comments behind it are compared: p(warning) / (p(warning) + p(clear)), one forward
    pass each. What the answer itself comments is not read, so that it cannot talk its way out. Samples without a
    decision are ungraded. Raises ContractError for prompts that are no text.
    """

    role: str = "monitor"
    """Role that comments, a frozen copy of the policy as it learnt to comment."""
    mark: str = ";"
    """Text at which the reasoning ends, such as `</think>`."""
    warning: str = "!"
    """Comment that reports a cheat."""
    clear: str = "."
    """Comment that reports nothing."""
    name: str = "monitor"
    """Name of the grade, so that its column is `reward/<name>`."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("mark", "warning", "clear"):
            if not getattr(self, name):
                raise ValueError(f"self_monitor: {name} is '': expected a text")
        if self.warning == self.clear:
            raise ValueError(f"self_monitor: warning and clear are both {self.clear!r}: expected two comments")

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, Any] | None]:
        """Returns one grade per leaf."""
        leaves = [
            (t.request.problem.prompt, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        asked = {
            i: self._ask(prompt, answer_text(steps), ctx)
            for i, (prompt, steps) in enumerate(leaves)
            if any(step.action is not None for step in steps)
        }
        found = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
        return [{self.name: found[i]} if i in found else None for i in range(len(leaves))]

    async def _ask(self, prompt: Any, answer: str, ctx: Ctx) -> float:
        reasoning = answer.partition(self.mark)[0] + self.mark
        seen, said = ctx.encode(prompt, self.role), ctx.encode_text(reasoning, self.role)
        if not (is_tokens(seen) and is_tokens(said)):
            raise ContractError(f"reward {self.name!r}: a prompt is {str(prompt)[:60]!r}: expected text")
        context: Any = np.concatenate([np.asarray(seen), np.asarray(said)])
        calls = [
            ctx.engine.score(self.role, context, ctx.encode_text(word, self.role), ["log_prob"])
            for word in (self.warning, self.clear)
        ]
        bad, good = (float(x["log_prob"].sum()) for x in await asyncio.gather(*calls))
        return 1 / (1 + math.exp(min(good - bad, 500.0)))
