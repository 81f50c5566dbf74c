"""Conversion of a session's arguments to components: a name, a table, or an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shuhari.config.build import make_component
from shuhari.kernel.abilities import MUSTS, find_missing
from shuhari.learners.parts import Term
from shuhari.rewards.function import Function


def write_down(given: Mapping[str, Any]) -> Any:
    """Convert names, tables and paths to JSON data; None if they contain an object, which cannot be written."""

    def plain(x: Any) -> Any:
        if isinstance(x, Path):
            return str(x)
        raise TypeError

    try:
        return json.loads(json.dumps(given, default=plain, allow_nan=False))
    except (TypeError, ValueError):
        return None


def make(kind: str, what: Any) -> Any:
    table: Any = what
    return make_component(kind, table) if isinstance(what, str | Mapping) else what


def find_grader(name: str, what: Any) -> Any:
    if callable(what) and find_missing(what, *MUSTS["reward"]):
        return Function.of(what, name)
    table = {"use": what} if isinstance(what, str) else what
    return make("reward", {"name": name, **table} if isinstance(table, Mapping) else table)


def play_environment(task: Any) -> Any:
    """Return the environment of the task's first problem, if it has one."""
    source = task.problems("train")
    return None if source.size() == 0 else task.environment(source[0])


def name_terms(terms: Any) -> dict[str, Term]:
    """Return terms by name, naming a sequence after their objectives. Raises TypeError for anything else."""
    given = list(terms.items()) if isinstance(terms, Mapping) else terms if isinstance(terms, list | tuple) else [terms]
    named: dict[str, Term] = {}
    for one in given:
        name, term = one if isinstance(terms, Mapping) else ("", one)
        if not isinstance(term, Term):
            raise TypeError(
                f"forward_backward takes terms, and was given {term!r:.60}: expected [Term(objective), ...]"
            )
        term = replace(term, objective=make("objective", term.objective))
        name = name or type(term.objective).__name__.lower()
        named[name if name not in named else f"{name}{len(named)}"] = term
    if not named:
        raise ValueError("forward_backward was given no terms: there is nothing to minimise")
    return named
