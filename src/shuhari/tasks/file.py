"""Problems from a JSON Lines file: one object a line, with `prompt`, `answer` and whatever else a grader wants.

Left out: other formats, streaming (the rows are held in memory), and any grading beyond a normalised exact match.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from shuhari.data import FrozenDict, Payload, Problem, Step, code, nearest
from shuhari.registry import register
from shuhari.tasks.source import SPLITS, Listed, answer_text, check_sizes, check_split, held_out

_OWN = ("prompt", "answer", "solution", "id", "split")
_ROLE = "\x1f"  # between the role and the content of a message, where a prompt is one text
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?", re.ASCII)


@register("task", "file")
@dataclass
class File:
    """Your own problems, named as `file/<path>`: JSONL with `prompt` and `answer`.

    `prompt` is text or a list of messages {"role", "content"}; `answer` is text or a number. `solution` (text) is the
    demonstration, `id` the problem's name, `split` its split; other columns land in the problem's `info`, unchanged.
    path: the file, relative to the working directory. test_fraction: share of the prompts held out, by a hash of the
    prompt, among rows that have no `split`; rows with one prompt are always in one split.
    """

    path: str = ""
    test_fraction: float = 0.1

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("task file: a path is missing: expected file/<path of a JSONL file>")
        check_sizes(f"file/{self.path}", self.test_fraction)
        _ = self._splits  # a bad row shows here, before a run starts

    @classmethod
    def preview(cls) -> dict[str, Any]:
        return {"prompt": "What is 6 times 7?", "answer": "42", "name": "file/<path>"}

    @property
    def alphabet(self) -> str:
        """The characters of prompts, answers and solutions."""
        problems = [p for rows in self._splits.values() for p in rows]
        texts = [t for p in problems for t in (*_texts(p.prompt), str(p.answer), str(p.solution or ""))]
        return "".join(sorted(set().union(*texts) - {_ROLE}))

    def problems(self, split: str) -> Listed:
        """The rows of a split in the order of the file. ValueError for a split that no row is in."""
        rows = self._splits.get(split)
        if rows is None:
            check_split(split, sorted({*SPLITS, *self._splits}))
            count = sum(map(len, self._splits.values()))
            raise ValueError(
                f"file/{self.path}: none of its {count} rows is in the split {split!r} (test_fraction is "
                f"{self.test_fraction}): expected more rows, another test_fraction, or a column `split`"
            )
        return Listed(rows)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """{"score": 1.0} where answer and truth are one number, or one text but for case and white space; else 0.0."""
        return {"score": float(matches(answer_text(steps), str(problem.answer)))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    @cached_property
    def _splits(self) -> dict[str, tuple[Problem, ...]]:
        rows = list(self._rows())
        if not rows:
            raise ValueError(f"file/{self.path}: the file has no rows: expected one JSON object a line")
        home: dict[str, tuple[str, int]] = {}  # prompt -> its split and the line that says so
        for line, prompt, row in rows:
            if "split" in row:
                split, before = home.setdefault(prompt, (row["split"], line))
                if split != row["split"]:
                    raise ValueError(
                        f"file/{self.path}: lines {before} and {line} have one prompt but the splits {split!r} and "
                        f"{row['split']!r}: expected held-out prompts to be seen nowhere else"
                    )
        splits: dict[str, list[Problem]] = {}
        ids: dict[str, int] = {}
        for line, prompt, row in rows:
            hashed = "test" if held_out(prompt, self.test_fraction) else "train"
            split = home[prompt][0] if prompt in home else hashed
            name = str(row["id"]) if "id" in row else f"{code(prompt, row['answer']):016x}"
            if "id" not in row:
                while name in ids:  # the same row again
                    name += "+"
            if name in ids:
                raise ValueError(f"file/{self.path}: lines {ids[name]} and {line} have one id, {name!r}")
            ids[name] = line
            info = FrozenDict((k, v) for k, v in row.items() if k not in _OWN)
            problem = Problem(f"file/{self.path}", name, row["prompt"], row["answer"], row.get("solution"), info)
            splits.setdefault(split, []).append(problem)
        return {split: tuple(problems) for split, problems in splits.items()}

    def _rows(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """(line number, prompt as one text, row) of each line that is not blank."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            near = nearest(path.name, (p.name for p in path.parent.glob("*.jsonl"))) if path.parent.is_dir() else ""
            raise FileNotFoundError(f"file/{self.path}: no such file (looked in {Path.cwd()}); {near}".rstrip("; "))
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    if not text.strip():
                        continue
                    row = _checked(json.loads(text, parse_constant=_refuse))
                except (ValueError, RecursionError) as error:  # not UTF-8 and not JSON are ValueErrors too
                    problem = str(error) or type(error).__name__
                    raise ValueError(f"file/{self.path}, line {number}: {problem}") from None
                yield number, "\x1e".join(_texts(row["prompt"])), row


def matches(text: str, answer: str) -> bool:
    """Whether two texts are the same number (plain decimals), or the same text after Unicode NFKC, case folding and
    joining white space."""
    a, b = _normal(text), _normal(answer)
    if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b):
        return Fraction(a) == Fraction(b)
    return a == b


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _checked(row: Any) -> dict[str, Any]:
    """A row with frozen values; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {type(row).__name__}")
    for name in ("prompt", "answer"):
        if row.get(name) is None:
            near = nearest(name, row) if row else "the object is empty"
            raise ValueError(f"no {name!r}; {near}")
    if isinstance(row["answer"], bool) or not isinstance(row["answer"], str | int | float):
        raise ValueError(f"`answer` is {row['answer']!r}: expected text or a number")
    for name in ("solution", "split"):
        if name in row and not isinstance(row[name], str):
            raise ValueError(f"`{name}` is {row[name]!r}: expected text")
    prompt = row["prompt"]
    messages = (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
        )
    )
    if not (messages or (isinstance(prompt, str) and prompt)):
        raise ValueError(f"`prompt` is {str(prompt)[:60]!r}: expected text, or messages with `role` and `content`")
    return {k: _frozen(v) for k, v in row.items()}


def _frozen(value: Any) -> Payload:
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return FrozenDict((k, _frozen(v)) for k, v in value.items())
    return value


def _texts(prompt: Any) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [f"{m['role']}{_ROLE}{m['content']}" for m in prompt]
