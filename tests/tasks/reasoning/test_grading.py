"""Our graders of reasoning-gym answers, each on cases worked by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from shuhari.tasks.reasoning import grading as g


def graded(grader: Any, text: str, answer: str | None = None, **metadata: Any) -> float:
    return float(grader(text, {"answer": answer, "metadata": metadata}, None))


def test_numbers() -> None:
    assert g.parse_number(" -1,234.50 ") == Fraction(-2469, 2)
    assert g.parse_number("6.103515625e-05") == Fraction("0.00006103515625")
    for text in ("", "1e999", "0x10", "1/2", "nan", "inf", "1_0", "\uff11", "9" * 41, "1 2", "--1"):
        assert g.parse_number(text) is None, text


def test_lists() -> None:
    assert g.parse_lists("[1, -2.5, 'a', \"b c\"]") == ["1", "-2.5", "a", "b c"]
    assert g.parse_lists(" [[1,2],[3]] ") == [["1", "2"], ["3"]]
    assert g.parse_lists("[]") == [] and g.parse_lists("[[]]") == [[]]
    for text in ("", "1", "[1", "[1]]", "[1 2]", "[,1]", "[1,]", "[[[1]]]", "[f()]", "[1] x", "['a\\'b']", "[" * 99999):
        assert g.parse_lists(text) is None, text[:20]


@pytest.mark.parametrize(
    ("text", "value"),
    [("3 - 2i", (3, -2)), ("i", (0, 1)), ("-i", (0, -1)), ("(4)", (4, 0)), ("1.00i", (0, 1)), ("-2.5+ j", (-2.5, 1)),
     ("10.0 + 4.0i", (10, 4)), ("-3i", (0, -3)), ("0", (0, 0))],
)  # fmt: skip
def test_complex_numbers(text: str, value: tuple[float, float]) -> None:
    assert g.parse_complex(text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "3i2", "3 + 2", "ii", "1e9", "2i+3", "+", "()"])
def test_what_is_no_complex_number(text: str) -> None:
    assert g.parse_complex(text) is None


def test_texts_and_numbers() -> None:
    assert graded(g.grade_same_text, " TRUE", "True") == 1 and graded(g.grade_same_text, "True, no", "True") == 0
    assert graded(g.grade_same_word, "U N T O", "UNTO") == 1 and graded(g.grade_same_word, "UNTOLD", "UNTO") == 0
    assert graded(g.grade_same_number, "5.0", "5") == 1 and graded(g.grade_same_number, "-5", "5") == 0
    assert graded(g.grade_calendar, "monday", "Monday") == 1 and graded(g.grade_calendar, "7", "-1") == 0
    assert graded(g.grade_hexadecimal, "-0xFF", "-0xff") == graded(g.grade_hexadecimal, "-255", "-0xff") == 1
    assert graded(g.grade_hexadecimal, "0xfe", "0xff") == graded(g.grade_hexadecimal, "ff", "0xff") == 0
    assert graded(g.grade_probability, "5/16", "0.3125") == graded(g.grade_probability, "0.31255", "0.3125") == 1
    assert graded(g.grade_probability, "0.313", "0.3125") == graded(g.grade_probability, "1/0", "0.3125") == 0
    assert (
        graded(g.grade_complex_result, "4-3i", "4.0 - 3.0i") == 1
        and graded(g.grade_complex_result, "4+3i", "4.0 - 3.0i") == 0
    )


def test_lists_of_answers() -> None:
    assert graded(g.grade_rows, "0 1\n1 2\n", "0 1\n1 2") == 1
    assert graded(g.grade_rows, "[[0, 1], [1, 2]]", "0 1\n1 2") == 0.1
    assert graded(g.grade_rows, "[[0, 1], [1, 3]]", "0 1\n1 2") == graded(g.grade_rows, "[0, 1]", "0 1") == 0
    assert graded(g.grade_items, "[6, 9]", "6 9") == 0.1 and graded(g.grade_items, "6 9 9", "6 9") == 0
    assert graded(g.grade_characters, "['A', 'B']", "AB") == 0.1 and graded(g.grade_characters, "AB", "AB") == 1
    boards = ["Q _\n_ _", "_ Q\n_ _"]
    assert graded(g.grade_queens, boards[1], valid_answers=boards) == 1
    assert graded(g.grade_queens, "[['Q', '_'], ['_', '_']]", valid_answers=boards) == 0.5
    assert graded(g.grade_queens, "_ _\n_ Q", valid_answers=boards) == 0
    assert graded(g.grade_sorted_numbers, "['-1', '2.50']", "['-1.0', '2.5']") == 1
    for text in ("['-1.4', '2.5']", "[NaN, NaN]", "['2.5', '-1']", "['-1']", "[['-1'], ['2.5']]"):
        assert graded(g.grade_sorted_numbers, text, "['-1.0', '2.5']") == 0
    assert graded(g.grade_roots, "3.1905, 0", real_solutions=[0.0, 3.1905]) == 1
    assert (
        graded(g.grade_roots, "3.19, 0", real_solutions=[0.0, 3.1905])
        == graded(g.grade_roots, "0", real_solutions=[0, 1])
        == 0
    )
    assert graded(g.grade_roots, '""', real_solutions=[]) == 1 and graded(g.grade_roots, "none", real_solutions=[]) == 0
    assert (
        graded(g.grade_grid, "10.05 2\n3 4", "10 2\n3 4") == 1 and graded(g.grade_grid, "11 2\n3 4", "10 2\n3 4") == 0.1
    )
    assert graded(g.grade_grid, "nan 2\n3 4", "10 2\n3 4") == graded(g.grade_grid, "10 2 3 4", "10 2\n3 4") == 0


def test_expressions() -> None:
    numbers = {"numbers": [6, 9, 4, 9], "target": 24}
    assert graded(g.grade_countdown, "6*9*4/9", **numbers) == graded(g.grade_puzzle24, "6*9*4/9", **numbers) == 1
    for text in ("24", "6*4", "6*9*4/9 + 0", "6+9+4+9", "24.9", "6*9*4/9=24", "9**9**9**9", ""):
        assert graded(g.grade_countdown, text, **numbers) == graded(g.grade_puzzle24, text, **numbers) == 0
    truth = "x**2 - 1"
    assert graded(g.grade_product, "-1 + x*x", truth) == 1
    for text in ("(x - 1)*(x + 1)", "x**2 + 1", "y**2 - 1", "x^2 - 1", ""):
        assert graded(g.grade_product, text, truth) == 0


@pytest.mark.parametrize(
    ("integrand", "right", "wrong"),
    [
        (
            "2*x",
            ["x**2", "x**2 + C", "C + x*x - 7", "(x + 1)**2 - 2*x"],
            ["x**2 + C*x", "2", "x**2/2", "x**3", "C", ""],
        ),
        ("3*x**2*cos(x)", ["3*x**2*sin(x) + 6*x*cos(x) - 6*sin(x) + C"], ["3*x**2*sin(x)", "x**3*sin(x) + C"]),
        ("log(x)", ["x*log(x) - x + C", "x*(ln(x) - 1)"], ["1/x", "x*log(x)"]),
        ("-sqrt(-3*x - 7)", ["2*(-3*x - 7)**(3/2)/9"], ["2*(-3*x - 7)**(5/2)/9", "0"]),
        ("asin(3*x)", ["x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C"], ["x*asin(3*x) - sqrt(1 - 9*x**2)/3"]),
        ("exp(x)*sin(x)", ["exp(x)*sin(x)/2 - exp(x)*cos(x)/2"], ["exp(x)*sin(x)/2", "-exp(x)*cos(x)"]),
        ("x**(-2)", ["-1/x", "-x**-1 + C"], ["1/x", "9**9**9**9", "log(0)"]),
    ],
)
def test_antiderivatives(integrand: str, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert graded(g.grade_antiderivative, text, integrand=integrand, variable="x") == 1, text
    for text in wrong:
        assert graded(g.grade_antiderivative, text, integrand=integrand, variable="x") == 0, text


def test_an_integrand_without_a_domain_cannot_be_graded() -> None:
    with pytest.raises(ValueError, match="cannot be graded"):
        graded(g.grade_antiderivative, "x", integrand="sqrt(-1 - x*x)", variable="x")


def test_hanoi() -> None:
    setting = {"num_disks": 2, "num_pegs": 3, "start_peg": 1, "target_peg": 3, "solution_length": 3}
    move = "Move disk {} from Peg {} to Peg {}".format
    shortest = [move(1, 1, 2), move(2, 1, 3), move(1, 2, 3)]
    assert graded(g.grade_hanoi, "\n".join(shortest), **setting) == 1
    assert graded(g.grade_hanoi, "\n".join([move(1, 1, 3), move(1, 3, 2), *shortest[1:]]), **setting) == 3 / 4
    assert graded(g.grade_hanoi, shortest[0], **setting) == 0.05
    for moves in ([], [move(2, 1, 3)], [move(1, 1, 9)], [*shortest, "done"], [shortest[0], move(2, 1, 2)]):
        assert graded(g.grade_hanoi, "\n".join(moves), **setting) == 0


def test_plans_are_bounded_before_theirs_reads_them() -> None:
    class Theirs:
        def score_answer(self, text: str, entry: Any) -> float:
            asked.append(text)
            return 1.0

    asked: list[str] = []
    entry: dict[str, Any] = {"answer": None, "metadata": {}}
    assert g.grade_cube("R U' F2 2Rw x"[:-2], entry, Theirs()) == g.grade_cars("A+1 B-2", entry, Theirs()) == 1
    assert g.grade_boxes('[{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]', entry, Theirs()) == 1
    assert len(asked) == 3
    for text in ("R999999999", "R U; U", "R " * 501, "Q"):
        assert g.grade_cube(text, entry, Theirs()) == 0
    for text in ("A+999999999", "A+1, B-2", "A+0", "A+1 " * 501):
        assert g.grade_cars(text, entry, Theirs()) == 0
    for text in ("{}", "[1]", '[{"a": 1}]', "[" * 99999, '[{"a": "' + "m" * 101 + '"}]', str([{}] * 201)):
        assert g.grade_boxes(text, entry, Theirs()) == 0
    assert len(asked) == 3
