"""The final formula of an answer, on texts worked by hand."""

from __future__ import annotations

import time

import pytest

from shuhari.rewards.final import find_final, write_formula


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("first $3$, then $(x+1)^2$", ["(x+1)^2"]),
        ("$$3$$ and \\[4\\]", ["4"]),
        ("12 or \\boxed{12}", ["12"]),  # what is boxed is the answer
        ("\\boxed{\\frac{1}{2}} of it, \\boxed{x_{1}} left", ["x_{1}"]),
        ("\\boxed{1", ["\\boxed{1"]),
        ("x^2+1", ["x^2+1"]),
        ("we get 1,234.5 of 7,000", ["7,000"]),
        ("it is 3/4.", ["3/4"]),
        ("$a = b = 3$", ["b", "3"]),
        ("$a = $", []),
        ("it costs $\\$5$", ["\\$5"]),
        ("(" * 40 + "5" + ")" * 40, []),
        ("", []),
    ],
)
def test_which_formula_is_the_last(text: str, found: list[str]) -> None:
    assert find_final(text, "1") == found


def test_what_the_truth_says_the_answer_may_say() -> None:
    for text in ("$x \\\\le 3$", "3 \\\\pm 1", "3%", "3 or 4"):
        assert find_final(text, "3") == [] != find_final(text, text)
    assert find_final("$y = 2x$", "$y=2x$") == ["y = 2x"]  # an equation is compared as one


def test_a_bare_truth_is_read_as_a_whole() -> None:
    """math-verify would take the last number of `2x+1` for it."""
    assert write_formula("2x+1") == "$2x+1$" and write_formula(" 2**3*x ") == "$2^3 \\cdot x$"
    assert write_formula("50%") == "$50\\%$" and write_formula("") == ""
    for truth in ("$x=1$ or $x=2$", "the number 12", "\\boxed{3}"):
        assert write_formula(truth) == truth


def test_hostile_text_takes_no_time() -> None:
    began = time.process_time()
    for part in ("$", "\\boxed{", "1,", "1/", " ", "or ", "a_", "{", "\\(", "$1", "1.1 "):
        find_final(part * (4096 // len(part)), "1")
    assert time.process_time() - began < 1
