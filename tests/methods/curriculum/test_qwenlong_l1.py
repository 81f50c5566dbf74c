"""QwenLong-L1 as its recipe says it: short prompts first, long ones then."""

from __future__ import annotations

import asyncio
from typing import Any

from built import SCALED, demonstrated, holds, one_loss
from shuhari.testing import context


def test_numbers_of_the_paper() -> None:
    wanted = {"curriculum.limits": (20_000, 60_000), "curriculum.again": 0.25, "curriculum.measure": "score"}
    one_loss(holds("curriculum/qwenlong_l1", {**wanted, "collect": SCALED}, usual=True))


def test_prompts_of_two_and_four_facts_come_first_and_of_seven_then() -> None:
    """The limits are 9 and 15 tokens, of which each character is one; a fact has two, and the frame one."""
    stage: Any = demonstrated("curriculum/qwenlong_l1")
    ctx: Any = context(task=stage.task)
    ctx.encode = lambda prompt, role: prompt
    for at, lengths in ((0.0, {5, 9}), (0.49, {5, 9}), (0.5, {15}), (1.0, {15})):
        stage.curriculum.progress = at
        asked = asyncio.run(stage.curriculum.select(16, ctx))
        assert {len(r.problem.prompt) for r in asked} == lengths
