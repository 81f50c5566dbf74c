"""Nemotron-Cascade as its recipe says it: one domain after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from built import SCALED, demonstrated, holds, one_loss
from shuhari.testing import context


def test_what_it_sets() -> None:
    """One list of domains a phase, none of which comes again; the loss is the base's."""
    wanted = {
        "curriculum.order": (("instructions",), ("math",), ("code",)),
        "curriculum.key": "",
        "curriculum.again": 0,
    }
    one_loss(holds("curriculum/nemotron_cascade", {**wanted, "collect": SCALED}, usual=True))


@pytest.mark.parametrize(("at", "domain"), [(0.0, "A"), (0.32, "A"), (0.34, "B"), (0.66, "B"), (0.67, "C"), (1.0, "C")])
def test_each_of_three_domains_has_a_third_of_the_budget(at: float, domain: str) -> None:
    stage: Any = demonstrated("curriculum/nemotron_cascade")
    stage.curriculum.progress = at
    asked = asyncio.run(stage.curriculum.select(8, context(task=stage.task)))
    assert {r.problem.info["domain"] for r in asked} == {domain} and len(asked) == 8
