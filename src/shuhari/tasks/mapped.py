"""Maps columns of other names to fields, and extracts answers from their form in the data.

Left out: templates that make a prompt from several columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shuhari.data import EMPTY, nearest

FIELDS = ("prompt", "messages", "answer", "completion", "solution", "chosen", "rejected", "label", "id", "split")
Form = Literal["whole", "gsm8k"]
MARK = "####"  # of GSM8K, before the number at the end of a worked solution
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", re.ASCII)


@dataclass(frozen=True)
class Mapped:
    """How to read a row of a file. columns: field -> the column that it is read from; a column with the field's own
    name is then ignored. form: of `answer`, see `cut_answer`. Raises ValueError for an unknown field."""

    columns: Mapping[str, str] = EMPTY
    form: Form = "whole"

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in FIELDS:
                raise ValueError(f"columns.{name}: a row has no such field; {nearest(name, FIELDS)}")

    def __call__(self, raw: Any) -> Any:
        """Returns a row with its fields under their own names. Raises ValueError if a named column is missing, or an
        answer does not have the form."""
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
    """Returns the answer in a text: all of it; for GSM8K the part after the last `####`, without thousands separators,
    or all if there is no such mark."""
    return text if form == "whole" else _THOUSANDS.sub("", text.rpartition(MARK)[2]).strip()
