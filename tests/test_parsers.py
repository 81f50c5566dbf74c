"""Every parser of hostile text, on the largest input that it reads: within a bound, and linear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shuhari.methods.rlvr.simplerl_zoo.content import find_inside
from shuhari.models.text import chat
from shuhari.models.text.expressions import explain_slow
from shuhari.models.text.steps import clean_tokenizer
from shuhari.rewards.final import find_final
from shuhari.rollouts.tools import find_calls, read_call
from shuhari.store import codec
from shuhari.tasks import expressions
from shuhari.tasks.file import matches
from shuhari.tasks.mapped import cut_answer
from shuhari.tasks.reading import read_strictly
from shuhari.tasks.reasoning import alone, formulas, grading, logic
from shuhari.tasks.rows import read
from shuhari.tasks.separators import stands_alone

BOUND = 3.0  # seconds of processor time, on a busy machine


def repeated(*parts: str) -> Callable[[int], list[str]]:
    return lambda n: [part * (n // len(part)) for part in parts]


def keys(n: int) -> list[str]:
    """Objects of many keys: all different, the last one twice, all the same."""
    many = [f'"{i}":0' for i in range(n // 10)]
    return ["{" + ",".join(x) + "}" for x in (many, [*many, many[-1]], ['"a":0'] * (n // 6))]


def table(folder: Path, name: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        (folder / name).write_text(text)
        return read(folder / name, name)

    return parse


def held(text: str) -> Any:
    return find_inside(text, "\\boxed{", "}")


def formula(text: str) -> Any:
    return formulas.parse_formula(text, "x")


MATHS = ("$", "\\boxed{", "1,", "f(", " ", "or ", "12|", "\\", "1_", "~", "x ", "$1", "1/", "{", "\\(")
GRIDS = ("1", "1 ", "1,", "A ", "U", "a is b, ", "A=1,", "[1,", "'a',", "\n", ".", "(", "-", "¬", "((", "1.", "Move ")
PARSERS: dict[str, tuple[int, Callable[[int], list[str]], Callable[[Path], Callable[[str], Any]]]] = {
    "JSON": (1 << 19, keys, lambda _: read_strictly),
    "rows of JSON": (1 << 18, keys, lambda p: table(p, "f.jsonl")),
    "CSV": (1 << 17, repeated("a,", '"', '""', "a\n", ",\n", "prompt,a\n"), lambda p: table(p, "f.csv")),
    "a call of a tool": (1 << 16, keys, lambda _: read_call),
    "calls of a turn": (1 << 20, repeated("<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<"),
                        lambda _: lambda text: find_calls(text, 8)),
    "stored JSON": (1 << 19, keys, lambda _: lambda text: codec.loads(
        b"shuhari1" + len(text).to_bytes(8, "little") + text.encode())),
    "a final formula": (4096, repeated(*MATHS), lambda _: lambda text: find_final(text, "1")),
    "what a form holds": (1 << 20, repeated("\\boxed{", "{", "}", "a"), lambda _: held),
    "an exact answer": (8192, repeated("1", "a ", "\u0301", "\ufdfa"), lambda _: lambda text: matches(text, "1")),
    "an answer of GSM8K": (1 << 20, repeated("####", "1,", "1,111,"), lambda _: lambda text: cut_answer(text, "gsm8k")),
    "separators": (1 << 20, repeated("|", "1_", "or ", "1 |", "\x08", "."), lambda _: lambda t: stands_alone(t, "1")),
    "arithmetic": (256, repeated("1+", "(", "-", "1*", "9"), lambda _: expressions.evaluate),
    "a formula": (2048, repeated("(", "x*", "-", "sin(", "x**"), lambda _: formula),
    "a polynomial": (8192, repeated("x*", "x+", "9*", "x**9*"), lambda _: formulas.parse_polynomial),
    "logic": (1024, repeated("a∧", "¬", "(", "a→"), lambda _: lambda text: logic.truth_table(text, "abcdefghijkl")),
    "lists": (8192, repeated(*GRIDS), lambda _: grading.parse_lists),
    "numbers": (8192, repeated("1,", "1", "1e", "-"), lambda _: grading.parse_number),
    "complex numbers": (8192, repeated("1+", "i", "1", "-"), lambda _: grading.parse_complex),
    "grids": (8192, repeated(*GRIDS), lambda _: lambda text: alone._GRID.fullmatch(text)),
    "presses": (8192, repeated(*GRIDS), lambda _: lambda text: alone._PRESSES.fullmatch(text)),
    "statements": (8192, repeated(*GRIDS), lambda _: alone._split_statements),
    "an expression of a tokenizer": (1 << 14, repeated("(", "[", "a|", "(a|", "a{1,3}", "\\", "(?:a)+"),
                                     lambda _: explain_slow),
    "a tokenizer": (1 << 10, lambda n: [json.dumps({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Strip"}] * n}, "model": {"type": "BPE"}})], lambda _: lambda text: clean_tokenizer(json.loads(text))),
}  # fmt: skip


def spent(parse: Callable[[str], Any], text: str) -> float:
    best = float("inf")
    for _ in range(2):
        began = time.process_time()
        with suppress(ValueError, RecursionError, RuntimeError):  # what is refused has cost its time too
            parse(text)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_is_bounded_and_linear(name: str, tmp_path: Path) -> None:
    most, make, parser = PARSERS[name]
    parse = parser(tmp_path)
    for small, large in zip(make(most // 8), make(most), strict=True):
        took = spent(parse, large)
        assert took < BOUND, large[:20]
        assert took < 0.03 or took < 3 * 8 * spent(parse, small) + 0.03, large[:20]  # of a square it would be 64 times


def test_what_a_template_writes_is_bounded() -> None:
    for template in ("{{ 'a' * 10**9 }}", "{% for i in range(10**9) %}a{% endfor %}"):
        with pytest.raises(ValueError, match=r"tokenizer (wants more for|refuses) messages of user"):
            chat.render(template, [{"role": "user", "content": "a"}], {})
