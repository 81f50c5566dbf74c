"""Interprets the rows of a file in the formats of public data sets: a prompt or a conversation, with an answer, a
demonstration, or a pair of answers. `reading.py` reads files, `messages.py` messages; `mapped.py` and `recognised.py`
map columns of other names.

Left out: images. The forms are those of TRL's "Dataset formats and types".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shuhari.data import EMPTY, FrozenDict, Payload, nearest
from shuhari.tasks.labels import LABELS, list_steps, read_label, read_steps
from shuhari.tasks.mapped import Mapped
from shuhari.tasks.messages import (
    ROLES,
    check_unicode,
    freeze_value,
    list_odd_roles,
    read_messages,
    spell_message,
)
from shuhari.tasks.reading import Raw, find_columns, read_raw, shorten
from shuhari.tasks.recognised import Recognised, check_form, recognise

ROLE = "\x1f"  # between the role and the content of a message, if a prompt is one text
SHOWN = 3  # places that a note names
SIDES = ("chosen", "rejected")  # of a pair
_OWN = (
    "prompt", "messages", "conversations", "answer", "completion", "solution", "chosen", "rejected", "id", "split"
)  # fmt: skip
_KINDS = ("answer", "completion", "solution", "chosen")  # how a prompt is to be answered


@dataclass(frozen=True)
class Row:
    """`place`: its name in errors. `prompt` is text or messages, `text` the same as one text (for text to imitate, that
    text); `answer` is text or a number; `solution` the demonstration. `info`: the other columns (None if only other
    rows have one, as in Parquet), with the texts `chosen` and `rejected` of a pair, the `label` of a completion (a
    boolean, or a probability; None: neither good nor bad), and the `labels` of steps (`labels.list_steps`)."""

    place: str
    prompt: Payload
    text: str
    answer: Any = None
    solution: str | None = None
    id: str = ""
    split: str = ""
    info: Mapping[str, Any] = EMPTY


@dataclass(frozen=True)
class Read:
    """The rows of a file. `read_from`: field -> the column that it is read from; `columns`: all columns -> number of
    rows with a value; `notes`: warnings about them."""

    rows: Sequence[Row]
    read_from: Mapping[str, str] = EMPTY
    columns: Mapping[str, int] = EMPTY
    notes: tuple[str, ...] = ()


def read(path: Path, called: str, mapped: Mapped | None = None) -> list[Row]:
    """Returns the rows of a file, in order; see `read_file`."""
    return [*read_file(path, called, mapped or Mapped()).rows]


def read_file(path: Path, called: str, mapped: Mapped) -> Read:
    """Reads a file, or the files of a folder. `called`: its name in errors; `mapped`: how to read a row. Raises
    ValueError, naming the place of a bad row; FileNotFoundError with the nearest file; ModuleNotFoundError if Parquet
    needs pyarrow."""
    given: list[Raw] = list(read_raw(path, called))
    if not given:
        raise ValueError(f"{called}: the file has no rows: expected one JSON object a line, an array of them, Parquet, "
                         "CSV or TSV")  # fmt: skip
    columns = find_columns(given)
    meant = [replace(raw, value=_map(raw, mapped, called)) for raw in given]
    found = recognise(find_columns(meant), columns, mapped.columns, called)
    if found.columns.get("answer") and "answer" not in mapped.columns:
        check_form((r.value.get("answer") for r in meant if isinstance(r.value, Mapping)), mapped.form, called)
    rows = []
    for raw in meant:
        try:
            rows.append(_parse_row(raw.place, _take_split(found(raw.value), raw.split), whole=bool(found.whole)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{called}, {raw.place}: {str(error) or type(error).__name__}") from None
    graded = next((r.place for r in rows if r.answer is not None), "")
    if bare := [r for r in rows if graded and r.answer is None and r.solution is None and "chosen" not in r.info]:
        near = nearest("answer", bare[0].info)
        more = f" (the first of {len(bare)} rows without)" if len(bare) > 1 else ""
        what = f"no 'answer', which {graded} has{more}: it is missing or null; give it one, or leave the row out"
        raise ValueError(f"{called}, {bare[0].place}: {what}{f'; {near}' if near.startswith('did you mean') else ''}")
    _check_labelled(rows, called)
    none = dict.fromkeys(
        n
        for row in rows
        for n in row.info
        if n not in SIDES
    )
    rows = [r if none.keys() <= r.info.keys() else replace(r, info=FrozenDict({**none, **r.info})) for r in rows]
    told = found.describe()
    return Read(
        rows, FrozenDict(_find_sources(columns, mapped, found)), FrozenDict(columns),
        (*((f"{called}: {told}",) if told else ()), *(f"{called}: {note}" for note in _list_odd(rows))),
    )  # fmt: skip


def _check_labelled(rows: Sequence[Row], called: str) -> None:
    """Raises ValueError if some rows have steps with labels and another has nothing to learn from."""
    first = next((r.place for r in rows if list_steps(r.info)[1]), "")
    for r in rows if first else ():
        if not list_steps(r.info)[1] and r.solution is None and r.answer is None and "chosen" not in r.info:
            raise ValueError(f"{called}, {r.place}: no `{LABELS}` of steps, which {first} has: give it some, or leave "
                             "the row out")  # fmt: skip


def list_texts(prompt: Any) -> list[str]:
    """Returns the texts of a prompt, one for each message."""
    return [prompt] if isinstance(prompt, str) else [f"{m['role']}{ROLE}{spell_message(m)}" for m in prompt]


def name_places(places: Sequence[str]) -> str:
    """Returns the first of many places, in words."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"{', '.join(places[:SHOWN])}{more}"


