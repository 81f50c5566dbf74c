"""Our graders for reasoning-gym generators whose own scorer evaluates text, can be made to hang, or can be fooled.

A grader takes the answer as text, the generator's entry (`question`, `answer`, `metadata`) and the generator, and
returns a number in [0, 1], 1 for a right answer. The text is untrusted model output: nothing here evaluates it, and the
work is bounded by its length, which `table.score` bounds. Left out: partial credit, except for answers in
another format than requested, as the package gives it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from shuhari.tasks.expressions import ExpressionError, Limits, parse
from shuhari.tasks.reasoning.formulas import parse_formula, parse_polynomial
from shuhari.tasks.reasoning.logic import entails
from shuhari.tasks.source import Stream

Entry = Mapping[str, Any]
Grader = Callable[[str, Entry, Any], float]

POINTS, TRIED = 6, 200  # points at which antiderivatives are compared; points tried to find them in the domain
_NUMBER = r"[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,2})?"
_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9])", re.ASCII)
_ITEM = re.compile(rf"""\s*(?:([\[\],])|({_NUMBER})|'([^'\\\n]*)'|"([^"\\\n]*)")""", re.ASCII)
_MOVE = re.compile(r"Move disk ([0-9]{1,4}) from Peg ([0-9]{1,4}) to Peg ([0-9]{1,4})", re.ASCII)
_TURN = re.compile(r"[0-9]?[LRDUBFXYZMES]w?'?[0-9]?", re.ASCII)
_SHIFT = re.compile(r"[A-Z][+-][1-9]", re.ASCII)
_HEX = re.compile(r"[+-]?0x[0-9a-f]{1,100}|[+-]?[0-9]{1,100}", re.ASCII)


# ---------------------------------------------------------------- reading answers


def parse_number(text: str) -> Fraction | None:
    """Returns a plain decimal number; a sign, commas between digits, and an exponent below 100 are allowed."""
    text = _COMMA.sub("", text.strip())
    return Fraction(text) if re.fullmatch(_NUMBER, text, re.ASCII | re.IGNORECASE) else None


def parse_lists(text: str) -> list[Any] | None:
    """Returns a list, or a list of lists, of numbers or quoted text, in Python or JSON form, with items as text. None
    for anything else."""
    stack: list[list[Any]] = []
    at, ready = 0, True  # ready: whether an item may come next
    while match := _ITEM.match(text, at):
        at = match.end()
        mark = match[1]
        if mark == "[":
            if not ready or len(stack) == 2:
                return None
            stack.append([])
        elif not stack or (mark == "," and ready) or (mark == "]" and ready and stack[-1]):
            return None
        elif mark == "]":
            done = stack.pop()
            if not stack:
                return None if text[at:].strip() else done
            stack[-1].append(done)
        elif mark is None:
            if not ready:
                return None
            stack[-1].append(next(g for g in match.groups()[1:] if g is not None))
        ready = mark in ("[", ",")
    return None


def parse_complex(text: str) -> tuple[Fraction, Fraction] | None:
    """Returns the real and imaginary part of `3 - 2i`, `i`, `(4)`."""
    text = text.replace(" ", "").lower().replace("j", "i").removeprefix("(").removesuffix(")")
    plain = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
    match = re.fullmatch(rf"([+-]?{plain})?(?:((?:^|(?<=[0-9]))[+-]|^)({plain})?i)?", text, re.ASCII)
    if not text or match is None:
        return None
    real, sign, size = match.groups()
    imaginary = Fraction(0) if sign is None else Fraction(size or 1) * (-1 if sign == "-" else 1)
    return Fraction(real or 0), imaginary


# ---------------------------------------------------------------- one text, one number


def grade_same_text(text: str, entry: Entry, generator: Any) -> float:
    """Grades 1 if equal except for case and surrounding white space."""
    return float(text.strip().casefold() == entry["answer"].strip().casefold())


def grade_same_word(text: str, entry: Entry, generator: Any) -> float:
    """Grades as `grade_same_text`, ignoring spaces."""
    return float(text.replace(" ", "").strip().casefold() == entry["answer"].strip().casefold())


def grade_same_number(text: str, entry: Entry, generator: Any) -> float:
    truth = parse_number(entry["answer"])
    return float(truth is not None and parse_number(text) == truth)


def grade_calendar(text: str, entry: Entry, generator: Any) -> float:
    """Grades a number if the truth is one, else a word."""
    return (
        grade_same_text(text, entry, generator)
        if parse_number(entry["answer"]) is None
        else grade_same_number(text, entry, generator)
    )


