"""Advantages of whole samples: the outcome of a row's path, centred and scaled over its group or the batch.

Axes: `B` rows, `K` positions. Four settings give the family: centre x unit x scale x eps. Statistics are those of
(group, role), over the ends of paths; ungraded and broken episodes do not count. In a tree the outcome of an inner row
is the mean over its graded leaves, so the same formula is node-level credit. No critic: see `returns` for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import group_mean
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, zero_ungraded


@register("transform", "advantage")
@dataclass
class Advantage:
    """Stamps column `into` [B, K]: (outcome - centre) / scale on every decision of the row, 0 elsewhere.

    centre: `mean` (GRPO), `leave-one-out` (RLOO: the mean of the *others*, so n / (n - 1) times the distance to the
    mean; Ahmadian et al. 2024, equation 10) or `none`, of the row's `unit`: `group` or `batch`. scale: the standard
    deviation over the `group` (GRPO, Shao et al. 2024, section 4.1.2), over the `batch` of the centred numbers
    (REINFORCE++ with a group baseline), over the batch of the outcomes as they are, `raw` (LitePPO, Liu et al. 2025,
    arXiv 2508.08221), or `none` (Dr. GRPO), plus `eps`. ddof = 1 is the unbiased deviation, and with
    eps = 1e-4 what TRL computes; verl has ddof = 1 and 1e-6. A group of one has nothing to compare with: its advantage
    is 0 unless centre is `none`. With equal outcomes all centred advantages are 0 as well (the filter `mixed` drops
    such groups).

    exclude: the name of a column; rows where it is not 0 (demonstrations) get an advantage by the same centre and
    scale, and do not count in either.

    column: the name of a column [B] or [B, K], to be taken in the place of the outcome: the `return`, say, of rows that
    are turns of an episode. Every row that decides then counts in the statistics, inner ones of chains and trees too.
    ValueError where it differs within a row (`returns.level = "row"` gives one number a row).

    virtual: so many samples of outcome `best` count in the centre and the scale of every group, beside those that there
    are; they are not learnt from. With 1, a group that is all wrong has negative advantages (NGRPO: Nan et al. 2025,
    "NGRPO: Negative-enhanced Group Relative Policy Optimization"; its code has ddof = 1, eps = 1e-6). Statistics of the
    batch know none: ValueError.

    Rows whose outcome is NaN get advantage 0 and weight 0 on `stream`, and are charged as `ungraded`.
    """

    centre: Literal["mean", "leave-one-out", "none"] = "mean"
    unit: Literal["group", "batch"] = "group"
    scale: Literal["group", "batch", "raw", "none"] = "group"
    eps: AtLeast0 = 1e-4
    ddof: Count = 1
    reward: str = "reward"
    stream: str = "rl"
    exclude: str = ""
    column: str = ""
    virtual: Count = 0
    best: float = 1.0
    into: str = "advantage"
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __post_init__(self) -> None:
        check(self)
        if self.virtual and (self.unit != "group" or self.scale not in ("group", "none")):
            raise ValueError(
                "advantage: virtual samples are of a group: expected unit = 'group' and scale = 'group' or 'none', "
                f"not {self.unit!r} and {self.scale!r}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column or self.reward, f"weight/{self.stream}", *((self.exclude,) if self.exclude else ()))

    @property
    def least_n(self) -> int:
        return 2 if self.unit == "group" and self.centre != "none" and not (self.virtual or self.column) else 1

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome = self._column(batch) if self.column else batch.outcome(self.reward)
        missing = outcome.isnan() & find_usable(batch)
        r = outcome.masked_fill(~find_usable(batch), torch.nan)  # what a broken episode earned says nothing
        excluded = batch[self.exclude] > 0 if self.exclude else torch.zeros_like(missing)
        counted = r.masked_fill(excluded, torch.nan)
        if self.unit == "batch":
            counted = counted.masked_fill(~find_carried(batch, self.stream), torch.nan)
        mean, n = self._add_virtual(*self._mean(batch, counted, self.unit), self.best)
        alone = self.unit == "group" and self.centre != "none" and len(n) and int(n.max()) == 1
        if alone and int(self._mean(batch, torch.zeros_like(r), "group")[1].max()) == 1:  # not for want of grades
            raise ValueError(
                f"advantage: centre = {self.centre!r} compares the samples of a group, and every group has one: "
                "set rollout.n to 2 or more, or unit = 'batch'"
            )
        a = r if self.centre == "none" else torch.where(n > 1, r - mean, 0.0 * r)
        if self.centre == "leave-one-out":
            a = torch.where(excluded, a, a * (n / (n - 1).clamp(min=1)))
        if self.scale != "none":
            spread = (a if self.scale == "batch" else r).masked_fill(excluded, torch.nan)
            a = a / (self._deviation(batch, spread) + self.eps)
        batch = zero_ungraded(batch, missing, ctx, self.stream)
        return batch.put({self.into: a.nan_to_num(0.0)[:, None] * batch["mask"]})

    def _mean(self, batch: Batch, x: Tensor, unit: str) -> tuple[Tensor, Tensor]:
        return group_mean(batch, x, unit, leaves=not self.column)

    def _column(self, batch: Batch) -> Tensor:
        """[B] the number of each row; NaN where it decides nothing."""
        x, mask = batch[self.column], batch["mask"]
        if x.dim() == 1:
            return x.masked_fill(~batch.decides, torch.nan)
        first = x.gather(1, mask.int().argmax(1)[:, None])
        if bool(((x != first) & mask & ~(x.isnan() & first.isnan())).any()):
            raise ValueError(f"advantage: column {self.column!r} differs within a row: expected one number a row")
        return first[:, 0].masked_fill(~batch.decides, torch.nan)

    def _deviation(self, batch: Batch, x: Tensor) -> Tensor:
        """[B] the standard deviation of x [B] over the unit of `scale`; 1 - eps where there are too few to tell."""
        unit = "group" if self.scale == "group" else "batch"
        if unit == "batch":
            x = x.masked_fill(~find_carried(batch, self.stream), torch.nan)
        mean, real = self._mean(batch, x, unit)
        mean, n = self._add_virtual(mean, real, self.best)
        variance, _ = self._add_virtual(self._mean(batch, (x - mean) ** 2, unit)[0], real, (self.best - mean) ** 2)
        deviation = (variance * n / (n - self.ddof)).sqrt()
        return torch.where(n > self.ddof, deviation, 1.0 - self.eps)

    def _add_virtual(self, mean: Tensor, n: Tensor, value: Tensor | float) -> tuple[Tensor, Tensor]:
        """The mean [B] of n [B] numbers and as many of `value` as there are virtual samples, and how many these are."""
        if not self.virtual:
            return mean, n
        return (mean * n + self.virtual * value) / (n + self.virtual), n + self.virtual
