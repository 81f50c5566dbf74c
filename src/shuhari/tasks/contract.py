"""Checks what a task's problems, its grade, and its environments return. Any other value ends the run: it would be
silently dropped or misread in training.

Each `explain_...` returns what is wrong with a value, to follow the name of its source; "" if nothing is.

Axes: `K` decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

import numpy as np

from shuhari.data import Problem, Status, Whole, is_tokens, with_article
from shuhari.store.codec import dumps

TEXT = "expected text, messages, token ids, or a Whole of one of these"
LARGEST = 1e18  # of a reward, in size: squares of larger ones are infinite in float32, and nothing is learnt
SLACK = 1e-6  # of the range of a score: a mean of ones may round to above 1


def explain_grade(grade: Any, *, own: bool = False) -> str:
    """Explains an invalid grade. A grade is None, or name -> a number that is not infinite, or [K] numbers (NaN and
    None: ungraded). own: of a task, whose `score` lies in [0, 1]."""
    if grade is None:
        return ""
    example = "{'score': 1.0}" if own else "{'style': 1.0}"
    if not isinstance(grade, Mapping):
        hint = f"expected numbers by name, such as {example}, or None"
        return f"gave the grade {_show(grade)}: {hint} where it cannot be graded"
    return _explain_numbers(grade, "the grade", example, own=own)


def find_overflow(grade: Mapping[str, Any] | None) -> str:
    """Explains which part of a grade is too large to be learnt from; "" if none is."""
    for name, value in (grade or {}).items():
        if value is not None and bool((np.abs(np.asarray(value, float)) > LARGEST).any()):
            return f"gave {name!r} = {_show(value)}: expected a number of at most {LARGEST:g} in size"
    return ""


def explain_first(seen: Any, *, text: bool) -> str:
    """Explains an invalid result of `reset`, an observation. text: whether the policy reads text."""
    if text and (seen is None or (isinstance(seen, str) and not seen)):
        return f"gave {seen!r}: {TEXT}, as the policy reads something first"
    return _explain_seen(seen, text=text)


def explain_step(given: Any, *, text: bool) -> str:
    """Explains an invalid result of `step`: (observation, rewards by name, Status, or None if the episode goes on)."""
    if not (isinstance(given, tuple) and len(given) == 3):
        shown = f"a tuple of {len(given)}" if isinstance(given, tuple) else _show(given)
        return f"gave {shown}: expected (observation, rewards by name, Status or None)"
    seen, rewards, status = given
    if not isinstance(rewards, Mapping):
        return f"gave the rewards {_show(rewards)}: expected numbers by name, such as {{'task': 1.0}}, or {{}} for none"
    if wrong := _explain_numbers(rewards, "the rewards", "{'task': 1.0}") or find_overflow(rewards):
        return wrong
    if status is not None and not isinstance(status, Status):
        known = ", ".join(f"Status.{s.name}" for s in Status)
        return f"gave the status {_show(status)}: expected None where the episode goes on, or one of {known}"
    return "" if text and seen is None else _explain_seen(seen, text=text)


def explain_facts(facts: Any) -> str:
    """Explains invalid `facts`: column -> a number or an array."""
    if not isinstance(facts, Mapping):
        return f"has the facts {_show(facts)}: expected numbers or arrays by the name of a column"
    for name, value in facts.items():
        if not isinstance(name, str) or (value is not None and np.asarray(value).dtype.kind not in "biuf"):
            return f"tells {name!r} = {_show(value)}: expected a number or an array"
    return ""


def explain_ids(problems: Sequence[Problem], split: str, *, first: int = 0, once: bool = False) -> str:
    """Explains invalid ids of a split's problems, from index `first` on: an id must name one problem of a task, else
    two would be counted as one. once: each problem must occur once."""
    known: dict[tuple[str, str], int] = {}
    for i, p in enumerate(problems):
        if (j := known.setdefault((p.task, p.id), i)) != i:
            same = _to_bytes(problems[j]) == _to_bytes(p)
            if once or not same:
                both = f"problems {first + j} and {first + i} of the split {split!r} both have the id {p.id!r}"
                return f"{both}{'' if same else ', and are not the same'}: expected an id of its own for each"
    return ""


def _to_bytes(problem: Problem) -> bytes:
    """Returns the content of a problem as bytes; problems with equal content may differ in `solution`."""
    try:
        return dumps([problem.prompt, problem.answer, problem.start])
    except TypeError:  # not storable: use what can be read of it
        return repr(problem.prompt).encode()


def _explain_seen(seen: Any, *, text: bool) -> str:
    whole = seen.context if isinstance(seen, Whole) else seen
    messages = isinstance(whole, tuple) and bool(whole) and all(isinstance(m, Mapping) for m in whole)
    if text:
        return (
            "" if isinstance(whole, str) or is_tokens(whole) or messages else f"gave {_show(seen)} to be read: {TEXT}"
        )
    if whole is None or isinstance(whole, str | tuple | list | set):
        hint = "expected numbers, an array, or a mapping of these, as the spaces of the task say"
        return f"gave the observation {_show(seen)}: {hint}"
    return ""


def _explain_numbers(found: Mapping[Any, Any], what: str, example: str, *, own: bool = False) -> str:
    for name, value in found.items():
        if not isinstance(name, str):
            return f"gave {what} {_show(dict(found))}: expected names that are text, such as {example}"
        number = value if type(value) is float else _read(value)
        if number is None or isinf(number):
            return f"gave {name!r} = {_show(value)}: expected a finite number, or one a decision [K]"
        if own and name == "score" and number == number and not -SLACK <= number <= 1 + SLACK:
            return f"gave 'score' = {number:g}: expected a number in [0, 1]; a reward of another range has another name"
    return ""


def _show(value: Any) -> str:
    """Returns a value on one line; for a long one, its type."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{with_article(type(value).__name__)} ({text[:40]}...)"


def _read(value: Any) -> float | None:
    """Returns the sum of a value; NaN for None, None if it is no number."""
    if value is None:
        return float("nan")
    try:
        x = np.asarray(value)
        return float(x.sum()) if x.dtype.kind in "biuf" and x.ndim < 2 else None
    except (TypeError, ValueError, RuntimeError):  # ragged; a tensor on a device, or with a gradient
        return None
