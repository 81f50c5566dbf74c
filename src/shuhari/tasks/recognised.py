"""Recognises columns by their usual names in data sets, if a file has none of ours: `question` and `answer`, the
`instruction`, `input` and `output` of Alpaca, a `text` alone. Ambiguous columns are refused, with the setting that
chooses.

Left out: guesses from the content of columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shuhari.data import EMPTY, FrozenDict
from shuhari.tasks.mapped import MARK, Form

PROMPTS = ("instruction", "question", "query", "problem", "input")  # `input` may accompany `instruction`
REPLIES = ("response", "output")
OURS = ("prompt", "messages", "conversations")
WORDS = {"prompt": "the prompt", "completion": "the demonstration", "solution": "the demonstration",
         "answer": "the answer", "chosen": "the better answer", "rejected": "the worse one"}  # fmt: skip


@dataclass(frozen=True)
class Recognised:
    """columns: field -> the column that it is read from; `more`: the column appended to the prompt, after a blank line
    (the `input` of Alpaca). `whole`: the column is text to imitate, without a prompt."""

    columns: Mapping[str, str] = EMPTY
    more: str = ""
    whole: str = ""

    def __call__(self, row: Any) -> Any:
        """Returns a row with its fields under their own names."""
        if not isinstance(row, Mapping) or not (self.columns or self.whole):
            return row
        taken = {*self.columns.values(), self.more, self.whole}
        out = {k: v for k, v in row.items() if k not in taken}
        out |= {field: row[column] for field, column in self.columns.items() if column in row}
        if self.more and isinstance(row.get(self.more), str) and row[self.more].strip():
            prompt = out.get("prompt")
            out["prompt"] = f"{prompt}\n\n{row[self.more]}" if isinstance(prompt, str) else prompt
        if self.whole:
            out |= {"prompt": "", "completion": row.get(self.whole)}
        return out

    def describe(self) -> str:
        """Describes how the columns are read; "" if each has its own name."""
        if self.whole:
            return f"reads `{self.whole}` as text to imitate, without a prompt"
        if not self.columns:
            return ""
        told = [f"`{column}` as {WORDS[field]}" for field, column in self.columns.items()]
        if self.more:
            told[0] = f"`{self.columns['prompt']}` (and `{self.more}` behind it) as the prompt"
        return f"reads {', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else f"reads {told[0]}"


def recognise(there: Collection[str], given: Collection[str], named: Mapping[str, str], called: str) -> Recognised:
    """Finds how the columns of a file are read. there: the columns of its rows, after settings have mapped some
    (`named`, field -> column); given: the columns of the file. If a file has our field for something, that is used.
    Raises ValueError if there are two readings."""
    pair = {"chosen", "rejected"} <= {*there}
    if any(name in there for name in OURS):
        return Recognised()
    prompts = [name for name in PROMPTS if name in there]
    more = "input" if prompts[:1] == ["instruction"] and "input" in prompts else ""
    prompts = [name for name in prompts if name != more]
    if not prompts and named.keys() == {"completion"}:
        return Recognised(whole="completion")
    if not prompts:
        return _recognise_text(there, called) if "text" in there and not pair else Recognised()
    if len(prompts) > 1:
        raise ValueError(f"{called}: {_list(prompts)} may each be the prompt: say which: "
                         f"task.columns.prompt = {prompts[0]!r}")  # fmt: skip
    columns = {"prompt": prompts[0]}
    if pair:
        return Recognised(FrozenDict({**columns, "chosen": "chosen", "rejected": "rejected"}))
    replies = [name for name in REPLIES if name in there] if "completion" not in there else []
    if len(replies) > 1 or (replies and "solution" in there):
        both = [*replies, *(["solution"] if "solution" in there else [])]
        raise ValueError(f"{called}: {_list(both)} may each be the demonstration: say which: "
                         f"task.columns.completion = {both[0]!r}")  # fmt: skip
    columns |= {name: name for name in ("answer", "completion", "solution") if name in there and name in given}
    if replies:
        columns["completion"] = replies[0]
    if len(columns) == 1 and prompts[0] == "input":
        return Recognised()  # not enough on its own
    return Recognised(FrozenDict(columns), more)


def check_form(answers: Iterable[Any], form: Form, called: str) -> None:
    """Raises ValueError if all answers found by their column's name are worked out as in GSM8K, and no setting says how
    to read them."""
    found = list(answers)
    if form == "whole" and found and all(isinstance(a, str) and MARK in a for a in found):
        raise ValueError(f"{called}: every `answer` is worked out and ends in `{MARK} <number>`: say how it is read: "
                         "task.format = 'gsm8k' takes the number as the answer and the whole as the demonstration; "
                         "task.columns.completion = 'answer' imitates it")  # fmt: skip


def _recognise_text(fields: Collection[str], called: str) -> Recognised:
    """Recognises a file with a column `text`, none of the usual prompt names, and possibly other columns."""
    beside = [name for name in ("label", "answer", "completion", "solution", *REPLIES) if name in fields]
    if beside:
        raise ValueError(f"{called}: `text` beside {_list(beside)} may be a prompt or text to imitate: say which: "
                         "task.columns.prompt = 'text' or task.columns.completion = 'text'"
                         f"{', task.columns.answer = ' + repr('label') if 'label' in beside else ''}")  # fmt: skip
    return Recognised(whole="text")


def _list(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