def _map(raw: Raw, mapped: Mapped, called: str) -> Any:
    try:
        return mapped(raw.value)
    except ValueError as error:
        raise ValueError(f"{called}, {raw.place}: {error}") from None


def _take_split(row: Any, split: str) -> Any:
    """Returns a row with the split of its file. Raises ValueError if it names another one."""
    if not split or not isinstance(row, Mapping):
        return row
    if row.get("split") not in (None, split):
        raise ValueError(f"`split` is {row['split']!r} in the file of the split {split!r}: expected no column `split`, "
                         "or that value")  # fmt: skip
    return {**row, "split": split}


def _find_sources(columns: Mapping[str, int], mapped: Mapped, found: Recognised) -> dict[str, str]:
    """Returns field -> the column that it is read from, for given or recognised columns."""
    sources = {**found.columns, **mapped.columns}
    if found.whole:
        sources["completion"] = mapped.columns.get("completion", found.whole)
    talks = next((name for name in ("messages", "conversations") if name in columns), "")
    if talks and not {"completion", "solution"} & {*columns, *sources}:
        sources["completion"] = talks
    if "completion" not in {*columns, *sources} and "solution" in {*columns, *sources}:
        sources["completion"] = sources.get("solution", "solution")
    if mapped.form == "gsm8k" and not {"completion", "solution"} & {*columns, *sources}:
        sources["completion"] = sources.get("answer", "answer")  # worked out
    return sources


def _list_odd(rows: Sequence[Row]) -> list[str]:
    """Returns warnings about odd but readable rows."""
    roles: dict[str, list[str]] = {}
    for row in rows:
        for role in dict.fromkeys(list_odd_roles(row.prompt)):
            roles.setdefault(role, []).append(row.place)
    told = [f"{_count(places)} a turn of the role {role!r} ({name_places(places)}): chat templates know "
            f"{', '.join(ROLES[:4])}" for role, places in roles.items()]  # fmt: skip
    empty = [r.place for r in rows if r.solution is not None and not r.solution.strip()]
    if empty:
        told.append(f"{_count(empty)} an empty demonstration ({name_places(empty)}), which teaches to say nothing")
    if bare := [r.place for r in rows if isinstance(r.answer, str) and not r.answer.strip()]:
        told.append(f"{_count(bare)} an empty `answer` ({name_places(bare)}), which only an empty text equals")
    for side in SIDES:
        if none := [r.place for r in rows if _is_empty(r, side)]:
            of = "it" if len(none) == 1 else "them"
            told.append(f"{_count(none)} an empty `{side}` ({name_places(none)}); no pair is made of {of}")
    return told


def has_empty_side(row: Row) -> bool:
    """Whether one answer of a row's pair is empty, which is seldom meant: an answer that was cut, or is missing."""
    return any(_is_empty(row, side) for side in SIDES)


def _is_empty(row: Row, side: str) -> bool:
    return side in row.info and not row.info[side].strip()


def _count(places: Sequence[str]) -> str:
    return "1 row has" if len(places) == 1 else f"{len(places)} rows have"


# ------------------------------------------------------------------------------------------------ one row


