"""Exact numbers of games of preferences: rock, paper, scissors by hand, a fixed point of the regularised game, and a
policy on strings by enumeration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from math import exp, log
from typing import Any

import numpy as np
import pytest

from shuhari.config.recipe import Recipe
from shuhari.loop.run import Run, open_run
from shuhari.metrics.exact import Exact, _chances
from shuhari.metrics.game import Game

RPS = np.array([[0.5, 0.0, 1.0, 1.0], [1.0, 0.5, 0.0, 1.0], [0.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.5]])


def numbers(wins: Any, mine: list[float], other: list[float] | None = None, tau: float = 0.0) -> dict[str, float]:
    game = Game(against=("reference",) if other else (), tau=tau)
    p = {"policy": np.array(mine)} | ({"reference": np.array(other)} if other else {})
    return dict(game._numbers(wins, p))


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ([1 / 3, 1 / 3, 1 / 3, 0.0], 0.0),
        ([1.0, 0.0, 0.0, 0.0], 0.5),  # paper always wins
        ([0.5, 0.5, 0.0, 0.0], 0.25),  # paper: 1/2 * 1 + 1/2 * 1/2
        ([0.0, 0.0, 0.0, 1.0], 0.5),  # no answer at all
    ],
)
def test_rock_paper_scissors(mine: list[float], expected: float) -> None:
    assert numbers(RPS, mine)["exploitability"] == pytest.approx(expected)


def test_a_win_rate_is_of_two_policies() -> None:
    found = numbers(RPS, [0.0, 0.6, 0.4, 0.0], [1.0, 0.0, 0.0, 0.0])
    assert found["win.reference"] == pytest.approx(0.6) and "gap.reference" not in found


def test_the_gap_is_zero_at_the_equilibrium_alone() -> None:
    """pi ~ ref exp(P(. > pi) / tau), found by iteration (Munos et al. 2023, proposition 3); two answers by hand."""
    tau, ref = 0.7, np.array([0.6, 0.3, 0.1, 1e-9])
    pi = ref / ref.sum()
    for _ in range(2000):
        new = ref * np.exp(RPS @ pi / tau)
        pi = 0.9 * pi + 0.1 * new / new.sum()
    assert numbers(RPS, list(pi), list(ref), tau)["gap.reference"] == pytest.approx(0.0, abs=1e-6)
    assert numbers(RPS, [0.2, 0.5, 0.3, 0.0], list(ref), tau)["gap.reference"] > 1e-3
    # of two answers, the first preferred with 0.8, the policy the reference, both uniform: beats are .65 and .35
    wins = np.array([[0.5, 0.8, 1.0], [0.2, 0.5, 1.0], [0.0, 0.0, 0.5]])
    best = log(0.5 * exp(0.65) + 0.5 * exp(0.35))
    assert numbers(wins, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], 1.0)["gap.reference"] == pytest.approx(best - 0.5, abs=1e-5)


RECIPE = """
steps = 1
threads = 1
task = {name = "letters", length = 2, cycle = 2.0}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
models.reference = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {n = 2, sampling.max_new = 3}
collect.advantage = {}
part.policy = {terms.loss = {use = "clip"}, optimiser.lr = 0.1}
evaluate = {every = 0, n = 0}
"""


@pytest.fixture
def run() -> Iterator[Run]:
    with open_run(Recipe("made", tomllib.loads(RECIPE), {})) as made:
        made.enter_stage()
        yield made


def test_a_policy_on_strings_by_enumeration(run: Run) -> None:
    found = Game(against=("reference",))(run.ctx)
    rows = Exact()._list_answers(run.ctx, (run.ctx.task, run.ctx.models["policy"], 3))
    p, q = (_chances(rows, role, run.ctx).reshape(16, 9) for role in ("policy", "reference"))
    task: Any = run.ctx.task
    texts, most, won = [a + b for a in "abc" for b in "abc"], [], []
    for i, problem in enumerate(task.problems("test").problems):
        w = np.array([[task.compare(problem, a, b) for b in texts] for a in texts])
        rest = 1 - p[i].sum(), 1 - q[i].sum()
        most.append(max(w @ p[i] + rest[0]) - 0.5)
        won.append(p[i] @ w @ q[i] + p[i].sum() * rest[1] + 0.5 * rest[0] * rest[1])
    assert found["exploitability"] == pytest.approx(np.mean(most))
    assert found["win.reference"] == pytest.approx(np.mean(won))


def test_a_task_that_compares_nothing_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(run.ctx.task), "compare", None)
    with pytest.raises(ValueError, match="the task compares no answers"):
        Game()(run.ctx)
