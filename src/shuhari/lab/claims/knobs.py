"""Equal tuning: which settings a rival turns that the method has too, and whether the method was run with them turned.

A rival that turns such a knob, and is ahead of a method that was not tried with it, shows that the claim does not hold
as it stands. It does not show that the method is worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.digest import describe
from shuhari.lab.claims.verdict import Headline

AHEAD = (Headline.REVERSED, Headline.LESS, Headline.BELOW)  # what is open if the method was not tried so
UNTRIED = "the method was not run with this knob turned"
REGULARISERS = ("objective/divergence", "objective/entropy")  # terms whose absence is a weight of 0
_UNSET = object()  # at its default


def is_untried(claim: Claim, number: int) -> bool:
    """Whether a check is a rival by a knob that the method has too, without an arm of the method with it turned."""
    check = claim.checks[number]
    return check.kind == "knob" and not check.turned and bool(find_shared_knobs(claim, str(check.rule.against)))


def find_shared_knobs(claim: Claim, rival: str) -> tuple[str, ...]:
    """Return the settings that a rival turns, if the method has all of them, at the baseline's values; () if the rival
    also adds, removes or replaces a component, or the method has a value of its own. A KL term or an entropy bonus that
    baseline and method lack is such a setting, its weight, at 0."""
    arms = claim.arms
    if not {BASELINE, METHOD, rival} <= arms.keys():
        return ()
    base, theirs, ours = (describe(arms[name])["stages"][-1][1] for name in (BASELINE, rival, METHOD))
    turned = [*_find_turned(base, theirs)]
    if any(path is None for path in turned):
        return ()
    shared = all(path and _look_up(ours, path) == _look_up(base, path) for path in turned)
    return tuple(".".join(path) for path in turned if path) if shared else ()


def _find_turned(base: Any, theirs: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...] | None]:
    """Yield the path of each setting that differs, None for a component that is added, removed or replaced."""
    if base == theirs:
        return
    whole = isinstance(base, Mapping) and isinstance(theirs, Mapping)
    if whole and base.get("") == theirs.get(""):
        component = "" in base
        for key in dict.fromkeys((*base, *theirs)):
            a, b = base.get(key, _UNSET), theirs.get(key, _UNSET)
            if a is _UNSET and _is_weight(b, (*at, key)):
                yield (*at, key)
            elif component or not (a is _UNSET or b is _UNSET):
                yield from _find_turned(a, b, (*at, key))
            else:
                yield None
    elif isinstance(base, list) and isinstance(theirs, list) and len(base) == len(theirs):
        for i, (a, b) in enumerate(zip(base, theirs, strict=True)):
            yield from _find_turned(a, b, (*at, str(i)))
    else:
        yield None if isinstance(base, Mapping | list) or isinstance(theirs, Mapping | list) else at


def _is_weight(added: Any, path: tuple[str, ...]) -> bool:
    """Whether what a rival adds is a regulariser, or a role, which such a term compares with."""
    term = added.get("objective") if isinstance(added, Mapping) else None
    return path[0] == "models" or (isinstance(term, Mapping) and term.get("") in REGULARISERS)


def _look_up(tree: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of a description: `_UNSET` if a component is there without it, None if none is."""
    for i, key in enumerate(path):
        if isinstance(tree, list):
            tree = tree[int(key)] if int(key) < len(tree) else None
            continue
        if not isinstance(tree, Mapping):
            return None
        if key not in tree:
            return _UNSET if "" in tree and i == len(path) - 1 else None
        tree = tree[key]
    return tree
