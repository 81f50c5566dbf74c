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
        ("\\boxed{1", []),  # it does not close
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


@pytest.mark.parametrize("truth", ["12", "$12$", "\\boxed{12}", "12.5", "x^2+1", "\\frac{1}{2}"])
def test_what_parts_two_answers_is_no_answer(truth: str) -> None:
    bare = truth.strip("$").removeprefix("\\boxed{")
    bare = bare[:-1] if truth.startswith("\\boxed") else bare
    for mark in "|;#&?@_`{[]}¡–—‖’′″•…→，；｜\u200b\u202e\x08\x00²½é":
        for text in (f"{bare}{mark}13", f"13{mark}{bare}", f"${bare}{mark}13$", f"\\boxed{{{bare}{mark} 13}}"):
            if mark not in "{}" or "boxed" not in text:  # which then holds a formula that is whole
                assert find_final(text, truth) == [], text
    tails = "'", "°", "^\\circ", "|", ",", ";", "_", "..", "\\ldots", "+", "/", "\\mid 13", "\\to 13", "\x08\x0813"
    for tail in tails:
        assert find_final(f"{bare}{tail}", truth) == [], tail
    assert find_final(f"{bare}\r\n13", "12") == find_final(f"{bare} 13", "12")  # a line end is a space


def test_ordinary_answers_are_read_as_they_were() -> None:
    for text, found in {
        "12.": ["12"], "12 €": ["12"], "$12$.": ["12"], "答案是12": ["12"], "ответ 12": ["12"], "x = 2π": ["2 \\pi"],
        "3×4": ["3 \\times 4"], "[0, 1)": ["[0, 1)"], "12~\\text{cm}": ["12"], "$12~\\mathrm{cm}$": ["12 \\mathrm{cm}"],
        "\\boxed{12\\ \\text{cm}}": ["12\\ \\text{cm}"], "$x =\n 12$": ["12"], "−12": ["-12"], "4!": ["4!"],
    }.items():  # fmt: skip
        assert find_final(text, "1") == found, text
    for truth in ("|x|", "90^\\circ", "f'(x)", "1, 2, \\ldots", "12_{13}", "3;4", "]0,1["):
        assert find_final(f"${truth}$", truth) == [write_formula(truth).strip("$")]


def test_hostile_text_takes_no_time() -> None:
    began = time.process_time()
    more = "f(", "a(\t", "x ", "\\text{", "~", "12|"
    for part in (*more, "$", "\\boxed{", "1,", "1/", " ", "or ", "a_", "{", "\\(", "$1", "1.1 "):
        find_final(part * (4096 // len(part)), "1")
    assert time.process_time() - began < 1
