"""Spurious rewards by enumeration, ROUGE-L by hand, and gains of policies with known chances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from known_policies import Known
from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.findings import AnalysisError, Answers, Opened
from shuhari.methods.analysis.random_calculation.fresh_problems import FreshProblems, find_rouge
from shuhari.methods.analysis.random_calculation.spurious import Spurious, is_formed
from shuhari.tasks.source import Listed
from shuhari.testing import context

QUESTIONS = ("1+2=", "3-1=", "5+5=")


def test_rouge_by_hand() -> None:
    assert find_rouge("12+3", "12+3") == 1
    assert find_rouge("ab", "cd") == 0 == find_rouge("", "a")
    assert find_rouge("axb", "ab") == pytest.approx(2 * 2 / 5)


def test_a_reward_that_is_independent_of_answers_has_no_expected_gradient() -> None:
    """All pairs of answers of a table of three, with all random rewards: the mean of A grad log p is 0, while that of
    the inverted reward is the opposite of the right one's."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    score = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    total, right, inverted = (torch.zeros(3, dtype=torch.float64) for _ in range(3))
    for a, b in product(range(3), range(3)):
        grads = [torch.eye(3, dtype=torch.float64)[i] - p for i in (a, b)]  # of log p by the logits
        chance = p[a] * p[b]
        for rewards in product((0.0, 1.0), repeat=2):
            centred = torch.tensor(rewards, dtype=torch.float64) - sum(rewards) / 2
            total += chance / 4 * (centred[0] * grads[0] + centred[1] * grads[1])
        for out, given in ((right, score), (inverted, 1 - score)):
            r = given[[a, b]]
            out += chance * ((r - r.mean())[0] * grads[0] + (r - r.mean())[1] * grads[1])
    assert total.abs().max() < 1e-12 < right.abs().max()
    assert torch.allclose(inverted, -right)


def grade(texts: Sequence[str], scores: Sequence[float | None], **settings: Any) -> list[Any]:
    ids = np.ones(1, np.int32)
    request = Request(Problem("sums", "1", "1="), key="k")
    group = []
    for text, score in zip(texts, scores, strict=True):
        step = Step.of(ids, ids, info={"text": text}, reward={} if score is None else {"score": score})
        group.append(Trajectory(request, (step,)))
    ctx: Any = context(count=0)
    found = asyncio.run(Spurious(**settings).grade(group, ctx))
    return [None if g is None else g["spurious"] for g in found]


def test_inverted_rewards_and_rewards_of_the_form() -> None:
    assert grade(["3", "4", "5"], [1.0, 0.25, None], kind="inverted") == [0.0, 0.75, None]
    assert grade(["3", "4-", "1+1=2", "", "x"], [0.0] * 5, kind="form") == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert is_formed("-7/3") and not is_formed("7/0")


def test_random_rewards_are_a_fair_coin_that_reads_no_answer() -> None:
    n = 2000
    first, again = grade(["3"] * n, [1.0] * n), grade(["4"] * n, [0.0] * n)
    assert first == again and set(first) == {0.0, 1.0}
    assert abs(sum(first) - n / 2) < 4 * (n / 4) ** 0.5
    assert sum(grade(["3"] * n, [1.0] * n, chance=0.0)) == 0


class Remembering(Known):
    """Policies that solve what their chances say, by split, and complete the questions of `seen` exactly."""

    def sample(self, *args: Any, split: str = "", **settings: Any) -> list[Answers]:
        chances = {name: [self.by_split[split][name]] * 64 for name in self.names}
        return Known(chances).sample(*args, **settings)

    by_split: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "test": {"start": 0.3, "rl": 0.3}, "seen": {"start": 0.5, "rl": 0.9},
    }  # fmt: skip

    @contextmanager
    def open(self, i: int) -> Iterator[Opened]:
        def list_problems(split: str) -> Listed:
            return Listed([Problem(split, f"{split}/{question}", question) for question in QUESTIONS])

        async def sample(role: str, shown: str, sampling: Sampling, n: int, key: tuple[str, str]) -> Any:
            rest = next(q[len(shown):] for q in QUESTIONS if q.startswith(shown))
            return (SimpleNamespace(action=f"{rest}9" if "seen" in key[0] else "?"),)

        ctx = SimpleNamespace(task=SimpleNamespace(problems=list_problems), sampling=Sampling(), now=lambda x: x,
                              wait=asyncio.run, engine=SimpleNamespace(sample=sample), encode=str, text=str)
        yield Opened(self.names[i], ctx, {})


def test_a_gain_on_remembered_problems_alone() -> None:
    found = FreshProblems(seen="seen", samples=32)(Remembering({"start": [], "rl": []}))
    n = found.numbers
    assert n["fresh"].low < 0 < n["fresh"].high and n["seen"].low < 0.4 < n["seen"].high
    assert abs(n["seen"].null) < 0.05
    assert n["completed seen"].value == 1 and n["completed fresh"].value == 0
    assert [row[0] for row in found.rows] == ["start", "rl", "questions completed", "ROUGE-L of completions"]


def test_one_policy_is_not_enough() -> None:
    with pytest.raises(AnalysisError, match="1 policy: expected a start"):
        FreshProblems()(Known({"start": [0.5]}))
