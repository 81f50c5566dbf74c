"""Read rows of JSON Lines, Parquet, CSV or TSV files, in the formats that public data sets use.

Left out: other formats, streaming (a file is held in memory), images, tool calls. The forms are those of TRL's
"Dataset formats and types": a prompt or a conversation, with an answer, a demonstration, or a pair of answers.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shuhari.data import EMPTY, FrozenDict, Payload, nearest
from shuhari.store.files import measure_memory
from shuhari.tasks.parquet import read_parquet

ROLE = "\x1f"  # between the role and the content of a message, where a prompt is one text
TABLES = {".csv": ",", ".tsv": "\t"}  # with a first line of names
CELL = 1 << 24  # characters of a cell
_OWN = ("prompt", "messages", "answer", "completion", "solution", "chosen", "rejected", "id", "split")
_KINDS = ("answer", "completion", "solution", "chosen")  # what says how a prompt is to be answered
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


@dataclass(frozen=True)
class Row:
    """`place`: how errors name it. `prompt` is text or messages, `text` the same as one text; `answer` is text or a
    number; `solution` the demonstration. `info`: the other columns (None where only other rows have one, as in
    Parquet), with the texts `chosen` and `rejected` of a pair, and the truth value `label` of a completion (None:
    neither good nor bad)."""

    place: str
    prompt: Payload
    text: str
    answer: Any = None
    solution: str | None = None
    id: str = ""
    split: str = ""
    info: Mapping[str, Any] = EMPTY


def read(path: Path, called: str, mapped: Callable[[Any], Any] = lambda raw: raw) -> list[Row]:
    """Read the rows of a file, in order. `called`: what errors call the file; `mapped`: row -> what it means. Raises
    ValueError, which names the place of a bad row; FileNotFoundError with the nearest file; ModuleNotFoundError where
    Parquet needs pyarrow."""
    if not path.is_file():
        there = [p.name for p in path.parent.glob("*") if p.suffix in (".jsonl", ".parquet", *TABLES)]
        message = nearest(path.name, there) if there else ""
        places = f"looked in {Path.cwd()}; of a recipe file beside that first"
        raise FileNotFoundError(f"{called}: no such file ({places}); {message}".rstrip("; "))
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{called}: a spreadsheet: expected JSON Lines, Parquet, CSV or TSV: save it as CSV")
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    table = path.suffix.lower() in TABLES
    rows = []
    for place, raw in (_read_parquet if parquet else _read_table if table else _read_json_lines)(path, called):
        try:
            found = read_strictly(raw) if isinstance(raw, str) else raw
            rows.append(_parse_row(place, mapped(found)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{called}, {place}: {str(error) or type(error).__name__}") from None
    if not rows:
        raise ValueError(f"{called}: the file has no rows: expected one JSON object a line, Parquet, CSV or TSV")
    graded = next((r.place for r in rows if r.answer is not None), "")
    for row in rows:
        if graded and row.answer is None and row.solution is None and "chosen" not in row.info:
            raise ValueError(f"{called}, {row.place}: no 'answer', which {graded} has; {nearest('answer', row.info)}")
    none = dict.fromkeys(
        n
        for row in rows
        for n in row.info
        if n not in ("chosen", "rejected")
    )
    return [r if none.keys() <= r.info.keys() else replace(r, info=FrozenDict({**none, **r.info})) for r in rows]


def list_texts(prompt: Any) -> list[str]:
    """List the texts of a prompt, one for each message."""
    return [prompt] if isinstance(prompt, str) else [f"{m['role']}{ROLE}{m['content']}" for m in prompt]


# ------------------------------------------------------------------------------------------------ files


def _read_json_lines(path: Path, called: str) -> Iterator[tuple[str, str]]:
    """(place, text) of each line that is not blank."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{called}, line {number}: {error}") from None
            if text.strip():
                yield f"line {number}", text


