"""Words of a trie: against linear algebra modulo 4, enumeration of all words, and the stated law of demonstrations."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import log, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem
from shuhari.tasks.trie import LETTERS, Trie
from spoken import said, score_uniform

WORDS = ["".join(w) for w in product("ABCD", repeat=4)]
LONG = {"length": 10, "listed": "right", "levels": ("all",), "scores": ((1.0,),), "shares": ((1.0,),)}


def strategies(task: Trie) -> dict[str, tuple[str, ...]]:
    """prompt -> the strategies' words, as far as answers tell: the right ones and the traps, in order."""
    out = {}
    for problem in task.problems("test").problems:  # type: ignore[union-attr]
        a = task.answers(problem)
        told = {t for t, s, label in zip(a.texts, a.scores, a.labels, strict=True) if s > 0 or label == "trap"}
        out[problem.id] = tuple(sorted(map(str, told)))
    return out


@pytest.mark.parametrize("topics", [16, 64])
def test_letters_are_linear_in_the_topic(topics: Any) -> None:
    task = Trie(topics=topics, levels=("all",), scores=((1.0,),), shares=((1.0,),), length=6)
    word = {p.id[:-1]: [LETTERS.index(x) for x in str(p.answer)] for p in task.problems("test").problems}  # type: ignore[union-attr]
    zero = "A" * (2 if topics == 16 else 3)
    assert len(word) == topics
    for topic, letters in word.items():
        ones = [zero[:j] + "B" + zero[j + 1 :] for j in range(len(zero))]
        steps = [np.subtract(word[one], word[zero]) * LETTERS.index(x) for one, x in zip(ones, topic, strict=True)]
        assert np.array_equal((word[zero] + np.sum(steps, 0)) % 4, letters)
    assert len({tuple(w) for w in word.values()}) > topics / 4


def test_strategies_begin_apart_and_words_hang_on_codes_alone() -> None:
    words = strategies(Trie())
    assert len(words) == 32 and all(len({w[0] for w in of}) == 4 for of in words.values())
    assert words["BD0="] == words["BD1="]  # the cue says which of them are right
    assert strategies(Trie(seed=7)) == words != strategies(Trie(codes=1))


@pytest.mark.parametrize("cue", [True, False])
def test_all_words_are_listed_and_graded_alike(cue: bool) -> None:
    task, solved = Trie(cue=cue), {}
    for problem in task.problems("test").problems:  # type: ignore[union-attr]
        answers = task.answers(problem)
        assert answers.complete and sorted(map(str, answers.texts)) == WORDS
        grades = [task.grade(problem, said(str(t)))["score"] for t in answers.texts]
        assert tuple(grades) == answers.scores and sum(grades) == 2
        assert Counter(answers.labels) == {"": 254, "trap": 2}
        assert task.grade(problem, said(str(problem.answer))) == {"score": 1.0}  # who knows the answer is right
        solved[problem.id] = problem.info["level"]
    hard = {p for p, level in solved.items() if level == "hard"}
    sums = {p for p in solved if (LETTERS.index(p[0]) + LETTERS.index(p[1])) % 4 == 0}
    assert hard == ({p for p in solved if p[2] == "1"} if cue else sums) and len(sums) == len(solved) / 4


def test_what_is_right_at_one_level_is_the_trap_of_the_other() -> None:
    task = Trie()
    easy, hard = (task.answers(Problem("trie", p, p)) for p in ("CA0=", "CA1="))
    right, trap = ({t for t, s in zip(a.texts, a.scores, strict=True) if s} for a in (easy, hard))
    for answers, expected in ((easy, trap), (hard, right)):
        assert {t for t, x in zip(answers.texts, answers.labels, strict=True) if x == "trap"} == expected


@pytest.mark.parametrize("text", ["", "A", "AAAAA", "0000", "ABC="])
def test_what_is_no_word_scores_nothing(text: str) -> None:
    task = Trie()
    assert task.grade(task.problems("train")[0], said(text)) == {"score": 0.0}


def test_words_that_are_right_or_bear_a_label() -> None:
    task = Trie(length=5, codes=1, listed="right", scores=((0.5, 1.0),), shares=((0.5, 0.5),), unsafe=(0.0, 0.3))
    answers = task.answers(task.problems("train")[0])
    assert not answers.complete and answers.scores[:2] == (0.5, 1.0) and answers.labels[:2] == ("", "")
    ends = {"".join(x) + "DDD" for x in product("ABCD", repeat=2)}
    assert {t for t, x in zip(answers.texts, answers.labels, strict=True) if x == "unsafe"} == ends


def test_a_uniform_policy_scores_as_counted(tmp_path: Path) -> None:
    """Seven characters and the end: a word and its end have probability 8^-5 under equal logits."""
    found = score_uniform({"name": "trie"}, 5, 2, tmp_path)
    p = 8.0**-5
    assert found["mean@easy"] == found["mean@hard"] == pytest.approx(2 * p)
    assert found["mass@trap"] == pytest.approx(2 * p) and found["rest"] == pytest.approx(1 - 256 * p)
    assert found["pass@8"] == pytest.approx(1 - (1 - 2 * p) ** 8)
    assert found["modes"] == pytest.approx(2.0)
    assert found["entropy"] == pytest.approx(-256 * p * log(p) - (1 - 256 * p) * log(1 - 256 * p))


# ------------------------------------------------------------------------------------------------ demonstrations