def _parse_row(place: str, raw: Any, *, whole: bool = False) -> Row:
    """Parses a row. Raises ValueError that explains what is wrong. A column of None counts as missing, as in Parquet.
    whole: the row is text to imitate, without a prompt."""
    if not isinstance(raw, dict):
        raise ValueError(f"expected a JSON object, found {type(raw).__name__}")
    row = {k: v for k, v in raw.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}
    info = {k: freeze_value(v, k) for k, v in raw.items() if k not in _OWN}
    demonstration, prompt = _find_demonstration(row, info), row.get("prompt")
    talks = [name for name in ("messages", "conversations") if name in row]
    if talks:
        name, *more = [*talks, *(["prompt"] if "prompt" in row else [])]
        if more:
            raise ValueError(f"both `{more[-1]}` and `{name}`: expected one of them")
        prompt, said = _split_conversation(row[name], name)
        if said is not None and demonstration is not None:
            raise ValueError(f"a demonstration beside `{name}` that end with the assistant: expected one of them")
        demonstration = demonstration if said is None else said
    elif isinstance(prompt, list | tuple):
        prompt = read_messages(prompt, "prompt")
    if "chosen" in row or "rejected" in row:
        prompt, info["chosen"], info["rejected"] = _parse_pair(row, prompt)
    if prompt is None:
        named = "; a column of another name: task.columns.prompt=<name>" if row else ""
        raise ValueError(f"no 'prompt' and no 'messages'; {_suggest('prompt', row)}{named}")
    if not (isinstance(prompt, tuple) or (isinstance(prompt, str) and (prompt or whole))):
        raise ValueError(f"`prompt` is {shorten(prompt)}: expected text, or messages with `role` and `content`")
    if whole and not demonstration:
        raise ValueError("no text to imitate: expected some")
    if "completion" in row and "answer" not in row and "label" in row and not whole:
        info["label"] = read_label(row["label"])
    if labels := read_steps(row):
        info[LABELS] = labels
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise ValueError(f"`answer` is {shorten(answer)}: expected text or a number")
    if demonstration is None and "chosen" not in info and not any(k in row for k in _KINDS):
        for kind in _KINDS:
            if (near := get_close_matches(kind, info, 1, 0.8)) and near[0] != f"{kind}s":  # `answers` may be meant
                raise ValueError(f"no {kind!r}; did you mean {near[0]!r}?")
    if "split" in row and not isinstance(row["split"], str):
        raise ValueError(f"`split` is {row['split']!r}: expected text")
    texts = [demonstration or ""] if whole else list_texts(prompt)
    return Row(
        place=place,
        prompt=prompt,
        text="\x1e".join(check_unicode(t, "prompt") for t in texts),
        answer=freeze_value(answer, "answer"),
        solution=demonstration,
        id=check_unicode(str(row.get("id", "")), "id"),
        split=check_unicode(row.get("split", ""), "split"),
        info=FrozenDict(info),
    )


def _split_conversation(value: Any, name: str) -> tuple[Payload, str | None]:
    """Returns (prompt, demonstration): a last turn of the assistant is the demonstration, all before it the prompt."""
    messages = read_messages(value, name)
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise ValueError(f"`{name}` has nothing before the assistant's: expected a prompt")
    return messages[:-1], _take_said(messages[-1], name)


def _take_said(message: Mapping[str, Any], name: str) -> str:
    """Returns the text of a demonstrated turn. Raises ValueError for a tool call, which each model writes in its own
    way."""
    if message.get("tool_calls"):
        called = shorten(message["tool_calls"][0]["function"]["name"])
        raise ValueError(f"`{name}` ends with a call of the tool {called}, and what is imitated is text: write "
                         "the call into `content` as the model is to write it, or end with a turn of text")  # fmt: skip
    return str(message["content"])


def _find_demonstration(row: Mapping[str, Any], info: dict[str, Any]) -> str | None:
    """Returns `completion`, else `solution`; if both exist, `solution` is an ordinary column."""
    if "completion" not in row:
        if not isinstance(row.get("solution", ""), str):
            raise ValueError(f"`solution` is {shorten(row['solution'])}: expected text")
        return check_unicode(row["solution"], "solution") if "solution" in row else None
    if "solution" in row:
        info["solution"] = freeze_value(row["solution"], "solution")
    return _find_reply(row["completion"], "completion")


def _parse_pair(row: Mapping[str, Any], prompt: Any) -> tuple[Any, str, str]:
    """Returns (prompt, chosen, rejected). Without a prompt (or with one that both conversations repeat) it is their
    common beginning: at most the messages before the last; for texts, all up to the first difference, as TRL splits
    them."""
    missing = next((k for k in SIDES if k not in row), None)
    if missing is not None:
        raise ValueError(f"no {missing!r}, and `chosen` and `rejected` make a pair; {_suggest(missing, row)}")
    both = row["chosen"], row["rejected"]
    if all(isinstance(x, str) for x in both):
        good, bad = (check_unicode(x, k) for x, k in zip(both, SIDES, strict=True))
        if prompt is not None:
            return prompt, good, bad
        at = next((i for i, (x, y) in enumerate(zip(good, bad, strict=False)) if x != y), min(map(len, both)))
        at -= at > 0 and good[at - 1] == " "  # the space belongs to the answer
        if not at or good == bad:
            raise ValueError(f"no 'prompt', and `chosen` and `rejected` {'are the same' if at else 'share none'}")
        return good[:at], good[at:], bad[at:]
    a, b = (read_messages(x, k) for x, k in zip(both, SIDES, strict=True))
    if isinstance(prompt, tuple):
        n = len(prompt) * (a[: len(prompt)] == prompt == b[: len(prompt)])
    else:
        alike = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        n = min(next(alike, len(a)), len(a) - 1, len(b) - 1)
        prompt = a[:n] if n else prompt
    return prompt, _find_reply(a[n:], "chosen"), _find_reply(b[n:], "rejected")


def _find_reply(value: Any, name: str) -> str:
    """Returns the assistant's reply: text, or one message."""
    if isinstance(value, str):
        return check_unicode(value, name)
    messages = read_messages(value, name)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        roles = ", ".join(m["role"] for m in messages)
        raise ValueError(f"`{name}` ends with messages of {roles}: expected text, or one message of the assistant")
    return _take_said(messages[0], name)


def _suggest(name: str, row: Mapping[str, Any]) -> str:
    return nearest(name, row) if row else "the object is empty"
