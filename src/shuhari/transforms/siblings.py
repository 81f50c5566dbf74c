"""Next steps of one state, compared: states where it matters which is taken, and the step at which an answer is lost.

A state is what has been said so far; its next steps are the rows that continue one row of a tree, or those that begin
at the prompt. A step's value is the mean outcome of the graded answers below it, so trees of the rollout `tree` that
are whole (`whole`, `every`) estimate it by as many answers as there are. Plain samples are next steps of the prompt.

Sources: "Improving Multi-Step Reasoning Abilities of Large Language Models with Direct Advantage Policy Optimization"
(arXiv 2412.18279), whose advantages come from a critic; "RL on Incorrect Synthetic Data Scales the Efficiency of LLM
Math Reasoning by Eight-Fold" (Setlur et al. 2024, arXiv 2406.14532), section 6. Left out: steps by a delimiter.

Axes: `B` rows, `P` links, `S` states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import group_mean, spread_by, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, zero_ungraded, zero_weight


@register("transform", "drop_tied_steps")
@dataclass
class Apart:
    """Skips the next steps of a state at which it does not matter which is taken.

    Weight 0 on `stream` where their values, of `reward`, lie no further apart than `least`. A state with one graded
    next step is such a state.
    """

    least: AtLeast0 = 0.0
    """Spread of the next steps' values that must be exceeded for them to be learnt from."""
    reward: str = "reward"
    """Column whose mean outcome below a step is the step's value."""
    stream: str = "rl"
    """Stream on which the other steps get weight 0; loss terms of that `stream` then skip them."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ()
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        batch, value, counts = _find_values(batch, ctx, self.reward, self.stream)
        state = units(batch, "state")
        n = int(state.max()) + 1 if len(state) else 0
        apart = spread_by(value[counts], state[counts], n) > self.least
        return zero_weight(batch, ~apart[state], self.stream)


@register("transform", "first_error_pairs")
@dataclass
class FirstPit:
    """Preference pairs at the first wrong step of answers in a tree: the step that loses them, against the best one
    there.

    Links "pairs" [P, 2] of (better, worse) next steps of one state. The worse one is a pit: its value, of `reward`, is
    at most `floor`, and that of the state it is taken in above it, so it is where the answers below it are lost, first;
    the better one is the state's best, of equal ones the first. A pit stands in one pair, however many answers fall
    into it (in the paper once for each of them). The value of a state is that of the step before it; of the prompt, the
    mean over its answers. A step in no pair weighs 0 on `stream`. Ungraded answers count for nothing and are charged.
    """

    floor: float = 0.0
    """Value at or below which a step counts as lost; 0 with rewards of 0 and 1 is no right answer below it."""
    reward: str = "reward"
    """Column whose mean outcome below a step is the step's value."""
    stream: str = "rl"
    """Stream on which steps outside of every pair get weight 0."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("links/pairs",)
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        batch, value, counts = _find_values(batch, ctx, self.reward, self.stream)
        up = batch.local(batch["parent"])
        before = torch.where(up < 0, group_mean(batch, value)[0], value[up.clamp(min=0)])
        state = units(batch, "state")
        rows = counts.nonzero()[:, 0]
        order = rows[value[rows].argsort(descending=True, stable=True)]
        best = torch.full((int(state.max()) + 1 if len(state) else 0,), -1)
        best[state[order].flip(0)] = order.flip(0)  # the last that is written is the first in order
        pit = counts & (value <= self.floor) & (before > self.floor)
        better, worse = best[state[pit]], pit.nonzero()[:, 0]
        some = value[better] > value[worse]
        index = torch.stack([better[some], worse[some]], 1)
        paired = torch.zeros(len(batch), dtype=torch.bool)
        paired[index.flatten()] = True
        return zero_weight(batch, ~paired, self.stream).link("pairs", index)


def _find_values(batch: Batch, ctx: Ctx, reward: str, stream: str) -> tuple[Batch, Tensor, Tensor]:
    """(the batch without what nobody graded; values [B]; [B] which rows count)."""
    value = batch.outcome(reward)
    batch = zero_ungraded(batch, value.isnan() & find_usable(batch), ctx, stream)
    return batch, value, find_carried(batch, stream) & ~value.isnan()
