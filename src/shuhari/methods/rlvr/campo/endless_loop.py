"""A penalty for answers that were cut while repeating themselves, by the share of the loop.

Source: "MiroMind-M1: An Open-Source Advancement in Mathematical Reasoning via Context-Aware Multi-Stage Policy
Optimization" (CAMPO, arXiv 2507.14683), its repetition penalty as the released code finds loops. Left out: loops with
only similar rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from shuhari.bounds import Bounds, check
from shuhari.data import Number, Step, Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("reward", "loop")
@dataclass
class Loop:
    """Penalises answers that were cut at the length limit while they repeated themselves, by the share of the loop
    (CAMPO).

    The reward is {name: -weight x f}, f being `find_loop` of a cut answer's tokens; 0 for an answer that ended by
    itself. An answer is the decisions along the path to a leaf, without a forced prefix, and is cut if its last call
    was (`ended` of its step is False). Ungraded if there are no decisions. Raises ValueError for decisions that are not
    tokens.
    """

    counts: ClassVar[bool] = False  # used in addition to another reward
    name: str = "loop"
    """Name of the reward; list it in `[reward.weights]` if that lists others."""
    weight: Annotated[Number, Bounds(0)] = 1.0
    """Penalty if all of an answer is a loop, or a schedule; the reward is -weight times the share."""
    by: Literal["share", "any"] = "share"
    """Size of the penalty: by the "share" of the answer that is the loop, or the whole weight for "any" loop."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        return [
            self._grade([t.steps[i] for i in path], ctx)
            for t in group
            for path in t.paths()
        ]

    def _grade(self, steps: Sequence[Step], ctx: Ctx) -> Mapping[str, float] | None:
        decided = [s for s in steps if s.action is not None and s.mask.any()]
        if not decided:
            return None
        share = 0.0
        if decided[-1].info.get("ended") is False:
            share = find_loop(np.concatenate([_read_tokens(s)[s.mask] for s in decided]))
        return {self.name: -ctx.at(self.weight) * (share if self.by == "share" else float(share > 0))}


def find_loop(tokens: np.ndarray) -> float:
    """Returns the share of tokens [n] in the loop that they end in, in [0, 1]; 0 if there is none.

    A block of tokens, of any length up to n / 2, is a loop if the tokens end in at least two consecutive copies of it;
    the longest such block is used, and the loop begins with the first of its consecutive copies.
    """
    n, start = len(tokens), len(tokens)
    for length in range(n // 2, 0, -1):
        at = n - length
        while at >= length and np.array_equal(tokens[at - length : at], tokens[at : at + length]):
            at -= length
        if at < n - length:
            start = at
            break
    return (n - start) / n if n else 0.0


def _read_tokens(step: Step) -> np.ndarray:
    tokens = np.asarray(step.action)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found = f"{tokens.dtype} of shape {tokens.shape}"
        raise ValueError(f"loop: an action is {found}: expected tokens, one whole number a position")
    return tokens
