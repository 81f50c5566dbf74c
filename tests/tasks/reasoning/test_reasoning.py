"""reasoning-gym as a task: answers against a sum of our own, splits by content, settings, refusals."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem
from shuhari.tasks.reasoning import table as reasoning_table
from shuhari.tasks.reasoning.reasoning import ReasoningGym
from shuhari.tasks.reasoning.table import GRADING, LONGEST, Graded
from spoken import said


def total(question: str) -> int:
    expression = question.partition(": ")[2].removesuffix("=").replace(" ", "")
    return sum(map(int, re.findall(r"[+-]?\d+", expression)))


def test_answers_and_splits() -> None:
    pytest.importorskip("reasoning_gym")
    task = ReasoningGym(config={"max_terms": 3, "max_digits": 2}, test_size=50)
    train, test = task.problems("train"), task.problems("test")
    for source in (train, test):
        for i in range(50):
            assert int(str(source[i].answer)) == total(str(source[i].prompt))
            assert len(re.findall(r"\d+", str(source[i].prompt))) <= 3
    held = {test[i].prompt for i in range(50)}
    assert len(held) == 50 == test.size()
    assert not held & {train[i].prompt for i in range(2000)}
    assert train[7] == ReasoningGym(config={"max_terms": 3, "max_digits": 2}).problems("train")[7]
    assert train[7] != ReasoningGym(config={"max_terms": 3, "max_digits": 2}, seed=1).problems("train")[7]


def test_grading_by_the_problem_alone() -> None:
    """Another task of the same settings, that never made the problem, grades it; what is too long is wrong."""
    pytest.importorskip("reasoning_gym")
    problem = ReasoningGym().problems("train")[3]
    answer, other = str(problem.answer), ReasoningGym()
    for text in (answer, f"{answer}\n", f"  {answer} ", f"{answer}.0"):
        assert other.grade(problem, said(text)) == {"score": 1.0, "partial": 1.0}
    longer = other.grade(problem, said(f"it is {answer}"))
    assert longer == {"score": 0.0, "partial": len(answer) / (len(answer) + 6)}
    assert other.grade(problem, said(" " * LONGEST + answer)) == {"score": 0.0, "partial": 0.0}


def test_solved_is_a_threshold() -> None:
    pytest.importorskip("reasoning_gym")
    strict, half = ReasoningGym("word_sorting"), ReasoningGym("word_sorting", solved=0.5)
    problem = strict.problems("train")[0]
    words = str(problem.answer).split(", ")
    text = ", ".join([*words[:-2], words[-1], words[-2]])
    partial = (len(words) - 2) / len(words)
    assert strict.grade(problem, said(text)) == {"score": 0.0, "partial": pytest.approx(partial)}
    assert half.grade(problem, said(text))["score"] == float(partial >= 0.5) == 1.0


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix"])
def test_the_global_generators_are_left_alone(name: str) -> None:
    """Both draw from them; the problem is the same whatever they stood at."""
    pytest.importorskip("reasoning_gym")
    numbers = np.random.mtrand._rand  # what `np.random.seed` seeds

    def made(seed: int) -> list[Problem]:
        random.seed(seed)
        numbers.seed(seed)
        before = random.getstate(), numbers.get_state()[1].tolist()
        source = ReasoningGym(name).problems("train")
        problems = [source[i] for i in range(20)]
        assert (random.getstate(), numbers.get_state()[1].tolist()) == before
        return problems

    kept = random.getstate(), numbers.get_state()
    try:
        assert made(1) == made(2)
    finally:
        random.setstate(kept[0])
        numbers.set_state(kept[1])


def test_a_generator_with_few_problems_has_fewer_to_test() -> None:
    pytest.importorskip("reasoning_gym")
    task = ReasoningGym("coin_flip", {"min_trials": 3, "max_trials": 3}, test_fraction=0.5)
    test = task.problems("test")
    questions = {test[i].prompt for i in range(test.size() or 0)}
    assert 1 <= len(questions) == test.size() < 12


def test_a_scorer_that_raises_or_strays_is_no_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    task = ReasoningGym()
    problem = task.problems("train")[0]

    def scorer(raw: Any) -> None:
        def grade(*_: Any) -> float:
            return raw if isinstance(raw, float) else raw()  # type: ignore[no-any-return]

        table = {**GRADING, "chain_sum": Graded("ours", "", grade)}
        monkeypatch.setattr(reasoning_table, "GRADING", table)

    for wrong in (1.5, -0.1, float("nan")):
        scorer(wrong)
        with pytest.raises(ValueError, match=r"its scorer gave .*in \[0, 1\]"):
            task.grade(problem, said("1"))
    scorer(lambda: {}["x"])
    with pytest.raises(KeyError):
        task.grade(problem, said("1"))


def test_solutions() -> None:
    """Where an entry has no answer, its example, checked; as JSON where it is a mapping."""
    pytest.importorskip("reasoning_gym")
    colours = ReasoningGym("graph_color").problems("train")[0]
    assert colours.answer is None and isinstance(json.loads(str(colours.solution)), dict)
    task = ReasoningGym("propositional_logic")
    for i in range(300):
        problem = task.problems("train")[i]
        assert task.grade(problem, said(str(problem.solution)))["score"] == 1.0
    assert ReasoningGym("rush_hour").problems("train")[0].solution is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("codeio", r"reasoning-gym/codeio is refused: runs packaged programs"),
        ("composite", r"refused: a mixture.*use the task"),
        ("chain_sun", r"no such generator; did you mean 'chain_sum'"),
    ],
)
def test_refusals(name: str, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=message):
        ReasoningGym(path=name)


def test_the_table_knows_every_generator_and_an_unknown_one_is_refused() -> None:
    pytest.importorskip("reasoning_gym")
    factory = sys.modules["reasoning_gym.factory"]
    assert set(factory.DATASETS) == set(GRADING)
    assert {g.path for g in GRADING.values()} == {"theirs", "ours", "refused"}
    assert all((g.grader is not None) is (g.path == "ours") and g.why for g in GRADING.values())
    factory.DATASETS["brand_new"] = factory.DATASETS["chain_sum"]
    try:
        with pytest.raises(ValueError, match="brand_new is refused: its scorer was not read yet"):
            ReasoningGym("brand_new")
    finally:
        del factory.DATASETS["brand_new"]


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("chain_sum", {"max_term": 3}, "did you mean 'max_terms'"),
        ("chain_sum", {"seed": 3}, "belongs to the task"),
        ("chain_sum", {"max_terms": "3"}, "expected int"),
        ("chain_sum", {"max_terms": True}, "expected int"),
        ("chain_sum", {"max_terms": 1}, "max_terms must be"),
        ("chain_sum", {"allow_negation": 1}, "expected bool"),
        ("countdown", {"operators": "+"}, r"operators is '\+': expected"),
        ("countdown", {"operators": [1]}, r"operators\[0\] is 1: expected str"),
        ("countdown", {"operators": ["^"]}, "invalid operator"),
        ("calendar_arithmetic", {"tasks": ["nothing"]}, "Invalid tasks: nothing"),
    ],
)
def test_bad_config(name: str, config: dict[str, Any], message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=message):
        ReasoningGym(name, config)


def test_config_as_a_recipe_says_it() -> None:
    """Lists stand for tuples too, and whole numbers for floats."""
    pytest.importorskip("reasoning_gym")
    task = ReasoningGym("countdown", {"operators": ["+"], "min_numbers": 3, "max_numbers": 3, "shuffle": False})
    for i in range(5):
        assert re.fullmatch(r"\d+ \+ \d+ \+ \d+", str(task.problems("train")[i].answer))
    source = ReasoningGym("isomorphic_strings", {"p_solvable": 1}).problems("train")
    assert {source[i].answer for i in range(20)} == {"True"}


@pytest.mark.parametrize("fields", [{"solved": 0.0}, {"solved": 1.5}, {"test_fraction": 1.0}, {"test_size": 0}])
def test_bad_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))} is"):
        ReasoningGym(**fields)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[lm\]"'):
        ReasoningGym()


def test_an_unused_problem_name_is_not_ours() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="invalid literal"):
        ReasoningGym().grade(Problem("reasoning-gym/chain_sum", "x", "", "1"), said("1"))