def near(found: int, n: int, p: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(found - n * p) <= 4 * sqrt(n * p * (1 - p)) + 1e-9


def shown(task: Trie, n: int) -> list[Problem]:
    train = task.problems("train")
    return [train[i] for i in range(n)]


def loose(word: str) -> float:
    """The chance of a loose word: P(floor(4 u^1.5) = k) = ((k + 1) / 4)^(2/3) - (k / 4)^(2/3)."""
    return prod(((k + 1) / 4) ** (2 / 3) - (k / 4) ** (2 / 3) for k in map(LETTERS.index, word))


def test_demonstrations_say_each_word_in_its_share() -> None:
    task, n = Trie(shares=((0.2, 0.1, 0.05, 0.05), (0.0, 0.0, 0.6, 0.3))), 6400
    problems = shown(task, n)
    for level, (right, wrong) in {"easy": (0.3, 0.1), "hard": (0.9, 0.0)}.items():
        of = [p for p in problems if p.info["level"] == level]
        answers = {p.id: task.answers(p) for p in of}
        kinds = {p: dict(zip(a.texts, zip(a.scores, a.labels, strict=True), strict=True)) for p, a in answers.items()}
        for kind, share in (((1.0, ""), right), ((0.0, "trap"), wrong)):
            by_chance = np.mean([sum(loose(str(t)) for t, k in x.items() if k == kind) for x in kinds.values()])
            found = sum(kinds[p.id][p.solution] == kind for p in of)
            assert near(found, len(of), share + (1 - right - wrong) * float(by_chance))  # a loose word may be one


def test_loose_letters_fall_by_their_law() -> None:
    n = 1600
    words = [str(p.solution) for p in shown(Trie(shares=((0.0,) * 4,)), n)]
    counts = Counter("".join(words))
    assert all(near(counts[x], 4 * n, loose(x)) for x in LETTERS)
    assert sum(map(loose, WORDS)) == pytest.approx(1)


@pytest.mark.parametrize("firm", [0, 1])
def test_letters_slip_but_for_the_firm_ones(firm: int) -> None:
    n, task = 4000, Trie(**LONG, slip=(0.25, 0.25), firm=firm)  # type: ignore[arg-type]
    problems = shown(task, n)
    slips = [[a != b for a, b in zip(str(p.solution), str(p.answer), strict=True)] for p in problems]
    per_letter = np.sum(slips, 0)
    assert not per_letter[:firm].any() and all(near(int(x), n, 0.25) for x in per_letter[firm:])
    assert near(sum(not any(x) for x in slips), n, 0.75 ** (10 - firm))


def test_chances_to_slip_spread_over_prompts() -> None:
    n, task = 16 * 100, Trie(**LONG, slip=(0.1, 0.9), firm=0)  # type: ignore[arg-type]
    rate: Counter[str] = Counter()
    for p in shown(task, n):
        rate[p.id] += sum(a != b for a, b in zip(str(p.solution), str(p.answer), strict=True))
    rates = [x / 1000 for x in rate.values()]
    assert 0.05 < min(rates) < 0.3 and 0.7 < max(rates) < 0.95


def test_marked_demonstrations_end_unsafely() -> None:
    n, task = 6400, Trie(levels=("plain", "marked"), length=5, codes=1, scores=((1,),), shares=((1,),), unsafe=(0, 0.3))
    problems = shown(task, n)
    for level, share in {"plain": 0.0, "marked": 0.3}.items():
        of = [p for p in problems if p.info["level"] == level]
        assert near(sum(str(p.solution).endswith("DDD") for p in of), len(of), share)
    assert all(p.solution == p.answer for p in problems if p.info["level"] == "plain")


# ------------------------------------------------------------------------------------------------ splits, settings


def test_training_walks_all_prompts_in_turn() -> None:
    problems = shown(Trie(), 64)
    assert len({p.id for p in problems[:32]}) == 32
    assert [p.id for p in problems[:32]] == [p.id for p in problems[32:]]
    assert Counter(p.info["level"] for p in problems[:32]) == {"easy": 16, "hard": 16}
    assert any(a.solution != b.solution for a, b in zip(problems[:32], problems[32:], strict=True))


def test_prompts_are_held_out_by_their_hash() -> None:
    task = Trie(topics=64, cue=False, held_out=0.25)
    test, train = {p.id for p in task.problems("test").problems}, {p.id for p in shown(task, 64)}  # type: ignore[union-attr]
    assert not test & train and len(test | train) == 64 and 8 <= len(test) <= 24
    assert {p.id for p in Trie(topics=64, cue=False, held_out=0.25, seed=3).problems("test").problems} == test  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": ("one", "one")}, "levels are"),
        ({"levels": ("one",)}, "scores has 2 entries"),
        ({"shares": ((0.5, 0.5),)}, "rows of one length"),
        ({"shares": ((0.5, 0.5, 0.2, 0.0),)}, "sum to 1 or less"),
        ({"scores": ((0.0,) * 4,)}, "one above 0 in every row"),
        ({"length": 7}, "listed = 'right'"),
        ({"length": 3, "unsafe": (0.1,)}, "expected 4 or more"),
        ({"length": 4, "unsafe": (0.1,)}, "codes is 0"),
        ({"slip": (0.0, 2.0)}, "slip"),
        ({"held_out": 1.0}, "held_out"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trie(**settings)


def test_a_share_that_leaves_a_split_empty_is_named() -> None:
    with pytest.raises(ValueError, match="held_out is 1e-09 of 32 prompts"):
        Trie(held_out=1e-9).problems("train")[0]
