"""Compares the next steps of one state: finds states at which the choice matters, and the step that loses an answer.

A state is the text so far; its next steps are the rows that continue one row of a tree, or those that begin at the
prompt. A step's value is the mean outcome of the graded answers below it, so whole trees of the rollout `tree`
(`whole`, `every`) estimate it by all available answers. Plain samples are next steps of the prompt.

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
    """Drops the next steps of states at which the choice makes no difference.

    Sets weight 0 on `stream` if the values of a state's next steps, by `reward`, differ by at most `least`, or if only
    one is graded.
    """

    least: AtLeast0 = 0.0
    """Range of the next steps' values above which they are learnt from."""
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

    Makes the links "pairs" [P, 2] of (better, worse) next steps of one state. The worse step is the first that loses
    the answers below it: its value, by `reward`, is at most `floor`, and the value of the state before it is above; the
    better one is the state's best, the first of a tie. A losing step is in one pair, however many answers pass through
    it (in the paper once for each of them). The value of a state is that of the step before it; at the prompt, the mean
    over its answers. A step in no pair has weight 0 on `stream`. Ungraded answers do not count and are charged.
    """

    floor: float = 0.0
    """Value at or below which a step counts as lost; 0 with rewards of 0 and 1 means no right answer below it."""
    reward: str = "reward"
    """Column whose mean outcome below a step is the step's value."""
    stream: str = "rl"
    """Stream on which steps in no pair get weight 0."""
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
        best[state[order].flip(0)] = order.flip(0)  # the last one written is the first in order
        pit = counts & (value <= self.floor) & (before > self.floor)
        better, worse = best[state[pit]], pit.nonzero()[:, 0]
        some = value[better] > value[worse]
        index = torch.stack([better[some], worse[some]], 1)
        paired = torch.zeros(len(batch), dtype=torch.bool)
        paired[index.flatten()] = True
        return zero_weight(batch, ~paired, self.stream).link("pairs", index)


def _find_values(batch: Batch, ctx: Ctx, reward: str, stream: str) -> tuple[Batch, Tensor, Tensor]:
    """Returns (the batch with weight 0 for ungraded rows; values [B]; [B] the rows that count)."""
    value = batch.outcome(reward)
    batch = zero_ungraded(batch, value.isnan() & find_usable(batch), ctx, stream)
    return batch, value, find_carried(batch, stream) & ~value.isnan()
