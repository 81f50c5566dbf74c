"""Shares of repeated n-grams, counted by hand."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from shuhari.data import Problem, Ramp, Request, Status, Step, Trajectory
from shuhari.rewards.repetition import Repetition
from shuhari.testing import context

CTX = context(count=5)
REQUEST = Request(Problem("t", "p", ""))


def step(text, parent=None):
    return Step.of(np.ones(1, np.int32), np.ones(1, np.int32), parent=parent, info={"text": text})


def grades(reward, *texts):
    group = [Trajectory(REQUEST, (step(text),), Status.FINISHED) for text in texts]
    return [g[reward.name] for g in asyncio.run(reward.grade(group, CTX))]


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("a b a b a", 2, 2 / 4),  # ab ba ab ba
        ("a b c d e", 2, 0),
        ("a a a a", 1, 3 / 4),
        ("a b", 3, 0),  # no n-gram at all
        ("", 1, 0),
        ("a  b\na\tb", 2, 1 / 3),  # ab ba ab: white space is white space
    ],
)
def test_words_by_hand(text, n, share):
    assert grades(Repetition(n=n), text) == [pytest.approx(-share)]


def test_characters_weights_and_names():
    reward = Repetition("again", n=2, unit="character", weight=Ramp(0.0, 1.0, over=10))  # at 5: 0.5
    assert grades(reward, "abab", "abcd") == [pytest.approx(-0.5 / 3), 0]  # ab ba ab


def test_one_grade_a_leaf_and_none_where_nothing_was_said():
    tree = Trajectory(REQUEST, (step("a b "), step("a b", 0), step("c d", 0)), Status.FINISHED)
    closed = Trajectory(REQUEST, (Step.closing(np.ones(2), None, 0.0),), Status.ERROR)
    found = asyncio.run(Repetition(n=2).grade([tree, closed], CTX))
    assert found == [{"repetition": pytest.approx(-1 / 3)}, {"repetition": 0.0}, None]
