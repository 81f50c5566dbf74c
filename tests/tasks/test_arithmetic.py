"""Arithmetic: answers against Python's own sums, splits by content, and grading of right, wrong and hostile text."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shuhari.data import Problem, Step
from shuhari.tasks.arithmetic import KINDS, Arithmetic, add_without_carries
from shuhari.tasks.source import Listed, answer_text, draw_distinct, draw_item, is_held_out
from spoken import said

TERM = re.compile(r"[+-]?\d+")


def content(problem: Problem) -> tuple[str, tuple[int, ...]]:
    """The terms of a prompt, read back from its text."""
    prompt = str(problem.prompt).removesuffix("=")
    if "*" in prompt:
        return "product", tuple(sorted(map(int, prompt.split("*"))))
    return "sum", tuple(sorted(map(int, TERM.findall(prompt))))


def truth(problem: Problem) -> int:
    kind, terms = content(problem)
    return int(np.prod(terms)) if kind == "product" else sum(terms)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digits", [1, 2, 4])
def test_answers_are_right_and_written_in_the_alphabet(kind: str, digits: int) -> None:
    task = Arithmetic(kind=kind, digits=digits, terms=4)
    train = task.problems("train")
    for i in range(200):
        problem = train[i]
        assert int(str(problem.answer)) == truth(problem)
        assert problem.solution == problem.answer
        assert set(str(problem.prompt) + str(problem.answer)) <= set(task.alphabet)
        assert task.grade(problem, said(str(problem.answer))) == {"score": 1.0}


def test_carry_is_zero_padded() -> None:
    train = Arithmetic(digits=2).problems("train")
    problems = [train[i] for i in range(500)]
    assert all(re.fullmatch(r"\d\d\+\d\d=", str(p.prompt)) and re.fullmatch(r"\d{3}", str(p.answer)) for p in problems)
    assert any(str(p.prompt).startswith("0") for p in problems)
    plain = Arithmetic(kind="add").problems("train")
    assert not any(re.search(r"\b0\d", str(plain[i].prompt) + str(plain[i].answer)) for i in range(500))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digits", [1, 2])
def test_splits_are_disjoint_by_content(kind: str, digits: int) -> None:
    task = Arithmetic(kind=kind, digits=digits, terms=2)
    train, test = task.problems("train"), task.problems("test")
    size = test.size()
    assert size
    held = [content(test[i]) for i in range(size)]
    assert len(set(held)) == len(held)
    assert not set(held) & {content(train[i]) for i in range(3000)}
    assert len({test[i].id for i in range(size)}) == size


def test_the_split_is_a_function_of_content_alone() -> None:
    """One content is on one side for every seed, kind and order of its terms."""
    side: dict[tuple[str, tuple[int, ...]], str] = {}
    for task in (Arithmetic(seed=0), Arithmetic(seed=7), Arithmetic(kind="add"), Arithmetic(kind="chain", terms=2)):
        for split in ("train", "test"):
            source = task.problems(split)
            for i in range(256):
                assert side.setdefault(content(source[i]), split) == split
    assert Counter(side.values())["test"] > 200


def test_held_out_share() -> None:
    for fraction in (0.0625, 0.3):
        share = np.mean([is_held_out(f"x{i}", fraction) for i in range(20_000)])
        assert abs(share - fraction) < 4 * (fraction * (1 - fraction) / 20_000) ** 0.5
    # the rule itself: the first 63 bits of a hash that any other program can compute
    digest = hashlib.blake2b(b"held out\x1fsum:[47, 85]", digest_size=8).digest()
    number = (int.from_bytes(digest, "little") >> 1) / 2**63
    assert is_held_out("sum:[47, 85]", number + 1e-9) and not is_held_out("sum:[47, 85]", number - 1e-9)


def test_training_draws_are_uniform_over_pairs() -> None:
    train = Arithmetic(kind="add", digits=1, test_fraction=0.2).problems("train")
    counts = Counter(train[i].prompt for i in range(8000))
    expected = 8000 / len(counts)
    chi2 = sum((c - expected) ** 2 / expected for c in counts.values())
    dof = len(counts) - 1
    assert abs(chi2 - dof) < 5 * (2 * dof) ** 0.5


def test_demonstrations_forget_every_carry() -> None:
    assert [add_without_carries(47, 85), add_without_carries(99, 1), add_without_carries(12, 34)] == [22, 90, 46]
    train = Arithmetic(forget=0.7).problems("train")
    carrying = wrong = 0
    for i in range(4000):
        problem = train[i]
        a, b = map(int, str(problem.prompt).removesuffix("=").split("+"))
        columns = "0" + "".join(str((int(x) + int(y)) % 10) for x, y in zip(f"{a:02d}", f"{b:02d}", strict=True))
        assert problem.answer == f"{a + b:03d}"
        assert problem.solution in (problem.answer, columns)
        carrying += columns != problem.answer
        wrong += problem.solution != problem.answer
    assert abs(wrong / carrying - 0.7) < 4 * (0.21 / carrying) ** 0.5
    sure = Arithmetic(forget=1.0).problems("train")
    assert all(len(str(sure[i].solution)) == 3 for i in range(100))


def test_grading() -> None:
    task = Arithmetic()
    problem = Problem("arithmetic", "x", "47+85=", "132")
    right = ("132", "132\n")
    wrong = (
        "",
        "\n",
        "22",
        "022",
        "0132",
        " 132",
        "132 ",
        "132\n\n",
        "1 32",
        "+132",
        "132.0",
        "\uff11\uff13\uff12",
        "132\x00",
        "47+85",
        "9" * 100_000,
    )
    assert all(task.grade(problem, said(t)) == {"score": 1.0} for t in right)
    assert all(task.grade(problem, said(t)) == {"score": 0.0} for t in wrong)


def test_an_answer_may_be_spread_over_steps() -> None:
    closing = Step.closing(np.ones(2, np.int32), 1, 0.0)
    assert answer_text([*said("13"), *said("2\n"), closing]) == "132"
    assert answer_text([*said("hint", role="teacher"), *said("7")]) == "7"
    with pytest.raises(ValueError, match="without a decision"):
        answer_text([closing])
    with pytest.raises(TypeError, match="info\\['text'\\]"):
        answer_text([Step.of(np.ones(2, np.int32), np.ones(2, np.int32))])


def test_the_same_in_another_process() -> None:
    code = (
        "from shuhari.tasks.arithmetic import Arithmetic, KINDS\n"
        "for k in KINDS:\n"
        "    t = Arithmetic(kind=k, forget=0.5 * (k == 'carry'))\n"
        "    for s in ('train', 'test'):\n"
        "        print([t.problems(s)[i] for i in range(20)])\n"
    )
    src = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(src)}  # strings hash otherwise here
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    here = "".join(
        str([t.problems(s)[i] for i in range(20)]) + "\n"
        for t in (Arithmetic(kind=k, forget=0.5 * (k == "carry")) for k in KINDS)
        for s in ("train", "test")
    )
    assert there == here


def test_seeds_and_splits_draw_differently() -> None:
    prompts = [[t.problems("train")[i].prompt for i in range(20)] for t in (Arithmetic(), Arithmetic(seed=1))]
    assert prompts[0] != prompts[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "cary"}, "did you mean 'carry'"),
        ({"digits": 0}, "digits is 0"),
        ({"terms": 1}, "terms is 1"),
        ({"forget": 1.5}, "forget is 1.5"),
        ({"kind": "mul", "forget": 0.5}, "kind 'mul'"),
        ({"test_fraction": 0.0}, "test_fraction is 0.0"),
        ({"test_size": 0}, "test_size is 0"),
    ],
)
def test_bad_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Arithmetic(**fields)  # type: ignore[arg-type]


def test_unknown_split_and_index() -> None:
    task = Arithmetic(test_size=5)
    with pytest.raises(ValueError, match="did you mean 'test'"):
        task.problems("tests")
    assert task.problems("test").size() == 5
    for index in (-1, 5):
        with pytest.raises(IndexError, match=r"0\.\.4"):
            task.problems("test")[index]


def test_sources_that_run_dry() -> None:
    found = draw_distinct(lambda i: (str(i % 3), Problem("t", str(i % 3), i)), 10)
    assert [p.id for p in found.problems] == ["0", "1", "2"]
    assert isinstance(found, Listed)
    only = next(f"c{i}" for i in range(100) if not is_held_out(f"c{i}", 0.5))
    with pytest.raises(ValueError, match="split 'test'"):
        draw_item("test", 0.5, lambda: (only, None), "a task of one problem")
