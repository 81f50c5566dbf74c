"""Filters: set the weight of uninformative rows to 0. Rows are never deleted; the buffer requests more groups instead.

Axes: `B` rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shuhari.batch import STATUS, Batch
from shuhari.bounds import AtLeast0, check
from shuhari.data import Status, code
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, spread_by, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, weights_on, zero_ungraded, zero_weight


@register("transform", "drop_uniform_groups")
@dataclass
class Mixed:
    """DAPO's dynamic sampling: groups with equal outcomes are not learnt from (Yu et al. 2025, equation 11).

    They get weight 0 on `stream`, as do groups with fewer than two graded samples. Put it before an `advantage` that
    scales over the batch: dropped groups then do not count there. The buffer `fresh` counts the remaining groups and
    requests the rest.
    """

    reward: str = "reward"
    """Column whose outcomes are compared, such as `reward` or `reward/score`."""
    tolerance: AtLeast0 = 1e-6
    """Largest range of outcomes that counts as equal."""
    stream: str = "rl"
    """Stream on which such groups get weight 0; loss terms of that `stream` then skip them."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ()
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome = batch.outcome(self.reward)
        batch = zero_ungraded(batch, outcome.isnan() & find_usable(batch), ctx, self.stream)
        unit = units(batch, "group")
        n = int(unit.max()) + 1 if len(unit) else 0
        counts = ends(batch) & find_carried(batch, self.stream) & ~outcome.isnan()
        alike = ~(spread_by(outcome[counts], unit[counts], n) > self.tolerance)
        return zero_weight(batch, alike[unit], self.stream)


@register("transform", "drop_truncated")
@dataclass
class Finished:
    """DAPO's overlong filtering: weight 0 on `stream` for rows of episodes that did not end by themselves (section
    3.4).

    An answer cut at its length limit is then not learnt from, but its reward counts in its group's statistics, as in
    TRL's `mask_truncated_completions`; it does not count if `advantage` compares the `batch` and this comes before it.
    """

    stream: str = "rl"
    """Stream on which cut episodes get weight 0; loss terms of that `stream` then skip them."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return zero_weight(batch, batch["status"] != STATUS[Status.FINISHED], self.stream)


@register("transform", "latest_only")
@dataclass
class Latest:
    """Learns only from tokens that a partial rollout wrote under its newest weights; earlier ones count as context.

    Sums over the row exclude earlier tokens too. For partial rollouts, whose groups stay in flight while the weights
    change (`staleness` of the engine): the resumed beginning is frozen (Kimi k1.5, arXiv 2501.12599, section 2.6.2).
    Put it first.
    """

    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ()

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        version = batch["version"].masked_fill(~batch["mask"], -1)
        return batch.put({"mask": batch["mask"] & (version == version.amax(1, keepdim=True))})


@register("transform", "keep_matching")
@dataclass
class Only:
    """Keeps a stream's weight only on decisions whose column has a given value; the others get weight 0.

    Raises ValueError for a text value with a numeric column.
    """

    column: str
    """Column [B] or [B, K] that is compared, such as `role`, `task` or `demo`."""
    equals: float | str = 1.0
    """Value that is kept: a number, or a name if the column holds names (`role`, `task`)."""
    stream: str = "rl"
    """Stream that is written, which loss terms name as their `stream`."""
    of: str = ""
    """Stream whose weights the written one starts from, so that one can be split in two; "" is the stream itself."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (str(self.equals),) if self.column == "role" else ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.column, f"weight/{self.of or self.stream}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",) if self.of else ()

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        x, wanted = batch[self.column], code(self.equals) if isinstance(self.equals, str) else self.equals
        if isinstance(self.equals, str) and x.dtype != torch.long:
            raise ValueError(f"only: equals is the text {self.equals!r}, and the column {self.column!r} is of numbers")
        same = x == wanted
        same = same if same.dim() == 2 else same[:, None]
        return batch.put({f"weight/{self.stream}": weights_on(batch, self.of or self.stream) * same})
