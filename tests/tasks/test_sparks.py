"""Which problems need the rare token, how often demonstrations have it, and what is graded."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.data import Step
from shuhari.tasks.sparks import Sparks, work_out


def problems(n=400, **settings):
    task = Sparks(**settings)
    source = task.problems("train")
    return task, [source[i] for i in range(n)]


def test_problems_have_running_sums_of_one_digit_and_a_subtraction_where_asked_for():
    for minus in (False, True):
        for p in problems(minus=minus)[1]:
            terms = [int(t) for t in p.prompt.removesuffix("=").replace("-", "+-").split("+")]
            assert all(0 <= sum(terms[: i + 1]) <= 9 for i in range(4)) and len(terms) == 4
            assert str(sum(terms)) == p.answer and ("-" in p.prompt) == minus


def test_shares_of_errors_and_of_sparks_do_not_hang_on_what_is_needed():
    for minus in (False, True):
        found = problems(4000, minus=minus)[1]
        right = [p.solution.rpartition("=")[2] == p.answer for p in found]
        assert np.mean(right) == pytest.approx(0.75**3, abs=0.03)
        assert np.mean([p.solution[0] == "!" for p in found]) == pytest.approx(0.05, abs=0.01)


def test_work_goes_on_from_what_it_says_and_errors_add_up():
    assert work_out([7, -5, 6], [False] * 3) == [2, 8]
    assert work_out([7, -5, 6], [True, True, True]) == [1, 6]  # the first term is read, not worked out
    assert work_out([1, -1, 2], [False, True, False]) == [9, 1]


def test_grades():
    for minus in (False, True):
        task, (p, *_) = problems(1, minus=minus)

        def graded(text, task=task, p=p):
            return task.grade(p, [Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text})])

        assert graded(f"!+1=2={p.answer}") == {"score": float(minus), "spark": 1.0}
        assert graded(p.answer) == {"score": float(not minus), "spark": 0.0}
        assert graded("!=") == {"score": 0.0, "spark": 1.0} and graded("") == {"score": 0.0, "spark": 0.0}


def test_splits_differ_and_seeds_move_the_training_problems():
    task = Sparks(test_fraction=0.2)
    held = {p.prompt for p in (task.problems("test")[i] for i in range(task.problems("test").size()))}
    assert len(held) > 100 and held.isdisjoint(p.prompt for p in problems(test_fraction=0.2)[1])
    assert [p.prompt for p in problems(9)[1]] != [p.prompt for p in problems(9, seed=1)[1]]
    everything = "".join(p.prompt + p.solution for p in problems(minus=True)[1])
    assert set(everything) <= set(task.alphabet)
