"""Columns that a data set has under other names, and answers in the form in which it writes them.

Left out: templates that make a prompt of several columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shuhari.data import EMPTY, nearest

FIELDS = ("prompt", "messages", "answer", "completion", "solution", "chosen", "rejected", "label", "id", "split")
Form = Literal["whole", "gsm8k"]
MARK = "####"  # of GSM8K, before the number that a worked solution ends with
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", re.ASCII)


@dataclass(frozen=True)
class Mapped:
    """What a row of a file means. columns: field -> the column that it is read from; a column that has the field's own
    name is then not read. form: of `answer`, see `cut_answer`. Raises ValueError for a field that there is not."""

    columns: Mapping[str, str] = EMPTY
    form: Form = "whole"

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in FIELDS:
                raise ValueError(f"columns.{name}: a row has no such field; {nearest(name, FIELDS)}")

    def __call__(self, raw: Any) -> Any:
        """A row with its fields under their own names. ValueError where a column that is named is not there, or an
        answer has not the form."""
        if not isinstance(raw, Mapping) or (not self.columns and self.form == "whole"):
            return raw
        row = {k: v for k, v in raw.items() if k not in self.columns and k not in self.columns.values()}
        for name, column in self.columns.items():
            if column not in raw:
                raise ValueError(f"no column {column!r}, which columns.{name} names; {nearest(column, raw)}")
            row[name] = raw[column]
        if self.form == "gsm8k" and row.get("answer") is not None:
            worked = row["answer"]
            if not isinstance(worked, str) or MARK not in worked:
                raise ValueError(f"`answer` is {worked!r:.60}: expected `{MARK} <number>` at its end, as GSM8K has it "
                                 "(format = 'gsm8k')")  # fmt: skip
            row["answer"] = cut_answer(worked, self.form)
            if not {"completion", "solution"} & row.keys():
                row["completion"] = worked
        return row


def cut_answer(text: str, form: Form) -> str:
    """What of a text is the answer: all of it; of GSM8K what follows the last `####`, without the commas of thousands,
    and all where there is no such mark."""
    return text if form == "whole" else _THOUSANDS.sub("", text.rpartition(MARK)[2]).strip()
