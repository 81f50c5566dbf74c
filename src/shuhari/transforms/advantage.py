"""Advantages of samples or turns: an outcome or a column, centred and scaled over a group or another unit.

Axes: `B` rows, `K` positions, `U` compared items: rows, or turns. Four settings give the family: centre x unit x scale
x eps. Statistics are over (group, role), at the ends of paths, without ungraded and failed episodes. In a tree the
outcome of an inner row is the mean over its graded leaves, so the same formula is node-level credit. No critic: see
`returns` for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, mean_by, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, weights_on, zero_ungraded
from shuhari.transforms.turns import Compared, add_rewards, find_rows, find_turns, number_turns

UNITS = ("group", "batch", "state")  # any other is the name of a column


@register("transform", "advantage")
@dataclass
class Advantage:
    """Group-relative advantages, as in GRPO and RLOO: outcomes centred and scaled, without a critic.

    Stamps column `into` [B, K]: (outcome - centre) / scale on every decision of the row, 0 elsewhere. `leave-one-out`
    is n / (n - 1) times the distance to the mean (Ahmadian et al. 2024, equation 10). Scale `group` is GRPO's (Shao et
    al. 2024, section 4.1.2); `batch` that of REINFORCE++ with a group baseline; `raw` that of LitePPO (Liu et al. 2025,
    arXiv 2508.08221); `none` is Dr. GRPO. ddof = 1 with eps = 1e-4 is what TRL computes; verl has ddof = 1 and 1e-6. A
    group of one has advantage 0 unless centre is `none`. With equal outcomes all centred advantages are 0 as well (the
    filter `drop_uniform_groups` drops such groups).

    Unit `state` compares the next steps of one state, rows with one parent in a tree, by their values, the mean outcome
    of the answers below each. With a `column` every deciding row counts in the statistics, also inner ones of chains
    and trees; raises ValueError if it differs within a row (`returns.level = "row"` gives one number per row). Level
    `turn` gives one number per turn, also for episodes in one row: from `column`, such as the `return` of
    `returns.level = "segment"`, or the turn's reward (no column, or a reward column). Every turn decided by the policy
    counts, if its row has weight on `stream`. Raises ValueError for rows without turns (those of controllers).

    With one `virtual` sample an all-wrong group has negative advantages (NGRPO: Nan et al. 2025, "NGRPO:
    Negative-enhanced Group Relative Policy Optimization"; its code has ddof = 1, eps = 1e-6). Raises ValueError for
    virtual samples with statistics of the batch.

    Rows with outcome NaN, or turns with NaN, get advantage 0 and weight 0 on `stream`, and the rows are charged as
    `ungraded`. Rows without weight on `stream` count in a group of rows, but in no other unit.
    """

    centre: Literal["mean", "leave-one-out", "none"] = "mean"
    """Baseline that is subtracted over the `unit`: its `mean` (GRPO), the mean of the others (`leave-one-out`, RLOO),
    or `none`."""
    unit: str = "group"
    """Samples that are compared: the `group` of one problem, the `batch`, the next steps of one `state` in a tree, or
    rows that share a whole number in the column of this name."""
    scale: Literal["group", "unit", "batch", "raw", "none"] = "group"
    """Standard deviation to divide by: over the `group` (GRPO), the `unit`, the `batch` of centred numbers, the batch
    of `raw` outcomes, or `none` (Dr. GRPO)."""
    eps: AtLeast0 = 1e-4
    """Number added to the standard deviation; TRL has 1e-4."""
    ddof: Count = 1
    """Degrees of freedom subtracted in the standard deviation; 1 is the unbiased one, 0 the population's."""
    reward: str = "reward"
    """Column whose outcome, its sum over the episode, is compared, such as `reward` or `reward/score`."""
    stream: str = "rl"
    """Stream that loses weight on ungraded rows; rows without weight on it do not count in turns or in units other than
    the group."""
    exclude: str = ""
    """Column that is above 0 on rows that get an advantage but count in no mean or deviation, such as demonstrations;
    "" excludes none."""
    column: str = ""
    """Column [B] or [B, K] that is compared instead of the outcome, such as `return`; "" uses the outcome of
    `reward`."""
    level: Literal["row", "turn"] = "row"
    """Unit that gets one number: each `row`, or each `turn` of it."""
    turns: Literal["pooled", "by-number"] = "pooled"
    """Turns that are compared: all of a unit (`pooled`), or first with first, second with second (`by-number`); for
    `level = "turn"`."""
    virtual: Count = 0
    """Number of virtual samples of outcome `best` in the statistics of every group (NGRPO has 1); 0 is off."""
    best: float = 1.0
    """Outcome of the virtual samples, in general the largest reward possible."""
    into: str = "advantage"
    """Column [B, K] that receives the advantages."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __post_init__(self) -> None:
        check(self)
        if self.level == "turn" and self.unit == "state":
            raise ValueError("advantage: unit is 'state', which compares rows, and level is 'turn': expected level = "
                             "'row'")  # fmt: skip
        if self.level == "row" and self.turns != "pooled":
            raise ValueError(f"advantage: turns is {self.turns!r}, which needs turns, and level is 'row': expected "
                             "level = 'turn'")  # fmt: skip
        if self.virtual and (self.unit != "group" or self.scale not in ("group", "unit", "none")):
            raise ValueError(
                "advantage: virtual samples are of a group: expected unit = 'group' and scale = 'group' or 'none', "
                f"not {self.unit!r} and {self.scale!r}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        unit = () if self.unit in UNITS else (self.unit,)
        return (self.column or self.reward, f"weight/{self.stream}", *((self.exclude,) if self.exclude else ()), *unit)

    @property
    def least_n(self) -> int:
        if self.unit != "group" or self.centre == "none" or self.virtual:
            return 1
        many = self.column or self.level == "turn"  # one sample may have several compared numbers
        return 1 if many and self.turns == "pooled" else 2

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        of = find_turns(batch) if self.level == "turn" else find_rows(batch)
        number, usable = self._numbers(batch, of), find_usable(batch)[of.row]
        missing = number.isnan() & usable
        r = number.masked_fill(~usable, torch.nan)  # failed episodes do not count
        excluded = (batch[self.exclude] > 0)[of.row] if self.exclude else torch.zeros_like(missing)
        counted = r.masked_fill(excluded, torch.nan)
        unit = self._index(batch, of, self.unit)
        if self.level == "turn" or self.unit != "group":
            counted = counted.masked_fill(~find_carried(batch, self.stream)[of.row], torch.nan)
        counts = self._find_counting(batch, of)
        mean, n = self._add_virtual(*_mean(counted, unit, counts), self.best)
        alone = self.unit == "group" and self.centre != "none" and len(n) and int(n.max()) == 1
        if alone and int(_mean(torch.zeros_like(r), unit, counts)[1].max()) == 1:  # not for lack of grades
            raise ValueError(
                f"advantage: centre = {self.centre!r} compares the {of.name if of.name == 'turn' else 'sample'}s of a "
                "group, and every group has one: set rollout.n to 2 or more, or unit = 'batch'"
            )
        a = r if self.centre == "none" else torch.where(n > 1, r - mean, 0.0 * r)
        if self.centre == "leave-one-out":
            a = torch.where(excluded, a, a * (n / (n - 1).clamp(min=1)))
        if self.scale != "none":
            spread = (a if self.scale == "batch" else r).masked_fill(excluded, torch.nan)
            a = a / (self._deviation(batch, of, spread, counts) + self.eps)
        batch = self._zero_ungraded(batch, of, missing, ctx)
        return batch.put({self.into: of.spread(a.nan_to_num(0.0))})

    def _numbers(self, batch: Batch, of: Compared) -> Tensor:
        """Returns the compared numbers [U]; with a column, NaN for a row without decisions."""
        if self.level == "turn":
            name = self.column or self.reward
            paid = name == self.reward or name.startswith("reward/")
            return (add_rewards(batch, of, batch[name]) if paid else of.read(batch[name], name)).float()
        if not self.column:
            return batch.outcome(self.reward)
        return of.read(batch[self.column], self.column).float().masked_fill(~batch.decides, torch.nan)

    def _index(self, batch: Batch, of: Compared, unit: str) -> Tensor:
        """Returns [U] the unit of each item, numbered from 0; with a column or turn numbers, within one role."""
        if unit in UNITS:
            index = units(batch, unit)[of.row]
        else:
            found = of.read_whole(batch[unit], unit)
            index = _pair(found, batch["role"][of.row])
        apart = self.turns == "by-number" and (unit != "batch" or self.unit == "batch")
        return _pair(index, number_turns(batch, of)) if apart else index

    def _find_counting(self, batch: Batch, of: Compared) -> Tensor:
        """Returns [U] bool: the items that statistics are over: a path's last row, or every row if each has its own
        number."""
        if self.column or self.level == "turn":
            return torch.ones(len(of.row), dtype=torch.bool)
        return batch.decides if self.unit == "state" else ends(batch)

    def _deviation(self, batch: Batch, of: Compared, x: Tensor, counts: Tensor) -> Tensor:
        """Returns [U] the standard deviation of x [U] over the unit of `scale`; 1 - eps if there are too few
        numbers."""
        unit = {"group": "group", "unit": self.unit}.get(self.scale, "batch")
        if self.level == "turn" or unit != "group":
            x = x.masked_fill(~find_carried(batch, self.stream)[of.row], torch.nan)
        index = self._index(batch, of, unit)
        mean, real = _mean(x, index, counts)
        mean, n = self._add_virtual(mean, real, self.best)
        variance, _ = self._add_virtual(_mean((x - mean) ** 2, index, counts)[0], real, (self.best - mean) ** 2)
        deviation = (variance * n / (n - self.ddof)).sqrt()
        return torch.where(n > self.ddof, deviation, 1.0 - self.eps)

    def _zero_ungraded(self, batch: Batch, of: Compared, missing: Tensor, ctx: Ctx) -> Batch:
        """Sets weight 0 where the number is missing; a row that loses itself or a turn is charged once, as
        `ungraded`."""
        if self.level == "row":
            return zero_ungraded(batch, missing, ctx, self.stream)
        lost = of.spread(missing.float()) > 0
        weight, carried = weights_on(batch, self.stream), lost.any(1) & find_carried(batch, self.stream)
        if not bool(carried.any()):
            return batch
        ctx.charge("ungraded", int(carried.sum()))
        return batch.put({f"weight/{self.stream}": weight.masked_fill(lost, 0.0)})

    def _add_virtual(self, mean: Tensor, n: Tensor, value: Tensor | float) -> tuple[Tensor, Tensor]:
        """Returns the mean [U] of n [U] numbers and the virtual samples of `value`, and their count."""
        if not self.virtual:
            return mean, n
        return (mean * n + self.virtual * value) / (n + self.virtual), n + self.virtual


def _mean(x: Tensor, index: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ([U] mean of x [U] over the counted items of the same `index`, [U] their number); NaN does not count."""
    mean, n = mean_by(x.masked_fill(~counts, torch.nan), index, int(index.max()) + 1 if len(index) else 0)
    return mean[index], n[index]


def _pair(a: Tensor, b: Tensor) -> Tensor:
    """Returns [U] the number of each pair of integers, from 0."""
    (_, i), (found, j) = (torch.unique(x, return_inverse=True) for x in (a, b))
    return torch.unique(i * len(found) + j, return_inverse=True)[1]
