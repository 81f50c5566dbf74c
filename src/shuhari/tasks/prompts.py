"""Prompts given by the user, as problems: the default task of a session. Left out: any grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shuhari.data import EMPTY, FrozenDict, Problem, Step, code, nearest
from shuhari.tasks.source import Listed


class Prompts:
    """Text, without problems or a grade."""

    ungraded = True
    stamps = ()

    def problems(self, split: str) -> Listed:
        return Listed(())

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        return EMPTY

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


def to_problem(given: Any) -> Problem:
    """Returns a problem from a prompt (text or messages), or a mapping with `prompt`, `answer` and anything else that a
    grader needs. Its id is a hash of its content."""
    if isinstance(given, Problem):
        return given
    row = freeze(given) if isinstance(given, Mapping) else {"prompt": freeze(given)}
    if "prompt" not in row:
        raise ValueError(f"a problem has no 'prompt'; {nearest('prompt', row)}")
    info = FrozenDict((k, v) for k, v in row.items() if k not in ("prompt", "answer"))
    return Problem("session", f"{code('session', str(row)):016x}", row["prompt"], row.get("answer"), info=info)


def freeze(value: Any) -> Any:
    """Returns messages and columns as wire data: lists as tuples, immutable mappings, anything else unchanged."""
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    return FrozenDict((k, freeze(v)) for k, v in value.items()) if isinstance(value, Mapping) else value
