"""Learns from short right and long wrong answers at once, and from the remaining answers later and less often.

Source: "RoRecomp: Enhancing Reasoning Efficiency via Rollout Response Recomposition in Reinforcement Learning" (Li et
al. 2025, arXiv 2509.25958). Rewards are unchanged, and advantages are those of the whole groups. Left out: tool calls
as the length.

Axes: `B` rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Bounds, Count, check
from shuhari.buffers.groups import copy_rows
from shuhari.data import Number
from shuhari.kernel.join import cat
from shuhari.kernel.registry import register
from shuhari.ports import Buffer, Ctx
from shuhari.ports.declares import together
from shuhari.transforms.streams import find_carried


@register("buffer", "recomposed")
@dataclass
class Recomposed:
    """Learns from the shortest right and the longest wrong answers of a batch at once, and from the others later and
    less often (RoRecomp).

    From each draw of the buffer `of` it takes the shortest `share` of the right answers and the longest `share` of the
    wrong ones, over all its groups, rounded up; ties go to the first. The remaining answers are kept, with their
    log-probabilities and advantages; once a step, with probability `again`, the oldest `size` of them form a draw of
    their own, if there are enough, and are then dropped. A draw is an optimiser step, and remaining answers push in the
    opposite direction: small, frequent draws of them would outweigh the others.

    A length counts the decisions of an episode. An ungraded episode is neither right nor wrong; all rows of an episode
    stay together. Model outputs for the rows (needs) are not kept but recomputed. Raises ValueError for links between
    rows.
    """

    of: Buffer
    """Buffer of new groups, whose draws are cut."""
    share: Annotated[Number, Bounds(0, 1)] = 0.8
    """Share of the right and of the wrong answers that is learnt from at once, or a schedule; 1 is `of` alone."""
    again: Annotated[Number, Bounds(0, 1)] = 1.0
    """Probability in each step of a batch of remaining answers, or a schedule."""
    size: Count = 0
    """Number of remaining answers in a batch; 0: as many as the step's last batch had before it was cut."""
    oldest: AtLeast0 = 20
    """Largest number of steps that a remaining answer waits before it is dropped."""
    reward: str = "reward"
    """Reward column that decides whether an answer is right."""
    above: float = 0.0
    """Outcome above which an answer is right."""
    pick: Literal["length", "random"] = "length"
    """Order in which answers are taken: by "length", or at "random", a control with as many answers."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>`; rows of weight 0 on it do not count as answers."""
    name: str = "recomposed"
    """Name that seeds the random draws; give each buffer of a run its own."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"kept": None, "ages": []})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return self.of.wanted()

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        self._age()
        size = self.size
        for i, batch in enumerate(self.of.draw(ctx)):
            if batch.links:
                raise ValueError(f"recomposed: rows are linked ({', '.join(batch.links)}): expected single answers")
            episode, length, right = self._list_answers(batch)
            size = self.size or len(episode)
            order = length
            if self.pick == "random":
                order = torch.rand(len(length), generator=ctx.rng(self.name, i))
            share = ctx.at(self.share)
            first = [_first(episode[right], order[right], share), _first(episode[~right], -order[~right], share)]
            now = torch.isin(batch["episode"], torch.cat(first))
            later = torch.isin(batch["episode"], episode) & ~now
            if bool(later.any()):
                self._keep(copy_rows(batch.take(later)))
            if not bool((~now).any()):
                yield batch
            elif bool(now.any()):
                yield batch.take(now)
        kept = self.state["kept"]
        waiting = _in_order(kept["episode"]) if kept is not None else torch.zeros(0)
        if size and len(waiting) >= size and float(torch.rand((), generator=ctx.rng(self.name))) < ctx.at(self.again):
            drawn = torch.isin(kept["episode"], waiting[:size])
            self._leave(~drawn)
            yield kept.take(drawn)

    def _list_answers(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ([E] the graded episodes with weight, in order; [E] their lengths, decisions; [E] which are
        right)."""
        outcome = batch.outcome(self.reward)
        every, at = torch.unique(batch["episode"], return_inverse=True)
        length = torch.zeros(len(every)).index_add_(0, at, batch["mask"].sum(1).float())
        graded = find_carried(batch, self.stream) & ~outcome.isnan()
        right = torch.zeros(len(every), dtype=torch.bool)
        right[at[graded & (outcome > self.above)]] = True
        order = _in_order(at[graded])
        return every[order], length[order], right[order]

    def _age(self) -> None:
        """Counts a step: drops answers older than `oldest` steps."""
        self.state["ages"] = [age + 1 for age in self.state["ages"]]
        self._leave(torch.tensor(self.state["ages"]) <= self.oldest)

    def _keep(self, batch: Batch) -> None:
        kept = self.state["kept"]
        self.state["kept"] = batch if kept is None else cat([kept, batch])
        self.state["ages"] += [0] * len(batch)

    def _leave(self, rows: Tensor) -> None:
        """Keeps only these rows [B] of the kept answers."""
        kept = self.state["kept"]
        if kept is None or bool(rows.all()):
            return
        self.state["kept"] = copy_rows(kept.take(rows)) if bool(rows.any()) else None
        self.state["ages"] = [age for age, stays in zip(self.state["ages"], rows.tolist(), strict=True) if stays]


def _first(x: Tensor, by: Tensor, share: float) -> Tensor:
    """Returns the first share of x [E], sorted by a number each, rising."""
    return x[by.argsort(stable=True)[: math.ceil(share * len(x) - 1e-9)]]


def _in_order(x: Tensor) -> Tensor:
    """Returns each number of x once, in order of appearance."""
    return torch.tensor(list(dict.fromkeys(x.tolist())), dtype=torch.long)
