"""Schedules in steps that a changed budget leaves behind are told."""

from __future__ import annotations

import pytest

from shuhari.config.recipe import list_names, load
from shuhari.config.schedules import list_misfits

LR = "part.policy.optimiser.lr"


def test_packaged_recipes_fit_their_budgets() -> None:
    names = [name for name in list_names() if name.startswith("baselines/")]
    assert not [text for name in names for text in list_misfits(load(name))]


@pytest.mark.parametrize(("sets", "told"), [
    (["steps=11"], "climbs from 0 for 6 steps (warm), and the stage has 11"),
    (["steps=12"], ""),
    ([f"{LR}={{from = 1e-3, to = 0, over = 20}}", "steps=30"], "is 0 from step 20 on"),
    ([f"{LR}={{from = 1e-3, to = 1e-4, over = 20}}", "steps=30"], ""),  # it goes on at the end's
    ([f"{LR}={{from = 1e-3, to = 1e-4, over = 20, after = 0.5}}", "steps=30"], "ends after 35 steps"),
    ([f"{LR}={{from = 1e-3, to = 0}}", "steps=30"], ""),
    ([f"{LR}={{from = 1e-3, to = 1e-4, after = 40}}", "steps=30"], "begins to move after 40 steps"),
    ([f"{LR}={{from = 1e-3, steps = [[10, 1e-4], [50, 1e-5]]}}", "steps=30"], "changes at step 50"),
])  # fmt: skip
def test_what_does_not_fit_is_named(sets: list[str], told: str) -> None:
    found = list_misfits(load("baselines/grpo", sets))
    assert len(found) == bool(told) and all(told in text and f"stage 'rl': {LR} " in text for text in found)
