"""Strings and tastes: against enumeration, the stated law of preferences, and algebra of opposite tastes."""

from __future__ import annotations

from itertools import product
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from shuhari.tasks.letters import Letters, find_kind
from spoken import said

TEXTS = ["".join(x) for x in product("abc", repeat=3)]


def test_all_answers_are_listed_and_graded_alike() -> None:
    task = Letters(tastes=2, weights=(3.0, 1.0))
    problems = task.problems("test").problems  # type: ignore[union-attr]
    assert len(problems) == 16
    for problem in problems:
        found = task.answers(problem)
        assert found.complete and list(found.texts) == TEXTS
        grades = [task.grade(problem, said(text)) for text in TEXTS]
        assert tuple(g["score"] for g in grades) == found.scores
        assert found.scores == pytest.approx([0.75 * g["taste0"] + 0.25 * g["taste1"] for g in grades])
        assert problem.answer == TEXTS[int(np.argmax(found.scores))]


def test_a_reward_is_the_mean_value_of_letters_in_any_order() -> None:
    task = Letters()
    rate = {text: task.rate("pq=", 0, text) for text in TEXTS}
    assert rate["abc"] == rate["cab"] == pytest.approx((rate["aaa"] + rate["bbb"] + rate["ccc"]) / 3)
    assert rate != {text: task.rate("pr=", 0, text) for text in TEXTS}


@pytest.mark.parametrize("text", ["", "ab", "abcd", "abd", "ABC"])
def test_what_is_no_answer_scores_nothing_and_loses(text: str) -> None:
    task = Letters(tastes=2)
    problem = task.problems("test")[0]
    assert task.grade(problem, said(text)) == {"score": 0.0, "taste0": 0.0, "taste1": 0.0}
    assert task.compare(problem, "abc", text) == 1 and task.compare(problem, text, "xx") == 0.5


def test_opposite_tastes_add_up_to_one() -> None:
    task = Letters(tastes=2, against=1.0)
    for text in TEXTS:
        assert task.rate("pp=", 0, text) + task.rate("pp=", 1, text) == pytest.approx(1)
    problem = task.problems("test")[0]
    assert task.compare(problem, "aab", "cbc") == pytest.approx(0.5)  # users in equal shares cancel


def test_preferences_are_the_stated_law() -> None:
    task = Letters(sharpness=5.0, cycle=2.0)
    problem = task.problems("test")[3]
    for a, b in [("aaa", "abc"), ("aab", "aaa"), ("aac", "aab"), ("aaa", "aac"), ("bca", "bca")]:
        turn = (sum(map("abc".index, a)) - sum(map("abc".index, b))) % 3
        logit = 5 * (task.rate(problem.id, 0, a) - task.rate(problem.id, 0, b)) + {0: 0, 1: 2, 2: -2}[turn]
        assert task.compare(problem, a, b) == pytest.approx(1 / (1 + exp(-logit)))
        assert task.compare(problem, a, b) + task.compare(problem, b, a) == pytest.approx(1)


def test_a_cycle_is_no_difference_of_rewards() -> None:
    task = Letters(sharpness=0.0, cycle=1.0)
    problem = task.problems("test")[0]
    kinds = {find_kind(text): text for text in TEXTS}
    assert all(task.compare(problem, kinds[(k + 1) % 3], kinds[k]) > 0.7 for k in range(3))


def test_pairs_are_compared_by_their_users() -> None:
    """Of 4,000 pairs: shares of users, and how often the answer that a user rates higher is chosen."""
    task = Letters(tastes=2, users=(0.8, 0.2), sharpness=6.0)
    source, n = task.problems("train"), 4000
    pairs = [source[i] for i in range(n)]
    users = np.array([p.info["user"] for p in pairs])
    assert abs(users.mean() - 0.2) < 4 * sqrt(0.16 / n)
    expected, found = 0.0, 0.0
    for p in pairs:
        gap = p.info[f"margin{p.info['user']}"]
        assert gap == pytest.approx(
            task.rate(p.id, p.info["user"], p.info["chosen"]) - task.rate(p.id, p.info["user"], p.info["rejected"])
        )
        expected += 1 / (1 + exp(-6 * abs(gap)))
        found += gap > 0 or (gap == 0 and 0.5)
    assert abs(found - expected) / n < 4 * sqrt(0.25 / n)
    assert all(p.info["chosen"] != p.info["rejected"] for p in pairs)


def test_demonstrated_letters_have_the_stated_law() -> None:
    """P(first of the prompt's order) is P(u^1.5 < 1/3) = (1/3)^(2/3); prompts differ in which letter it is."""
    task = Letters()
    source = task.problems("train")
    shown: dict[str, str] = {}
    for i in range(2000):
        shown[str(source[i].prompt)] = shown.get(str(source[i].prompt), "") + str(source[i].solution)
    first = {prompt: max("abc", key=letters.count) for prompt, letters in shown.items()}
    share = sum(letters.count(first[prompt]) for prompt, letters in shown.items()) / 6000
    assert abs(share - (1 / 3) ** (2 / 3)) < 4 * sqrt(0.25 / 6000)
    assert {*first.values()} == {*"abc"}


def test_values_hang_on_codes_and_pairs_on_the_seed() -> None:
    a, b, c = Letters(), Letters(seed=1), Letters(codes=1)
    assert a.rate("pq=", 0, "abc") == b.rate("pq=", 0, "abc") != c.rate("pq=", 0, "abc")
    assert [a.problems("train")[i].info["chosen"] for i in range(9)] != [
        b.problems("train")[i].info["chosen"] for i in range(9)
    ]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"letters": 6, "length": 8}, "letters is 6 and length 8, 1679616 answers: expected at most 6561"),
        ({"tastes": 2, "weights": (1.0, 1.0, 1.0)}, r"weights is \(1.0, 1.0, 1.0\), for 2 tastes"),
        ({"users": (0.0,)}, r"users is \(0.0,\)"),
        ({"letters": 7}, "letters"),
        ({"sharpness": -1.0}, "sharpness"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Letters(**settings)


def test_prompts_that_are_held_out_are_not_trained_on() -> None:
    task = Letters(held_out=0.3)
    test = {p.id for p in task.problems("test").problems}  # type: ignore[union-attr]
    source = task.problems("train")
    train = {source[i].id for i in range(64)}
    assert test and train and not test & train and len(test | train) == 16
    with pytest.raises(ValueError, match=r"held_out is 0\.001 of 16 prompts"):
        Letters(held_out=0.001).problems("test")
