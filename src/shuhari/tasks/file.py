"""Problems from your own file, JSON Lines, JSON, Parquet, CSV or TSV, or a folder of these; `rows.py` describes the
rows.

Left out: any grading beyond equal texts and numbers; add your own rewards (`[reward.<name>]`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from shuhari.bounds import ProperShare, check
from shuhari.data import EMPTY, Problem, Step, code
from shuhari.kernel.registry import held, register
from shuhari.models.text.tokenizers import plain_chat
from shuhari.tasks.labels import list_steps
from shuhari.tasks.mapped import Form, Mapped, cut_answer
from shuhari.tasks.rows import ROLE, Read, Row, has_empty_side, list_texts, name_places, read_file
from shuhari.tasks.source import SPLITS, Listed, answer_text, check_split, is_held_out
from shuhari.tasks.splits import find_split

LONGEST = 8192  # characters read of an answer, or four times the truth's length if that is more
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?", re.ASCII)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,40})?"
_PLAIN = re.compile(rf"[+-]?{_DIGITS}", re.ASCII)
_LAST = re.compile(  # a minus behind a number or a bracket is an operator
    rf"(?P<above>(?:(?<![\w).])[+-]|(?<![\w.,+^-])|(?<=[\w)][+-])){_DIGITS})(?:\s*/\s*(?P<below>[0-9]{{1,40}}))?"
    r"(?![0-9]|[.,/^][0-9]|[eE][+-]?[0-9])", re.ASCII
)


@register("task", "file")
@dataclass
class File:
    """Your own problems, named as `file/<path>`: JSONL, JSON, CSV, TSV, or Parquet (which needs the extra `lm`); or a
    folder of these, in which each file is the split of its name (`train.jsonl`, `test.parquet`).

    A row has `prompt` (text, or messages {"role", "content"}) or `messages` (a conversation: if the assistant ends it,
    its last message is the demonstration and the rest the prompt; also as `conversations` {"from", "value"}), and any
    of `answer` (text or a number), `completion` (a demonstration; `solution` is the same), `completion` and `label`
    (whether it is good, or how probably), `steps` (or `completions`) and `labels` (lists: the steps of an answer, and
    whether each is good), or `chosen` and `rejected` (text or messages; without a prompt, their common beginning).
    If a file has neither, `question`, `query`, `problem`, or the `instruction` and `input` of Alpaca are the prompt,
    `response` or `output` the demonstration, and `text` alone is text to imitate. `id` is the problem's name, `split`
    its split; other columns become part of the problem's `info`, with `chosen`, `rejected` and `label`. Pairs of equal
    answers are left out, and rows with one prompt are always in one split.

    An answer is right if it is the same number, or the same text except for case and white space. If all answers of the
    file are numbers, the last number of a text counts (`match`): `The answer is 1,000.` is 1000. Raises ValueError for
    a row that cannot be read, with its place in the file.
    """

    path: str = ""
    """Path of the file or folder, relative to the recipe file that names it, else to the working directory."""
    columns: Mapping[str, str] = EMPTY
    """Field of a row -> the column that it is read from, if that has another name (`{prompt = "question"}`)."""
    format: Form = "whole"
    """Form of answers: `whole` takes the whole text; `gsm8k` takes the part after the last `####`, in rows and in model
    output, and the whole as the demonstration if there is no other."""
    match: Literal["auto", "exact", "number"] = "auto"
    """Comparison of answers: `exact` of the whole text; `number` also of the last number in it, with thousands
    separators or a full stop; `auto` is `number` if every answer of the file is a number."""
    test_fraction: ProperShare = 0.1
    """Share of the prompts that is held out for testing, by a hash of the prompt, among rows without a `split`."""
    chat: bool | None = None
    """Format a text prompt as a user's turn by the model's chat template; None does so if the model has one, false
    suits base models."""
    system: str = ""
    """System message for conversations that have none; empty adds none."""
    too_long: Literal["refuse", "leave_out", "cut"] = "refuse"
    """Treatment of rows longer than the model reads: `refuse` ends the run before its first step, `leave_out` drops
    them, `cut` cuts the end of a demonstration and the beginning of a prompt."""

    def __post_init__(self) -> None:
        check(self)
        if self.path == "?":
            raise ValueError("which file? This recipe reads problems of yours: set task.name = \"file/<path of JSONL, "
                             "Parquet or CSV>\"; docs/tasks.md says what a row may be")  # fmt: skip
        if not self.path:
            raise ValueError("task file: a path is missing: expected file/<path of a JSONL, Parquet or CSV file>")
        self._fitted: dict[str, tuple[Problem, ...]] = {}
        _ = self._splits  # so that a bad row raises before a run starts

    @classmethod
    def preview(cls) -> dict[str, Any]:
        return {"prompt": "What is 6 times 7?", "answer": "42", "name": "file/<path>"}

    @property
    def read_from(self) -> Mapping[str, str]:
        """Field of a problem -> the column that it is read from."""
        own, found = {"prompt": "prompt", "answer": "answer", "solution": "completion"}, self._read.read_from
        return {field: found.get(name, name) for field, name in own.items()}

    @property
    def odd(self) -> tuple[str, ...]:
        """Warnings about the file: columns of other names, rows that are odd or left out."""
        same = [row.place for row in self._read.rows if _is_same(row)]
        told = f"file/{self.path}: {len(same)} of {len(self._read.rows)} rows have the same `chosen` and `rejected`"
        return (*self._read.notes, *((f"{told} ({name_places(same)}), and are left out",) if same else ()))

    @property
    def places(self) -> Mapping[str, str]:
        """Id of a problem -> its place in the file."""
        return self._placed[1]

    @property
    def counts(self) -> Mapping[str, int]:
        """Split, as the file calls it -> its number of problems."""
        return {split: len(rows) for split, rows in self._splits.items()}

    @property
    def named_splits(self) -> tuple[str, ...]:
        """The splits that rows, or the files of a folder, name."""
        return tuple(dict.fromkeys(row.split for row in self._read.rows if row.split))

    @property
    def raw_columns(self) -> Mapping[str, int]:
        """Column of the file -> number of rows with a value."""
        return self._read.columns

    def fit(self, split: str, problems: Sequence[Problem]) -> None:
        """Replaces a split's problems by these: those that the model can read."""
        self._fitted[find_split(split, self._splits)] = tuple(problems)

    @property
    def alphabet(self) -> str:
        """The characters of prompts, answers, demonstrations and pairs; for messages, also those that a tokenizer
        without a template adds around them."""
        around = plain_chat([{"role": "", "content": ""}]) if any(ROLE in t for t in self._texts()) else ""
        return "".join(sorted(set(around).union(*self._texts()) - {ROLE}))

    @property
    def ungraded(self) -> bool:
        """Whether no row has an answer, so that the task grades nothing."""
        return all(
            p.answer is None
            for rows in self._splits.values()
            for p in rows
        )

    @property
    def unanswered(self) -> str:
        """Which setting gives the rows answers, if they have none; "" if they have."""
        if not self.ungraded:
            return ""
        rows, column = self._read.rows, self.read_from["solution"]
        if any("chosen" in row.info for row in rows):
            return "pairs of `chosen` and `rejected` are what pretrained/dpo learns from"
        if any(row.solution is None for row in rows) or column in ("messages", "conversations"):
            return f"give the rows of file/{self.path} a column `answer` (task.columns.answer = '<column>' if it has " \
                   "another name)"  # fmt: skip
        return f"if `{column}` holds the right answers and no more, set task.columns.answer = {column!r} (it is read " \
               "as a demonstration, which pretrained/sft imitates)"  # fmt: skip

    @cached_property
    def by_number(self) -> bool:
        """Whether the last number of a text counts."""
        problems = chain.from_iterable(self._splits.values())
        plain = [_PLAIN.fullmatch(str(p.answer).strip()) is not None for p in problems if p.answer is not None]
        return self.match == "number" or (self.match == "auto" and bool(plain) and all(plain))

    @property
    def grades(self) -> str:
        """How it grades, in words, if not by the whole text."""
        others = "task.match = \"exact\" compares the whole text"
        why = "every answer of the file is a number: " if self.match == "auto" else ""
        return f"{why}the last number of a text is compared with it ({others})" if self.by_number else ""

    @property
    def stamps(self) -> tuple[str, ...]:
        return () if self.ungraded else ("reward/score",)

    def problems(self, split: str) -> Listed:
        """Returns the rows of a split in the order of the file. Raises ValueError for a split without rows."""
        found = find_split(split, self._splits)
        rows = self._fitted.get(found) or self._splits.get(found)
        if rows is None:
            check_split(split, sorted({*SPLITS, *self._splits}))
            count = sum(map(len, self._splits.values()))
            there = f"; all are in {', '.join(map(repr, self._splits))}" if len(self._splits) > 1 else ""
            raise ValueError(
                f"file/{self.path}: none of its {count} rows is in the split {split!r} (test_fraction is "
                f"{self.test_fraction}{there}): expected more rows, another test_fraction, or a column `split`"
            )
        return Listed(rows)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if answer and truth are one number, or one text except for case and white space, or as
        `match` has it; else 0.0; {} if the row has no answer."""
        if problem.answer is None:
            return {}
        answer = cut_answer(answer_text(steps), self.format)
        truth = str(problem.answer)
        return {"score": float(matches(answer, truth) or (self.by_number and ends_with(answer, truth)))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _texts(self) -> Iterator[str]:
        for problem in (
            p
            for rows in self._splits.values()
            for p in rows
        ):
            more = problem.answer, problem.solution, problem.info.get("chosen"), problem.info.get("rejected")
            yield from (*list_texts(problem.prompt), *(str(t) for t in more if t is not None))
            steps, _ = list_steps(problem.info)
            yield from (*steps, *("\n" * bool(steps)))  # between them, as `labelled` joins them

    @cached_property
    def _read(self) -> Read:
        path = held(self.path) or Path(self.path).expanduser()
        return read_file(path, f"file/{self.path}", Mapped(self.columns, self.format))

    @property
    def _splits(self) -> dict[str, tuple[Problem, ...]]:
        return self._placed[0]

    @cached_property
    def _placed(self) -> tuple[dict[str, tuple[Problem, ...]], dict[str, str]]:
        """(split -> its problems, id of a problem -> its place)."""
        called = f"file/{self.path}"
        rows = [row for row in self._read.rows if not (_is_same(row) or has_empty_side(row))]
        if not rows:
            message = "in every row `chosen` is the `rejected` too, or one of them is empty"
            raise ValueError(f"{called}: {message}: expected pairs of answers that differ")
        home: dict[str, tuple[str, str]] = {}  # prompt -> its split and the row that names it
        for row in rows:
            split, before = home.setdefault(row.text, (row.split, row.place)) if row.split else ("", "")
            if split != row.split:
                raise ValueError(
                    f"{called}: {before} and {row.place} have one prompt but the splits {split!r} and {row.split!r}: "
                    "expected held-out prompts to be seen nowhere else"
                )
        splits: dict[str, list[Problem]] = {}
        ids: dict[str, str] = {}
        again: Counter[str] = Counter()
        for row in rows:
            hashed = "test" if is_held_out(row.text, self.test_fraction) else "train"
            split = home[row.text][0] if row.text in home else hashed
            name = row.id
            if not name:
                what = (row.solution, row.info.get("chosen"), row.info.get("rejected"), *list_steps(row.info)[0])
                name = f"{code(row.text, *((row.answer,) if row.answer is not None else what)):016x}"
                again[name] += 1
                name += f"+{again[name] - 1}" if again[name] > 1 else ""  # the same row again
            if name in ids:
                raise ValueError(f"{called}: {ids[name]} and {row.place} have one id, {name!r}")
            ids[name] = row.place
            problem = Problem(called, name, row.prompt, row.answer, row.solution, row.info)
            splits.setdefault(split, []).append(problem)
        return {split: tuple(problems) for split, problems in splits.items()}, ids


def _is_same(row: Row) -> bool:
    """Whether a row is a pair of equal answers, which teaches nothing."""
    return "chosen" in row.info and row.info["chosen"] == row.info["rejected"]


def matches(text: str, answer: str) -> bool:
    """Whether two texts are the same number (plain decimals), or the same text after Unicode NFKC, case folding and
    joining white space. A text too long to be the answer (`LONGEST`) is not: normalising takes time quadratic in its
    combining marks."""
    text, answer = " ".join(text.split()), " ".join(answer.split())
    if len(text) > max(LONGEST, 4 * len(answer)):
        return False
    a, b = _normalise(text), _normalise(answer)
    if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b):
        return Fraction(a) == Fraction(b)
    return a == b


def ends_with(text: str, answer: str) -> bool:
    """Whether the last number in a text equals an answer that is a number: decimals, with thousands separators or
    without, or a fraction of whole numbers. A number with a power of ten, of more than 40 digits, or joined to letters
    before it is none. Of a long text its last characters are read (`LONGEST`)."""
    found = [m for m in _LAST.finditer(unicodedata.normalize("NFKC", text[-LONGEST:]).replace("\u2212", "-"))]
    if not found or _PLAIN.fullmatch(answer.strip()) is None or (below := int(found[-1]["below"] or 1)) == 0:
        return False
    return Fraction(found[-1]["above"].replace(",", "")) / below == Fraction(answer.strip().replace(",", ""))


def _normalise(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
