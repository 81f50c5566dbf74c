"""Checks by their form that regular expressions run in time linear in the text.

Left out: combinations of adjacent repeats (`a*a*b` may take cubic time, up to the ten million tries at each place after
which the engine gives up), and a proof: a refused expression may be harmless.
"""

from __future__ import annotations

import re

DEPTH = 64  # nesting of groups
_TIMES = re.compile(r"\{([0-9]{0,9})(,?)([0-9]{0,9})\}")
_HEAD = re.compile(r"\?(?:[:=!>]|<[=!]|[imsx-]{1,8}:?|<\w{1,64}>|P<\w{1,64}>)")
ONCE = (1, 1)


def explain_slow(pattern: str) -> str:
    """Returns why an expression may take exponential time, as `(a+)+` and `(a|aa)+` do: it repeats an ambiguous group;
    "" if it does not."""
    groups: list[list[bool | list[str]]] = [[False, [""]]]  # per open group: whether it varies, how its ways begin
    closed: list[bool | list[str]] | None = None  # the group that ended just before
    at = 0
    while at < len(pattern):
        char, group, was, closed = pattern[at], groups[-1], closed, None
        ways = group[1]
        assert isinstance(ways, list)
        if char == "\\":
            if pattern[at + 1 : at + 2] in tuple("123456789kg"):
                return "it refers back to a group"
            ways[-1] = ways[-1] or pattern[at : at + 2]
            at += 2
        elif char == "[":
            end = end_of_class(pattern, at)
            ways[-1] = ways[-1] or "["
            at = end
        elif char == "(":
            head = _HEAD.match(pattern, at + 1)
            if len(groups) > DEPTH:
                return f"it has groups more than {DEPTH} deep"
            ways[-1] = ways[-1] or "("
            groups.append([False, [""]])
            at = head.end() if head else at + 1
        elif char == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1][0] = bool(groups[-1][0] or _explain_group(closed))
            at += 1
        elif char == "|":
            ways.append("")
            at += 1
        elif times := find_times(pattern, at):
            least, most, at = times
            if was is not None and most > 1 and (why := _explain_group(was)):
                return why
            group[0] = bool(group[0] or least != most)
        else:
            ways[-1] = ways[-1] or char
            at += 1
    return ""


def _explain_group(group: list[bool | list[str]]) -> str:
    varies, ways = group
    assert isinstance(ways, list)
    if varies:
        return "it repeats a group that repeats"
    firsts = [w.lower() for w in ways]
    plain = all((len(w) == 1 and w not in "[(.") or ((len(w) == 2 and not w[1].isalnum()) or w in ("\\r", "\\n", "\\t"))
                for w in firsts)  # fmt: skip
    if len(ways) > 1 and not (plain and len(set(firsts)) == len(firsts)):
        return "it repeats a group of which several ways may begin alike"
    return ""


def find_times(pattern: str, at: int) -> tuple[int, float, int] | None:
    """Returns (least, most, end) of a `*`, `+`, `?` or `{m,n}` there, including a `?` or `+` after it."""
    char = pattern[at]
    if char in "*+?":
        least, most, end = (1 if char == "+" else 0), (1.0 if char == "?" else float("inf")), at + 1
    elif match := _TIMES.match(pattern, at):
        low, comma, high = match.groups()
        if not low and not high:
            return None
        least, end = int(low or 0), match.end()
        most = float(high) if high else float("inf") if comma else float(least)
    else:
        return None
    if end < len(pattern) and pattern[end] in "?+":
        end += 1
    return least, most, end


def end_of_class(pattern: str, at: int) -> int:
    """Returns the position after a character class, which may be nested."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        at += 2 if char == "\\" else 1
        depth += (char == "[") - (char == "]")
        if depth == 0:
            break
    return at
