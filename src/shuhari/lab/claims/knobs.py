"""Equal tuning: which settings a rival turns that the method has too, and whether the method was run with them turned.

A rival that turns such a knob, and is ahead of a method that was not tried with it, shows that the claim does not hold
as it stands. It does not show that the method is worse. The same is true of any rival that is ahead of the method as it
stands and not of the method with a knob turned, if that rival was not run with that knob turned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from shuhari.config.recipe import Recipe
from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.claim import Claim
from shuhari.lab.claims.digest import describe
from shuhari.lab.claims.verdict import Headline

AHEAD = (Headline.REVERSED, Headline.LESS, Headline.BELOW)  # what is open if the method was not tried so
UNTRIED = "the method was not run with this knob turned"
UNEQUAL = "the method is not behind with another knob turned, and this rival was not run so"
REGULARISERS = ("objective/divergence", "objective/entropy")  # terms whose absence is a weight of 0
_UNSET = object()  # at its default


def is_untried(claim: Claim, number: int) -> bool:
    """Whether a check is a rival by a knob that the method has too, without an arm of the method with it turned. A
    rival with more samples is none: that the method has fewer is the point."""
    check = claim.checks[number]
    if check.rule.role != "rival" or check.turned or check.kind == "compute":
        return False
    return bool(find_shared_knobs(claim, str(check.rule.against)))


def list_turned(claim: Claim) -> tuple[str, ...]:
    """Return the arms that are the method with a knob of a rival turned."""
    return tuple(dict.fromkeys(check.turned for check in claim.checks if check.turned))


def list_ours(claim: Claim, number: int) -> tuple[str, ...]:
    """Return the arms of the method of which the best is compared with a baseline or rival: the method as it stands,
    with the knob of this rival turned, and with each knob turned that this rival was run with, too."""
    check = claim.checks[number]
    ours = [check.rule.arm, *([check.turned] if check.turned else [])]
    if check.rule.role not in ("headline", "rival") or check.rule.arm != METHOD:
        return tuple(ours)
    theirs = {str(c.rule.against) for c in claim.checks if c.rule.role in ("headline", "rival")}
    rest = [arm for arm in list_turned(claim) if arm not in ours]
    return (*ours, *(arm for arm in rest if _is_matched(claim, arm, str(check.rule.against), theirs)))


def _is_matched(claim: Claim, turned: str, rival: str, theirs: Collection[str]) -> bool:
    """Whether two of the baseline and the rivals, one of them `rival`, differ as the method and `turned` do."""
    if not {METHOD, turned, rival} <= claim.arms.keys():
        return False
    knob, there = _list_changes(claim, METHOD, turned), [arm for arm in theirs if arm in claim.arms and arm != rival]
    return any(knob in (_list_changes(claim, rival, arm), _list_changes(claim, arm, rival)) for arm in there)


def _list_changes(claim: Claim, arm: str, other: str) -> dict[tuple[str, ...], str]:
    """Return path -> new value of the settings that `other` turns; a component that is added, removed or replaced is at
    the path ()."""
    base, theirs = (_describe_last(claim.arms[name]) for name in (arm, other))
    return {path or (): repr(_look_up(theirs, path)) if path else other for path in _find_turned(base, theirs)}


@lru_cache(maxsize=64)
def _describe_last(arm: Recipe) -> Mapping[str, Any]:
    """Return the description of an arm's last stage, which takes a while to make and is asked for by every pair."""
    last: Mapping[str, Any] = describe(arm)["stages"][-1][1]
    return last


def find_shared_knobs(claim: Claim, rival: str) -> tuple[str, ...]:
    """Return the settings that a rival turns, if the method has all of them, at the baseline's values; () if the rival
    also adds, removes or replaces a component, or the method has a value of its own. A KL term or an entropy bonus that
    baseline and method lack is such a setting, its weight, at 0."""
    arms = claim.arms
    if not {BASELINE, METHOD, rival} <= arms.keys():
        return ()
    base, theirs, ours = (_describe_last(arms[name]) for name in (BASELINE, rival, METHOD))
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
