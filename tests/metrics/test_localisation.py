"""Whether values find first mistakes: areas by hand, and a critic that knows, and one of places alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.metrics.localisation import Localisation
from shuhari.tasks.bandit import Bandit
from shuhari.tasks.work import Work

TASK = Work(terms=3)


def context(answers: list[str], value: Callable[[str, int, int | None], float]) -> Any:
    """A policy that says these in turn, and the value of each decision: of (text, place, the first wrong place)."""
    source: Any = TASK.problems("test")
    texts = []
    for i, text in enumerate(answers):
        p = source[i]
        a, b = (x + "=" + str(int(y)) for x, y in zip((p.id[1:3], p.id[3:]), _sums(p.id), strict=True))
        other = str((int(str(p.answer)[1]) + 1) % 10)
        texts.append(text.format(a=a, b=b, answer=p.answer, miss=other))

    async def probe(asked: list[Request], tag: str) -> Any:
        steps = [Step.of(np.ones(3, np.int32), np.ones(len(t), np.int32), info={"text": t}) for t in texts]
        return pack([Trajectory(r, (s,)) for r, s in zip(asked, steps, strict=True)])

    def score(batch: Any, needs: list[Any]) -> Any:
        out = torch.zeros(len(batch), batch.width)
        for i, text in enumerate(texts):
            at = TASK.first_wrong(source[i], text)
            out[i, : len(text)] = torch.tensor([value(text, k, at) for k in range(len(text))])
        return {needs[0]: out}

    return testing.context(task=TASK, probe=probe, score=score, encode_text=lambda text, role: np.array([*text]))


def _sums(content: str) -> tuple[int, int]:
    first, second, third = int(content[0]), int(content[1:3]), int(content[3:])
    return first + second, first + second + third


ANSWERS = ["{a}{b}{answer}", "{a}{b};{miss}", "{a}{b}{answer}", "{a}?x{b}{answer}", "{a}{b}", "{a}{b};{miss}"]


def measure(value: Callable[[str, int, int | None], float]) -> Any:
    return Localisation(n=len(ANSWERS), samples=1)(context(ANSWERS, value))


def test_a_critic_that_knows_finds_all_and_one_of_places_none() -> None:
    """Of six answers two are wrong at their end and one at place 5; the fifth is right as far as it goes."""
    assert measure(lambda text, k, at: -1.0 if k == at else float(k)) == {"auc": 1.0, "wrong": 0.5}
    assert measure(lambda text, k, at: 1.0 if k == at else 0.0)["auc"] == 0.0
    assert measure(lambda text, k, at: float(-k))["auc"] == 0.5


def test_what_is_behind_a_mistake_does_not_count() -> None:
    assert measure(lambda text, k, at: -1.0 if at is not None and k >= at else 0.0)["auc"] == 1.0
    assert measure(lambda text, k, at: -1.0 if at is not None and k > at else 0.0)["auc"] == 0.5


def test_areas_by_hand() -> None:
    """At place 9 mistakes have 0 and 1, right decisions .5, 1 and 2: of six pairs four are in order and one is a tie.
    At place 8 one mistake is below all five right ones. Without mistakes there is no area."""
    right, wrong = ["{a}{b}{answer}"] * 3, ["{a}{b};{miss}", "{a}{b};{miss}", "{a}{b}{miss}"]
    at_end = {None: iter([0.5, 1.0, 2.0]), 9: iter([0.0, 1.0])}

    def value(text: str, k: int, at: int | None) -> float:
        return next(at_end[at]) if k == 9 else -1.0 if k == at else 0.0

    found = Localisation(n=6, samples=1)(context([*right, *wrong], value))
    assert found == {"auc": pytest.approx((3 + 1 + 0.5 + 5) / (6 + 5)), "wrong": 0.5}
    assert math.isnan(Localisation(n=3, samples=1)(context(right, lambda text, k, at: 0.0))["auc"])


def test_a_task_that_does_not_say_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a task that has first_wrong\(problem, text\)"):
        Localisation()(testing.context(task=Bandit()))
