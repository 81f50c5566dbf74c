"""Worked sums: demonstrations against the stated law and sums by hand, the first mistake against all right works."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import product
from math import sqrt
from typing import Any

import pytest

from shuhari.data import Problem
from shuhari.tasks.chain import Chain
from shuhari.tasks.work import Work
from spoken import said

N = 1500


def shown(n: int = N, **settings: Any) -> list[Problem]:
    train = Work(**settings).problems("train")
    return [train[i] for i in range(n)]


def near(found: int, n: int, p: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(found - n * p) <= 4 * sqrt(n * p * (1 - p)) + 1e-9


def worked(problem: Problem) -> list[tuple[int, list[int]]]:
    """Of each step of a demonstration (what it should have been after what was written before, all that it says)."""
    total, *terms = map(int, re.findall(r"[+-]?\d", problem.id))
    body, _, answer = str(problem.solution).partition(";")
    out = []
    for term, step in zip(terms, re.findall(r"[+-]\d=\d(?:\?\d)*", body), strict=True):
        assert step.startswith(f"{term:+d}=")
        says = [int(x) for x in step[3:].split("?")]
        out.append((min(max(total + term, 0), 9), says))
        total = says[-1]
    assert answer == str(total)
    return out


def test_problems_are_those_of_chain() -> None:
    sums = Chain(terms=5, least=3, seed=3)
    for split in ("train", "test"):
        ours, theirs = Work(terms=5, least=3, seed=3, template="w").problems(split), sums.problems(split)
        for a, b in ((ours[i], theirs[i]) for i in range(100)):
            assert (a.prompt, a.answer, a.info) == ("w" + str(b.prompt), ";" + str(b.answer), b.info)
            assert b.answer == str(sum(map(int, re.findall(r"[+-]?\d", b.id))))
    assert Work().problems("test").size() == 256


def test_without_slips_the_work_is_right() -> None:
    task = Work(slip=0.0, recheck=0.5)
    for problem in shown(200, slip=0.0, recheck=0.5):
        assert all(set(says) == {right} for right, says in worked(problem))
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0}
        assert task.first_wrong(problem, str(problem.solution)) is None
        assert {*str(problem.prompt), *str(problem.solution)} <= set(task.alphabet)


def test_a_slip_is_one_too_little_and_0_stays_0() -> None:
    for problem in shown(300, slip=1.0):
        total, *terms = map(int, re.findall(r"[+-]?\d", problem.id))
        for term, (_, says) in zip(terms, worked(problem), strict=True):
            total = max(total + term - 1, 0)
            assert says == [total]


@pytest.mark.parametrize("slip", [0.25, 0.6])
def test_sums_slip_as_often_as_they_should(slip: float) -> None:
    steps = [step for p in shown(slip=slip) for step in worked(p) if step[0] > 0]
    assert near(sum(says[0] != right for right, says in steps), len(steps), slip)


def test_rechecks_come_and_mend_by_their_law() -> None:
    recheck, most, fix = 0.7, 3, 0.6
    steps = [step for p in shown(slip=0.5, recheck=recheck, rechecks=most, fix=fix) for step in worked(p)]
    counts = Counter(len(says) - 1 for _, says in steps)
    for k in range(most + 1):
        assert near(counts[k], len(steps), recheck**k * (1 - recheck if k < most else 1))
    for k in range(1, most + 1):
        slips = [(right, says) for right, says in steps if says[0] != right and len(says) == k + 1]
        assert near(sum(says[-1] == right for right, says in slips), len(slips), 1 - (1 - fix) ** k)
    for right, says in steps:  # once right it stays right
        assert says == sorted(says, key=lambda x: x == right)


def test_stuck_work_is_rechecked_up_to_the_cap() -> None:
    cap, loop = 20, 0.4
    stuck = [str(p.solution) for p in shown(loop=loop, cap=cap) if ";" not in str(p.solution)]
    assert near(len(stuck), N, loop)
    places: Counter[int] = Counter()
    for text in stuck:
        found = re.fullmatch(r"((?:[+-]\d=\d)+)((?:\?\d)+\??)", text)
        assert len(text) == cap and found and set(found[2]) <= {"?", found[1][-1]}
        places[len(found[1]) // 4] += 1
    assert all(near(places[i], len(stuck), 1 / 3) for i in (1, 2, 3))


def test_answers_without_work_are_right_at_their_rate() -> None:
    task, right = Work(), 0
    misses: Counter[int] = Counter()
    for problem in shown(bare=1.0, guess=0.3):
        assert re.fullmatch(r";\d", str(problem.solution))
        score = task.grade(problem, said(str(problem.solution)))["score"]
        assert (task.first_wrong(problem, str(problem.solution)) is None) == (score == 1)
        right += score == 1
        misses[(int(str(problem.solution)[1]) - int(str(problem.answer)[1])) % 10] += 1
    assert near(right, N, 0.3) and all(near(misses[i], N, 0.7 / 9) for i in range(1, 10))
    assert near(sum(len(str(p.solution)) == 2 for p in shown(bare=0.2)), N, 0.2)


def test_a_template_is_a_letter_before_the_prompt_and_moves_no_split() -> None:
    assert all(str(p.prompt)[0] == p.id[0] == "d" for p in shown(20, template="d"))
    tests = [{p.id.lstrip("dw") for p in Work(template=x).problems("test").problems} for x in ("", "d", "w")]  # type: ignore
    assert tests[0] == tests[1] == tests[2]
    assert not tests[0] & {p.id[1:] for p in shown(template="w")}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("-5=2+6=8;8", 1.0),
        (";8", 1.0),
        ("-5=1+6=7?8;8", 1.0),  # the answer alone is graded
        ("-5=2?2+6=8", 0.0),
        ("8", 0.0),
        (";", 0.0),
        ("", 0.0),
        (";8;7", 0.0),
        (";7;8", 1.0),  # the last one counts
        ("-5=2+6=8;8?8", 0.0),
        ("-5=2+6=8;08", 0.0),
    ],
)
def test_the_answer_is_graded_and_nothing_without_one(text: str, score: float) -> None:
    assert Work().grade(Problem("work", "7-5+6", "7-5+6=", ";8"), said(text)) == {"score": score}


def test_the_first_mistake_is_where_no_right_work_goes_on() -> None:
    problem = Problem("work", "w7-5+6", "w7-5+6=", ";8")
    works = {";8"}
    works |= {f"-5=2{'?2' * a};8" for a in range(8)}
    works |= {f"-5=2{'?2' * a}+6=8{'?8' * b};8" for a, b in product(range(8), repeat=2)}
    begins = {w[:i] for w in works for i in range(len(w) + 1)}
    draw, seen = random.Random(0), set()
    few = [w for w in works if len(w) < 16]
    for _ in range(2000):
        text = draw.choice(few)
        for _ in range(draw.randrange(3)):
            i, j = draw.randrange(len(text) + 1), draw.randrange(3)
            text = text[:i] + draw.choice(["", *"2568+-=?;"]) + text[i + j :]
        longest = None if text in works else max(i for i in range(len(text) + 1) if text[:i] in begins)
        assert Work(template="w").first_wrong(problem, text) == longest, text
        seen.add(longest)
    assert {None, *range(12)} <= seen


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"terms": 1}, "terms is 1"),
        ({"least": 9}, "least is 9"),
        ({"slip": 2.0}, "slip is 2"),
        ({"template": "x"}, "template is 'x'"),
        ({"terms": 8, "loop": 0.1, "cap": 28}, "cap is 28: expected more than the 28 characters"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Work(**settings)
