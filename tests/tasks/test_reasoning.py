"""reasoning-gym/chain_sum: answers against a sum of our own, splits by content, and refusals."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from shuhari.data import Problem, Step
from shuhari.tasks.reasoning import ReasoningGym


def said(text: str) -> list[Step]:
    ids = np.ones(2, np.int32)
    return [Step.of(ids, ids, info={"text": text})]


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


def test_grading() -> None:
    pytest.importorskip("reasoning_gym")
    task = ReasoningGym()
    problem = Problem("reasoning-gym/chain_sum", "x", "", "-132")
    for text in ("-132", "-132\n", " -132 ", "-0132"):
        assert task.grade(problem, said(text)) == {"score": 1.0}
    for text in (
        "132",
        "",
        "-",
        "-132.0",
        "- 132",
        "-1,32",
        "-\uff11\uff13\uff12",
        "-13_2",
        "1e2",
        "9" * 100_000,
        "0-132",
        "nan",
    ):
        assert task.grade(problem, said(text)) == {"score": 0.0}


def test_other_generators_are_refused() -> None:
    with pytest.raises(ValueError, match=r"countdown: its scorer has not been reviewed yet.*chain_sum"):
        ReasoningGym(path="countdown")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_term": 3}, "did you mean 'max_terms'"),
        ({"seed": 3}, "belongs to the task"),
        ({"max_terms": "3"}, "expected int"),
        ({"max_terms": 1}, "max_terms must be"),
        ({"allow_negation": 1}, "expected bool"),
    ],
)
def test_bad_config(config: dict[str, object], message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=message):
        ReasoningGym(config=config)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[lm\]"'):
        ReasoningGym()
