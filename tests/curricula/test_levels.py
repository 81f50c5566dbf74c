"""Levels by given shares, and by a bandit: its pay and its draws by hand, and SEC's bandit in a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import sqrt
from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.buffers.fresh import Fresh
from shuhari.curricula.levels import Bandit, Levels, mean_size
from shuhari.curricula.sequential import Sequential
from shuhari.data import ContractError, Problem, Request
from shuhari.events import Collected
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip
from shuhari.ports import Curriculum
from shuhari.testing import context, groups
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

curriculum: Curriculum = Bandit(Sequential())


class Given:
    """Problems of two levels in turn, three easy ones for each hard one, and a number each."""

    def __init__(self) -> None:
        self.at = 0

    async def select(self, n: int, ctx: Any) -> list[Request]:
        first, self.at = self.at, self.at + n
        levels = ["hard" if i % 4 == 3 else "easy" for i in range(first, self.at)]
        return [Request(Problem("t", str(first + i), "", info={"level": x})) for i, x in enumerate(levels)]


def asked(curriculum: Any, n: int, seed: int = 0, **more: Any) -> list[Request]:
    return asyncio.run(curriculum.select(n, context(seed, step=seed, **more)))


def levels(requests: list[Request]) -> list[Any]:
    return [r.problem.info["level"] for r in requests]


def paid(rewards: list[list[float]], arms: list[float], population: bool = True) -> Any:
    """The groups of a step, their advantages in standard deviations."""
    batch = groups(rewards, lengths=2)
    batch = Advantage(ddof=0, eps=0.0)(batch, context())
    return batch.put({"arm": torch.tensor([a for a, group in zip(arms, rewards, strict=True) for _ in group])})


# ---------------------------------------------------------------- shares


def test_each_level_is_drawn_by_its_share_whatever_its_number() -> None:
    seen = Counter(levels(asked(Levels(Given(), {"easy": 0.2, "hard": 0.6}, key="level"), 4000)))
    assert seen["hard"] / 4000 == pytest.approx(0.75, abs=0.03)


class Once(Given):
    """Easy problems, and at the beginning two hard ones that never come again."""

    async def select(self, n: int, ctx: Any) -> list[Request]:
        found = await super().select(n, ctx)
        late = [r for r in found if r.problem.info["level"] == "easy" or int(r.problem.id) < 8]
        return late or found[:1]


def test_a_rare_level_comes_round_again() -> None:
    """Rather than to end the run over a problem that comes once an epoch."""
    found = asked(Levels(Once(), {"easy": 1.0, "hard": 1.0}, key="level"), 12)
    hard = [int(r.problem.id) for r in found if r.problem.info["level"] == "hard"]
    assert len(hard) > 3 and hard == [(3, 7)[i % 2] for i in range(len(hard))]


def test_within_a_level_problems_come_in_the_order_of_the_candidates() -> None:
    found = asked(Levels(Given(), {"easy": 1.0, "hard": 1.0}, key="level"), 12)
    hard = [int(r.problem.id) for r in found if r.problem.info["level"] == "hard"]
    easy = [int(r.problem.id) for r in found if r.problem.info["level"] == "easy"]
    assert hard == [3 + 4 * i for i in range(len(hard))] and easy == [i for i in range(40) if i % 4 < 3][: len(easy)]


def test_without_a_key_tasks_are_the_levels() -> None:
    assert len(asked(Levels(Given(), {"t": 1.0}), 4)) == 4


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one above 0"):
        Levels(Given(), {"easy": 0.0})
    with pytest.raises(ValueError, match=r"100 candidates has level 'hart'; did you mean 'hard'"):
        asked(Levels(Given(), {"hart": 1.0}, key="level"), 1)
    with pytest.raises(ContractError, match=r"has no 'levels' in its info: did you mean 'level'"):
        asked(Levels(Given(), {"easy": 1.0}, key="levels"), 1)
    with pytest.raises(ValueError, match="tau is 0"):
        Bandit(Given(), tau=0.0)


# ---------------------------------------------------------------- what pays


def test_the_pay_of_a_level_by_hand() -> None:
    """Binary rewards over a population's deviation: 2 sqrt(p (1 - p)), and 0 where all are alike."""
    batch = paid([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]], [0, 1, 2, 2, 2])
    assert mean_size(batch, "advantage") == pytest.approx({0: 1.0, 1: sqrt(3) / 2, 2: 1 / 3})
    bandit = Bandit(Given(), key="level", alpha=0.25)
    bandit.state["pay"] = {"a": 0.0, "b": 0.4, "c": 0.0, "unseen": 0.7}
    bandit.observe(Collected(batch))
    assert bandit.state["pay"] == pytest.approx({"a": 0.25, "b": 0.3 + sqrt(3) / 8, "c": 1 / 12, "unseen": 0.7})
    last = Bandit(Given(), alpha=1.0)
    last.state["pay"] = {"a": 5.0, "b": 0.0, "c": 9.0}
    last.observe(Collected(batch))
    assert last.state["pay"] == pytest.approx({"a": 1.0, "b": sqrt(3) / 2, "c": 1 / 3})


def test_failed_and_ungraded_answers_do_not_pay() -> None:
    batch = paid([[1, 1, 0, 0], [1, 0, float("nan"), 0]], [0, 0])
    rest = batch["advantage"][[0, 1, 2, 3, 4, 5, 7], 0].abs()
    assert mean_size(batch, "advantage") == pytest.approx({0: float(rest.mean())})


def test_levels_are_drawn_from_a_softmax_of_their_pay() -> None:
    """Q = (0, 1) at tau = 1: (.2689, .7311); at a large tau the levels come alike often."""
    for tau, p in ((1.0, 0.7311), (1e9, 0.5)):
        bandit = Bandit(Given(), key="level", tau=tau, look=8)
        bandit.state["pay"] = {"easy": 0.0, "hard": 1.0}
        seen = Counter(levels(asked(bandit, 4000)))
        assert seen["hard"] / 4000 == pytest.approx(p, abs=4 * (p * (1 - p) / 4000) ** 0.5)
        assert bandit.report()["curriculum/share@hard"] == pytest.approx(p, abs=5e-5)


def test_a_request_names_its_arm_and_a_level_that_comes_late_has_one() -> None:
    bandit = Bandit(Given(), key="level", look=2)
    found = asked(bandit, 8)
    assert {r.problem.info["level"] for r in found} == {"easy"} and {r.info["arm"] for r in found} == {0.0}
    found = asked(bandit, 64, seed=1)
    assert {(r.problem.info["level"], r.info["arm"]) for r in found} == {("easy", 0.0), ("hard", 1.0)}


# ---------------------------------------------------------------- in a run


def run_of() -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=Fresh(4), steps=3, curriculum=Bandit(Sequential(pool=6)), n=8,
            max_new=1, collect={"advantage": Advantage()},
        ),
    )  # fmt: skip


def test_a_run_pays_what_it_collected() -> None:
    run = run_of()
    reports = list(harness.train(run))
    task = next(iter(run.stage.curriculum.state["pay"]))
    assert all(r[f"curriculum/share@{task}"] == 1.0 for r in reports) and reports[-1][f"curriculum/pay@{task}"] > 0


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    testing.check_resumed(run_of)
