"""Prioritised sampling: `target` with pick = "failed"."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shuhari.curricula.target import Target
from shuhari.data import Problem, Request
from shuhari.testing import context


class Known:
    """Expected rates that are given, and draws that say the contrary."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = torch.tensor(rates)

    async def select(self, n: int, ctx: Any) -> list[Request]:
        return [Request(Problem("task", str(i), ""), 1) for i in range(len(self.rates))]

    async def predict(self, problems: Sequence[Problem], ctx: Any) -> tuple[Tensor, Tensor]:
        return 1 - self.rates, self.rates


def picked(rates: Sequence[float], n: int, seed: int) -> list[int]:
    known: Any = Known(rates)
    chosen = asyncio.run(Target(known, known, pick="failed", of=1).select(n, context(seed)))
    return [int(r.problem.id) for r in chosen]


def test_the_chance_of_a_problem_is_its_expected_failure_rate() -> None:
    p, draws = [0.0, 0.5, 0.9, 1.0], 4000
    counts = torch.bincount(torch.tensor([picked(p, 1, seed)[0] for seed in range(draws)]), minlength=4) / draws
    expected = [1 / 1.6, 0.5 / 1.6, 0.1 / 1.6, 0.0]
    for found, chance in zip(counts.tolist(), expected, strict=True):
        assert found == pytest.approx(chance, abs=4 * (chance * (1 - chance) / draws) ** 0.5 + 1e-3)


def test_what_is_always_solved_comes_last() -> None:
    for seed in range(20):
        assert set(picked([1.0, 0.2, 1.0, 0.9], 2, seed)) == {1, 3}
        assert sorted(picked([1.0, 0.2, 1.0], 3, seed)) == [0, 1, 2]
