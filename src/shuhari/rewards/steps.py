"""The steps of a text, the tokens at which they end, and rewards of them.

A step is a piece between separators that is not white space alone. It ends with the separator behind it; the last one
ends with the text. Tokens need not end where steps do: a step belongs to the token that holds its last character, even
if that token also begins the next step, and steps that end within one token share it. Left out: separators that are
patterns.

Axes: `S` steps, `K` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from shuhari.data import Array

Decode = Callable[[Array], str]


def split_steps(text: str, separator: str = "\n") -> list[int]:
    """Returns [S] the end of each step, as a number of characters of the text, in increasing order. A text of white
    space alone is one step, so that no text is without one."""
    ends, at = list[int](), 0
    while at < len(text):
        place = text.find(separator, at)
        piece, end = (text[at:], len(text)) if place < 0 else (text[at:place], place + len(separator))
        if piece.strip():
            ends.append(end)
        at = end
    return ends or [len(text)]


def find_steps(ids: Array, decode: Decode, separator: str = "\n") -> list[int]:
    """Returns [S] the index of the token at which each step of the decoded text ends, from 0 to K - 1, in
    non-decreasing order. ids: [K] int32, at least one; decode: ids -> text, without a closing end token."""
    text = decode(ids)
    return find_tokens(ids, decode, text, split_steps(text, separator))


def find_tokens(ids: Array, decode: Decode, text: str, ends: Sequence[int]) -> list[int]:
    """Returns, for each increasing number of characters in `ends`, the index of the token that completes these
    characters of `text`, which is what `ids` [K] decode to.

    That is the first token with which the decoded beginning of `ids` begins with them, so that characters of several
    tokens (bytes) are complete. It is found by bisection: each of the S ends costs the decoding of at most about 2
    log2(K) beginnings."""
    found, low = list[int](), 1

    def holds(k: int, end: int) -> bool:
        return k >= len(ids) or decode(ids[:k]).startswith(text[:end])

    for end in ends:
        high, stride = low, 1
        while not holds(high, end):
            low, high, stride = high + 1, min(len(ids), high + stride), 2 * stride
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle, end) else (middle + 1, high)
        found.append(min(low, len(ids)) - 1)
    return found


# ---------------------------------------------------------------- rewards of steps


Form = Literal["raw", "clip", "delta", "clip_delta", "first_wrong", "min", "last", "product"]
REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {  # form -> one number of all steps
    "min": min, "last": lambda r: r[-1], "product": math.prod,
}  # fmt: skip


def credit_steps(r: Sequence[float], form: Form, threshold: float = 0.5) -> list[float]:
    """Returns [S] the rewards of steps whose model gives r [S], by a form that is no reduction.

    `raw`: r. `clip`: min(r - threshold, 0), so that no step gains. `delta`: r_k - r_(k+1) up to the second last step,
    which keeps r, and 0 for the last, which is left to the outcome; from any step on the sum is its own r, so that a
    step more gains nothing. `clip_delta`: `delta` of `clip` (Gao et al. 2024, "On Designing Effective RL Reward at
    Training Time for LLM Reasoning", section 5). `first_wrong`: 1 before the first step with r below the threshold, 0
    from it on."""
    r = list(r)
    if form in ("clip", "clip_delta"):
        r = [min(x - threshold, 0.0) for x in r]
    if form in ("delta", "clip_delta"):
        before, last = r[:-1], [0.0]
        return [*(x - y for x, y in pairwise(before)), *before[-1:], *last]
    if form == "first_wrong":
        right = next((k for k, x in enumerate(r) if x < threshold), len(r))
        return [1.0] * right + [0.0] * (len(r) - right)
    return r
