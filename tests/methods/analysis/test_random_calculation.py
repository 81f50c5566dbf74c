"""Spurious rewards by enumeration, ROUGE-L by hand, and gains of policies with known chances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from known_policies import Known
from shuhari.data import Problem, Request, Sampling, Trajectory
from shuhari.kernel.findings import AnalysisError, Answers, Opened
from shuhari.methods.analysis.random_calculation.fresh_problems import FreshProblems, find_rouge
from shuhari.methods.analysis.random_calculation.spurious import Spurious, is_formed
from shuhari.testing import context
from spoken import said

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


def make_group(texts: Sequence[str], scores: Sequence[float]) -> list[Trajectory]:
    request = Request(Problem("sums", "1", "1=", "1", "1"), len(texts), Sampling(), key=(1,))
    out = []
    for text, score in zip(texts, scores, strict=True):
        (step,) = said(text)
        out.append(Trajectory(request, (SimpleNamespace(**{**vars_of(step), "reward": {"score": score}}),)))  # type: ignore[arg-type]
    return out


def vars_of(step: Any) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__dataclass_fields__}