def grade_hexadecimal(text: str, entry: Entry, generator: Any) -> float:
    text = text.strip().lower()
    return float(_HEX.fullmatch(text) is not None and int(text, 16 if "x" in text else 10) == int(entry["answer"], 16))


def grade_probability(text: str, entry: Entry, generator: Any) -> float:
    """Grades a decimal or a fraction `a/b`, within 1e-4 of the truth."""
    parts = [parse_number(p) for p in text.split("/", 1)]
    if any(p is None for p in parts) or (parts[-1] == 0 and len(parts) == 2):
        return 0.0
    value = parts[0] if len(parts) == 1 else parts[0] / parts[1]  # type: ignore[operator]
    return float(abs(value - Fraction(entry["answer"])) <= Fraction(1, 10_000))  # type: ignore[operator]


def grade_complex_result(text: str, entry: Entry, generator: Any) -> float:
    truth = parse_complex(entry["answer"])
    return float(truth is not None and parse_complex(text) == truth)


# ---------------------------------------------------------------- lists


def grade_rows(text: str, entry: Entry, generator: Any) -> float:
    """Grades the rows in the requested format; a tenth for the same as a list of lists."""
    if text.strip() == entry["answer"].strip():
        return 1.0
    return 0.1 if _to_rows(text) == entry["answer"] else 0.0


def grade_queens(text: str, entry: Entry, generator: Any) -> float:
    """Grades any board that is among the generator's solutions; half for one as a list of lists."""
    boards = entry["metadata"]["valid_answers"]
    if text.strip() in boards:
        return 1.0
    return 0.5 if _to_rows(text) in boards else 0.0


def grade_items(text: str, entry: Entry, generator: Any) -> float:
    """Grades the items in the requested format; a tenth for the same as a list."""
    return _flatten(text, entry, " ")


def grade_characters(text: str, entry: Entry, generator: Any) -> float:
    """Grades the string in the requested format; a tenth for the list of its characters."""
    return _flatten(text, entry, "")


def grade_sorted_numbers(text: str, entry: Entry, generator: Any) -> float:
    """Grades a list of exactly the numbers of the truth, in its order."""
    found, truth = parse_lists(text), parse_lists(entry["answer"])
    if found is None or truth is None or not all(isinstance(x, str) for x in found):
        return 0.0
    return float(
        [parse_number(x) for x in found]
        == [parse_number(x) for x in truth]
    )


def grade_roots(text: str, entry: Entry, generator: Any) -> float:
    """Grades the real solutions, comma-separated in any order, each within 1e-4; nothing (or "") if there are none."""
    truth = sorted(Fraction(x) for x in entry["metadata"]["real_solutions"])
    text = text.strip()
    found = [] if text in ("", '""') else [parse_number(x) for x in text.split(",")]
    if len(found) != len(truth) or any(x is None for x in found):
        return 0.0
    pairs = zip(sorted(x for x in found if x is not None), truth, strict=True)
    return float(all(abs(a - b) <= Fraction(1, 10_000) for a, b in pairs))


def grade_grid(text: str, entry: Entry, generator: Any) -> float:
    """Grades rows of numbers, each within 1% of the truth; a tenth for another grid of the same shape."""
    found, truth = (
        [
            [parse_number(x) for x in r.split()]
            for r in t.strip().splitlines()
        ]
        for t in (text, entry["answer"])
    )
    if list(map(len, found)) != list(map(len, truth)) or any(
        x is None
        for row in found
        for x in row
    ):
        return 0.0
    pairs = [
        (a, b)
        for r, s in zip(found, truth, strict=True)
        for a, b in zip(r, s, strict=True)
    ]
    return 1.0 if all(abs(a - b) <= abs(b) / 100 for a, b in pairs) else 0.1  # type: ignore[operator, arg-type]


def _to_rows(text: str) -> str | None:
    board = parse_lists(text)
    if board is None or not all(isinstance(row, list) for row in board):
        return None
    return "\n".join(" ".join(row) for row in board)


def _flatten(text: str, entry: Entry, between: str) -> float:
    if text.strip() == entry["answer"].strip():
        return 1.0
    items = parse_lists(text)
    whole = items is not None and all(isinstance(x, str) for x in items) and between.join(items) == entry["answer"]
    return 0.1 if whole else 0.0


# ---------------------------------------------------------------- expressions


def grade_countdown(text: str, entry: Entry, generator: Any) -> float:
    """Grades an expression with each of the numbers once, and the target's exact value."""
    return _reaches(text, entry["metadata"]["numbers"], entry["metadata"]["target"])


def grade_puzzle24(text: str, entry: Entry, generator: Any) -> float:
    """Grades an expression with each of the four numbers once, and exactly 24."""
    return _reaches(text, entry["metadata"]["numbers"], 24)


