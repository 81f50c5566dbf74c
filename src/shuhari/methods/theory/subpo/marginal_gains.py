"""Marginal gains of a set function of the visited states, as rewards of single steps.

Source: Prajapat, Mutny, Zeilinger and Krause, "Submodular Reinforcement Learning" (2023), algorithm 1 (SubPO). The set
function is given by numbers c of each state, a column of the batch:

    cover        F = sum over m of max over the visited states of c_m     (weighted coverage, facility location)
    capped       F = sum over m of min(cap, sum over the visits of c_m)   (items that are worth less when repeated)
    information  F = 1/2 log det(1 + sum over the visits of c c^T / noise^2)   (information gain, linear features c)

Left out: set functions that are not of these forms, and gains with respect to the first state of an episode.

Axes: `B` rows, `L` decisions of an episode, `M` numbers of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Positive, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

SetFunction = Literal["cover", "capped", "information"]


@register("transform", "marginal_gains")
@dataclass
class MarginalGains:
    """Rewards each step by how much its state adds to a submodular set function of the states visited so far (SubPO).

    A transform of `[collect]`. Replaces `reward` [B, K] by F(visited and new) - F(visited), on the first position of
    the row; `column` [B, M] has what the environment tells of the state that the decision led to, of numbers at least 0
    (of `information` any). Rewards of an episode sum up to F of all its states, so reward-to-go leaves out what was
    gained before a decision. An episode that goes on in the next draw is continued: its columns are kept in `state`.

    Charges `repeats`: decisions that gained less than their state alone is worth. Raises ValueError for a draw from a
    buffer, for a column that is not [B, M], and for a number that is NaN, or below 0 if the form does not allow it.
    """

    column: str = "covers"
    """Column [B, M] with the numbers of the state that a decision led to."""
    form: SetFunction = "cover"
    """Set function: `cover` (the largest number of each kind so far, summed), `capped` (the sum of each kind up to
    `cap`) or `information` (half the log-determinant of the numbers as features)."""
    cap: Positive = 1.0
    """Largest sum of a kind that counts, in units of the column. Only used by `capped`."""
    noise: Positive = 1.0
    """Standard deviation of a measurement, in units of the column. Only used by `information`."""
    additive: bool = False
    """Reward each state by F of it alone, as if none had been visited (the paper's modular baseline)."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"episode": None, "numbers": None})
    stamps = ("reward",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if batch.rows is not None:
            raise ValueError("marginal_gains: these rows are drawn from a buffer: put it under [collect], not "
                             "[transform]")  # fmt: skip
        rows = batch.decides.nonzero().squeeze(1)
        episode, numbers = batch["episode"][rows], self._read(batch[self.column][rows])
        gain, alone = numbers.new_zeros(len(batch)), add_values(numbers[:, None], self)[:, 0]
        if self.additive:
            gain[rows] = alone
        else:
            old, before = self._recall(numbers)
            for e in episode.unique().tolist():
                here, earlier = episode == e, before[old == e]
                values = add_values(torch.cat([earlier, numbers[here]]), self)
                gain[rows[here]] = values.diff(prepend=values.new_zeros(1))[len(earlier) :]
            self._keep(batch, torch.cat([old, episode]), torch.cat([before, numbers]))
            ctx.charge("repeats", int((gain[rows] < alone - 1e-9).sum()))
        reward = torch.zeros_like(batch["reward"])
        reward[:, 0] = gain.to(reward.dtype)
        return batch.put({"reward": reward})

    def _read(self, numbers: Tensor) -> Tensor:
        if numbers.dim() != 2:
            shape = ["B", *numbers.shape[1:]]
            raise ValueError(f"marginal_gains: the column {self.column!r} is {shape}: expected [B, M], the numbers of "
                             "each state")  # fmt: skip
        least = float(numbers.min()) if numbers.numel() else 0.0
        if not least >= (-torch.inf if self.form == "information" else 0.0):  # also true for NaN
            raise ValueError(f"marginal_gains: a number of the column {self.column!r} is {least:g}: expected numbers "
                             "at least 0, or form = 'information'")  # fmt: skip
        return numbers.double()

    def _recall(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ([n] the episodes, [n, M] the numbers) of earlier draws whose episodes go on."""
        mine = self.state
        if mine["episode"] is None:
            return torch.zeros(0, dtype=torch.long), like[:0]
        return mine["episode"], mine["numbers"]

    def _keep(self, batch: Batch, episode: Tensor, numbers: Tensor) -> None:
        """Keeps the numbers of episodes that the batch has not ended: its last row of each closes it without an end."""
        last = {int(e): i for i, e in enumerate(batch["episode"].tolist())}
        going = [e for e, i in last.items() if float(batch["cont"].view(len(batch), -1)[i, 0]) > 0]
        kept = torch.isin(episode, torch.tensor(going, dtype=torch.long))
        self.state |= {"episode": episode[kept].clone(), "numbers": numbers[kept].clone()}


def add_values(numbers: Tensor, how: MarginalGains) -> Tensor:
    """Returns F of each prefix of visited states: numbers [L, M] -> [L], or [N, L, M] -> [N, L]."""
    if how.form == "cover":
        return numbers.cummax(-2).values.sum(-1)
    if how.form == "capped":
        return numbers.cumsum(-2).clamp(max=how.cap).sum(-1)
    outer = numbers[..., :, None] * numbers[..., None, :] / how.noise**2
    gram = outer.cumsum(-3) + torch.eye(numbers.shape[-1], dtype=numbers.dtype)
    return torch.logdet(gram) / 2
