"""Operations, numbers of short answers at equal compute, and gaps of policies with known chances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from known_policies import Known
from shuhari.kernel.coverage import compute_pass
from shuhari.kernel.findings import AnalysisError, Answers, Opened
from shuhari.methods.analysis.backtrack_or_not.equal_compute import (
    EqualCompute,
    Size,
    count_affordable,
    cut_at,
    read_size,
)


def make_model() -> Any:
    """A layer of 10 weights that says it is a transformer of 2 layers of width 5."""
    module = torch.nn.Linear(10, 1, bias=False)
    module.config = SimpleNamespace(num_hidden_layers=2, hidden_size=5)
    return SimpleNamespace(module=module)


class Played(Known):
    """Known policies of one size; answers of `long` have 40 tokens, those of `short` 10."""

    def sample(self, *args: Any, **settings: Any) -> list[Answers]:
        out = super().sample(*args, **settings)
        for one in out:
            one.lengths[:] = 40 if one.name.startswith("long") else 10
        return out

    @contextmanager
    def open(self, i: int) -> Iterator[Opened]:
        yield Opened(self.names[i], None, {"policy": make_model()})


def test_operations_by_hand() -> None:
    size = Size(weights=1000, layers=2, width=8)
    assert size.count_flops(np.array([10.0, 20.0])).tolist() == [20_000 + 3_200, 40_000 + 12_800]
    linear, square = Size(1000, 0, 8), Size(0, 2, 8)
    t = np.array([7.0])
    assert size.count_flops(t) == linear.count_flops(t) + square.count_flops(t)
    assert count_affordable(size.count_flops(t), float(size.count_flops(t)[0])) == 1
    assert count_affordable(np.array([2.0, 4.0]), 10.0) == 3
    assert read_size(make_model(), "x") == Size(10, 2, 5)


def test_pass_at_two_of_four_answers_with_one_right() -> None:
    assert compute_pass(np.array([[1.0, 0, 0, 0]]), (2,)).item() == 0.5


def test_answers_that_cost_more_than_the_budget_are_wrong() -> None:
    right, cost = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 3.0], [1.0, 5.0]])
    assert cut_at(right, cost, [0.5, 1, 3, 9]).tolist() == [0, 0.25, 0.5, 0.75]


def test_the_gap_at_equal_compute() -> None:
    """F(10) = 200 + 2000 and F(40) = 800 + 32000: a long answer costs as much as 14 short ones."""
    found = EqualCompute(n=64)(Played({"short": [0.05] * 64, "long": [0.4] * 64}))
    n = found.numbers
    assert n["n"].value == 14
    assert n["short"].low < 1 - 0.95**14 < n["short"].high and n["long"].low < 0.4 < n["long"].high
    assert n["gap"].value == pytest.approx(n["short"].value - n["long"].value)
    assert n["one short"].low < 0.05 < n["one short"].high and abs(n["gap"].null) < 0.05
    ((direct, search),) = (panel.lines.values() for panel in found.panels.values())
    assert search[1][0] == 0 and search[1][-1] == pytest.approx(n["long"].value)  # nothing has ended at first
    assert direct[1][0] == pytest.approx(n["one short"].value)


def test_pairs_are_named_by_the_policy_that_searches() -> None:
    chances = {"short@start": [0.1] * 32, "short": [0.2] * 32, "long@start": [0.3] * 32, "long": [0.9] * 32}
    found = EqualCompute(n=32, samples=8)(Played(chances))
    assert found.numbers["gap of long"].value < 0
    assert {"gap of long@start", "n of long"} <= set(found.numbers) and found.numbers["n of long"].value == 8
    assert "set samples=14" in found.notes[0]


def test_what_it_cannot_pair_or_count_is_named() -> None:
    with pytest.raises(AnalysisError, match="3 policies: expected as many"):
        EqualCompute()(Played({"a": [1.0], "b": [1.0], "c": [1.0]}))
    with pytest.raises(AnalysisError, match="x does not tell its layers"):
        read_size(SimpleNamespace(module=torch.nn.Linear(2, 2)), "x")