def grade_product(text: str, entry: Entry, generator: Any) -> float:
    """Grades the same polynomial, multiplied out."""
    try:
        return float(parse_polynomial(text.strip()) == parse_polynomial(entry["answer"]))
    except ExpressionError:
        return 0.0


def grade_antiderivative(text: str, entry: Entry, generator: Any) -> float:
    """Grades whether the derivative of the answer equals the integrand at `POINTS` random real points of the
    integrand's domain, to 1e-7; the answer may contain the constant C."""
    variable, stream = entry["metadata"]["variable"], Stream("antiderivative", entry["metadata"]["integrand"])
    integrand = parse_formula(entry["metadata"]["integrand"], variable)
    try:
        answer = parse_formula(text.strip(), variable, {"C": 0.5 + 2.0 * stream.uniform()})
    except ExpressionError:
        return 0.0
    compared = 0
    for _ in range(TRIED):
        x = (-1 if stream.below(2) else 1) * 0.02 * 1000 ** stream.uniform()  # 0.02 to 20, either sign
        try:
            truth = integrand.at(complex(x))[0]
        except (ArithmeticError, ValueError):
            continue
        if not 1e-9 < abs(truth) < 1e12 or abs(truth.imag) > 1e-9 * abs(truth):
            continue
        try:
            slope = answer.at(complex(x))[1]
        except (ArithmeticError, ValueError):
            return 0.0
        if not abs(slope - truth) <= 1e-7 * abs(truth):
            return 0.0
        compared += 1
        if compared == POINTS:
            return 1.0
    if not compared:
        raise ValueError(f"no point in the domain of {entry['metadata']['integrand']!r}: cannot be graded")
    return 1.0


def grade_conclusion(text: str, entry: Entry, generator: Any) -> float:
    """Grades whether the premises entail the answer, and it is no tautology."""
    try:
        return float(entails(text, entry["metadata"]["premises"], entry["metadata"]["variables"]))
    except ExpressionError:
        return 0.0


def _reaches(text: str, numbers: list[int], target: int) -> float:
    try:
        answer = parse(text.strip(), Limits(length=256, depth=16, digits=12))
    except ExpressionError:
        return 0.0
    return float(sorted(answer.numbers) == sorted(numbers) and answer.value == target)


# ---------------------------------------------------------------- moves


def grade_hanoi(text: str, entry: Entry, generator: Any) -> float:
    """Grades 1 for a solution no longer than the known one, else known / own length; 0.05 for legal moves that end
    elsewhere."""
    setting = entry["metadata"]
    disks = setting["num_disks"]
    pegs: dict[int, list[int]] = {p: [] for p in range(1, setting["num_pegs"] + 1)}
    pegs[setting["start_peg"]] = list(range(disks, 0, -1))
    moves = [line.strip() for line in text.splitlines() if line.strip()]
    for line in moves:
        match = _MOVE.fullmatch(line)
        disk, source, to = map(int, match.groups()) if match else (0, 0, 0)
        if source not in pegs or to not in pegs or pegs[source][-1:] != [disk] or (pegs[to] and pegs[to][-1] < disk):
            return 0.0
        pegs[to].append(pegs[source].pop())
    if not moves or len(pegs[setting["target_peg"]]) < disks:
        return 0.05 if moves else 0.0
    return min(1.0, setting["solution_length"] / len(moves))


def grade_cube(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for up to 500 turns in plain notation: the scorer would repeat a turn as often as
    the answer says."""
    turns = text.split()
    if len(turns) > 500 or not all(map(_TURN.fullmatch, turns)):
        return 0.0
    return float(generator.score_answer(" ".join(turns), entry))


def grade_cars(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for up to 500 moves of up to 9 places: the scorer would repeat a move as often as
    the answer says."""
    moves = text.split()
    if len(moves) > 500 or not all(map(_SHIFT.fullmatch, moves)):
        return 0.0
    return float(generator.score_answer(" ".join(moves), entry))


def grade_boxes(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for a list of at most 200 steps {agent: move}, each text at most 100 characters
    long."""
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(plan, list) or len(plan) > 200 or not all(isinstance(step, dict) for step in plan):
        return 0.0
    pairs = [
        (k, v)
        for step in plan
        for k, v in step.items()
    ]
    if not all(isinstance(v, str) and len(k) <= 100 and len(v) <= 100 for k, v in pairs):
        return 0.0
    try:
        raw = float(generator.score_answer(text, entry))
    except (KeyError, IndexError):  # a square that does not exist
        return 0.05
    return raw if math.isfinite(raw) else 0.0