def _read_parquet(path: Path, called: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of each row, counted from 1; a quarter of the memory is for rows, and problems made of them."""
    return read_parquet(path, called, measure_memory() // 4)


def _read_table(path: Path, called: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of each row of a CSV or TSV file (RFC 4180), whose first line names the columns; an empty cell is
    none. Every value is text."""
    csv.field_size_limit(CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=TABLES[path.suffix.lower()], strict=True)
        try:
            names = next(lines, [])
            if not names or not all(names) or len(set(names)) < len(names):
                message = f"its first line is {_shorten(names)}: expected a name for each column, once"
                raise ValueError(f"{called}: {message}")
            for cells in lines:
                if cells and len(cells) != len(names):
                    raise ValueError(f"{called}, line {lines.line_num}: {len(cells)} cells, and {len(names)} columns")
                if cells:
                    yield f"line {lines.line_num}", {k: v or None for k, v in zip(names, cells, strict=True)}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{called}, line {lines.line_num}: {error}") from None


def read_strictly(text: str) -> Any:
    """A value of JSON; ValueError for a constant that JSON has not (NaN), and for an object that has a key twice."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_take_once)


def _take_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{_shorten(name)} stands twice in one object: expected each key once")
        found[name] = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# ------------------------------------------------------------------------------------------------ one row


def _parse_row(place: str, raw: Any) -> Row:
    """ValueError says what is wrong with it. A column of None is one that the row has not: Parquet has no other."""
    if not isinstance(raw, dict):
        raise ValueError(f"expected a JSON object, found {type(raw).__name__}")
    row = {k: v for k, v in raw.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}
    info = {k: freeze_value(v, k) for k, v in raw.items() if k not in _OWN}
    demonstration, prompt = _find_demonstration(row, info), row.get("prompt")
    if "messages" in row:
        if "prompt" in row:
            raise ValueError("both `prompt` and `messages`: expected one of them")
        prompt = _check_messages(row["messages"], "messages")
        if prompt[-1]["role"] == "assistant":
            if demonstration is not None:
                raise ValueError("a demonstration beside `messages` that end with the assistant: expected one of them")
            demonstration, prompt = prompt[-1]["content"], prompt[:-1]
            if not prompt:
                raise ValueError("`messages` has nothing before the assistant's: expected a prompt")
    elif isinstance(prompt, list | tuple):
        prompt = _check_messages(prompt, "prompt")
    if "chosen" in row or "rejected" in row:
        prompt, info["chosen"], info["rejected"] = _parse_pair(row, prompt)
    if prompt is None:
        named = "; a column of another name: task.columns.prompt=<name>" if row else ""
        raise ValueError(f"no 'prompt' and no 'messages'; {_suggest('prompt', row)}{named}")
    if not (isinstance(prompt, tuple) or (isinstance(prompt, str) and prompt)):
        raise ValueError(f"`prompt` is {_shorten(prompt)}: expected text, or messages with `role` and `content`")
    if "completion" in row and "answer" not in row and not isinstance(row.get("label", True), bool):
        raise ValueError(f"`label` is {row['label']!r}: expected true or false beside a completion")
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise ValueError(f"`answer` is {_shorten(answer)}: expected text or a number")
    if demonstration is None and "chosen" not in info and not any(k in row for k in _KINDS):
        for kind in _KINDS:
            if (near := get_close_matches(kind, info, 1, 0.8)) and near[0] != f"{kind}s":  # `answers` may be meant
                raise ValueError(f"no {kind!r}; did you mean {near[0]!r}?")
    if "split" in row and not isinstance(row["split"], str):
        raise ValueError(f"`split` is {row['split']!r}: expected text")
    return Row(
        place, prompt, "\x1e".join(_check_unicode(t, "prompt") for t in list_texts(prompt)),
        freeze_value(answer, "answer"), demonstration,
        _check_unicode(str(row.get("id", "")), "id"), _check_unicode(row.get("split", ""), "split"), FrozenDict(info),
    )  # fmt: skip


def _find_demonstration(row: Mapping[str, Any], info: dict[str, Any]) -> str | None:
    """`completion`, else `solution`; where both are there, `solution` is a column like any other."""
    if "completion" not in row:
        if not isinstance(row.get("solution", ""), str):
            raise ValueError(f"`solution` is {_shorten(row['solution'])}: expected text")
        return _check_unicode(row["solution"], "solution") if "solution" in row else None
    if "solution" in row:
        info["solution"] = freeze_value(row["solution"], "solution")
    return _find_reply(row["completion"], "completion")


def _parse_pair(row: Mapping[str, Any], prompt: Any) -> tuple[Any, str, str]:
    """(prompt, chosen, rejected). Without a prompt (or with one that two conversations repeat) it is what the two have
    in common: the messages before the last at most; of two texts all up to where they part, as TRL cuts them."""
    missing = next((k for k in ("chosen", "rejected") if k not in row), None)
    if missing is not None:
        raise ValueError(f"no {missing!r}, and `chosen` and `rejected` make a pair; {_suggest(missing, row)}")
    both = row["chosen"], row["rejected"]
    if all(isinstance(x, str) for x in both):
        good, bad = (_check_unicode(x, k) for x, k in zip(both, ("chosen", "rejected"), strict=True))
        if prompt is not None:
            return prompt, good, bad
        at = next((i for i, (x, y) in enumerate(zip(good, bad, strict=False)) if x != y), min(map(len, both)))
        at -= at > 0 and good[at - 1] == " "  # the space belongs to the answer
        if not at or good == bad:
            raise ValueError(f"no 'prompt', and `chosen` and `rejected` {'are the same' if at else 'share none'}")
        return good[:at], good[at:], bad[at:]
    a, b = (_check_messages(x, k) for x, k in zip(both, ("chosen", "rejected"), strict=True))
    if isinstance(prompt, tuple):
        n = len(prompt) * (a[: len(prompt)] == prompt == b[: len(prompt)])
    else:
        alike = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        n = min(next(alike, len(a)), len(a) - 1, len(b) - 1)
        prompt = a[:n] if n else prompt
    return prompt, _find_reply(a[n:], "chosen"), _find_reply(b[n:], "rejected")


def _find_reply(value: Any, name: str) -> str:
    """The assistant's reply: text, or one message."""
    if isinstance(value, str):
        return _check_unicode(value, name)
    messages = _check_messages(value, name)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        roles = ", ".join(m["role"] for m in messages)
        raise ValueError(f"`{name}` ends with messages of {roles}: expected text, or one message of the assistant")
    return str(messages[0]["content"])


def _check_messages(value: Any, name: str) -> tuple[FrozenDict, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"`{name}` is {_shorten(value)}: expected messages with `role` and `content`")
    out = []
    for m in value:
        if not (isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)):
            raise ValueError(f"`{name}` has {_shorten(m)}: expected messages with `role` and `content` as text")
        out.append(FrozenDict((k, freeze_value(v, name)) for k, v in m.items() if v is not None))
    return tuple(out)


def freeze_value(value: Any, name: str) -> Payload:
    """A value of a column as wire data; NaN is None. ValueError for an infinite number and for a type that has none."""
    if isinstance(value, list | tuple):
        return tuple(freeze_value(v, name) for v in value)
    if isinstance(value, Mapping):
        return FrozenDict((k, freeze_value(v, name)) for k, v in value.items())
    if isinstance(value, str):
        return _check_unicode(value, name)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise ValueError(f"`{name}` is {value}: expected a finite number")
    if isinstance(value, _AS_TEXT):
        return str(value)
    if value is None or isinstance(value, bool | int | float | bytes):
        return value
    raise ValueError(f"`{name}` is of type {type(value).__name__}: expected numbers, text, lists or objects")


def _check_unicode(text: str, name: str) -> str:
    """Check that UTF-8 can encode a text: JSON may escape half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{name}` is no text of Unicode: {error}") from None
    return text


def _suggest(name: str, row: Mapping[str, Any]) -> str:
    return nearest(name, row) if row else "the object is empty"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
