"""Contradictions between the statements of two methods, and what remains once `--set` has decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shuhari.config.methods import REMOVED, Change, Statement, Wrap
from shuhari.config.overlay import Path, RecipeError, Tree, format_path, look_up


def decide(statements: Sequence[Statement | Wrap], sets: Sequence[tuple[Path, Any]]) -> list[Statement | Wrap]:
    """Return the statements to lay, without those that `sets` (key of the stage, value) contradicts.

    RecipeError, listing all of them, if two methods still contradict each other; of two equal wraps one is kept."""
    left = [s for s in statements if isinstance(s, Statement)]
    torn = {
        (s.by, s.slot or s.path)
        for pair in _find_conflicts(left)
        for s in pair
    }
    for path, value in sets:
        out = {(s.by, s.slot) for s in left if s.slot and _differs(s, path, value)} & torn
        left = [s for s in left if s.kept or (s.by, s.slot) not in out]
        left = [new for s in left if (new := _apply_setting(s, path, value) if (s.by, s.slot or s.path) in torn else s)]
    wraps, told = list[Wrap](), [_explain(a, b) for a, b in _find_conflicts(left)]
    for w in [w for w in statements if isinstance(w, Wrap)]:
        if alike := [o for o in wraps if o.slot == w.slot and o.table["use"] == w.table["use"]]:
            if alike[0].table != w.table:
                both = f"{alike[0].by} and {w.by} both wrap it in {w.table['use']!r}, with other settings: lay one"
                told.append((format_path(w.slot), both))
        else:
            wraps.append(w)
    if told:  # all of them, so that one answer is enough
        (where, first), *more = dict.fromkeys(told)
        raise RecipeError(where, "".join([first, *(f"\n  {at}: {problem}" for at, problem in more)]))
    return [*left, *wraps]


def refuse_twice(changes: Sequence[Change]) -> None:
    """Raise RecipeError if a method is named twice: the second time would change nothing."""
    names = [c.name for c in changes]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise RecipeError("", f"the method {twice[0]} is named twice: expected each method once")


def _explain(a: Statement, b: Statement) -> tuple[str, str]:
    """Return (key, what is wrong) of two statements that contradict each other."""
    one = a if len(a.path) <= len(b.path) else b
    key = format_path((*one.key, "use") if one.whole or isinstance(one.value, Mapping) else one.key)
    both = f"{a.by} sets {_describe(a)} and {b.by} {_describe(b)}"
    return format_path(one.key), f"{both}: lay one of them, or decide with --set {key}=.."


def _find_conflicts(statements: Sequence[Statement]) -> Iterator[tuple[Statement, Statement]]:
    """Yield pairs of statements of two methods that contradict each other, the earlier first."""
    for i, b in enumerate(statements):
        for a in statements[:i]:
            if a.by != b.by and _is_conflict(*sorted((a, b), key=lambda s: len(s.path))):
                yield a, b


def _differs(s: Statement, path: Path, value: Any) -> bool:
    """Whether a setting puts another component in the place where a statement has, or needs, one."""
    there = s.value.get("use") if s.whole else s.value if s.held else None
    return path == (*s.slot, "use") and there is not None and there != value


def _apply_setting(s: Statement, path: Path, value: Any) -> Statement | None:
    """Return a statement after a setting; None if nothing of it is left."""
    n = min(len(path), len(s.path))
    if path[:n] != s.path[:n]:
        return s
    if len(path) > len(s.path) and s.whole:
        return replace(s, value=_put(s.value, path[len(s.path) :], value))
    return s if s.path == path and s.value == value else None


def _put(table: Mapping[str, Any], path: Path, value: Any) -> Tree:
    first, *rest = path
    inner = table.get(first)
    return {**table, first: _put(inner if isinstance(inner, Mapping) else {}, tuple(rest), value) if rest else value}


def _is_conflict(a: Statement, b: Statement) -> bool:
    """Whether two statements, the first about the same place or above, cannot both hold."""
    if a.path != b.path[: len(a.path)]:
        return False
    if a.path == b.path:
        return bool(a.value != b.value)
    if a.whole:
        return not b.kept and bool(look_up(a.value, b.path[len(a.path) :]) != b.value)
    return True


def _describe(s: Statement) -> str:
    at, value = (s.key, s.value) if not s.whole else ((*s.key, "use"), s.value.get("use", s.value))
    if value is REMOVED:
        return f'remove = ["{format_path(at)}"]'
    return f"{format_path(at)} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
