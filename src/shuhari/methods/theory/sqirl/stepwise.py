"""SQIRL: finds a policy timestep by timestep, from episodes that are random from there on, in a table.

Source: Laidlaw, Zhu, Russell and Dragan, "The Effective Horizon Explains Deep RL Performance in Stochastic
Environments" (2024), algorithm 1, with means of a table for its regression and for its fitted Q-iteration; checked
against the authors' code (sb3/algorithms/sqirl.py). Left out: neural regression, discounting, unknown horizons.

Axes: `E` episodes, `L` of their steps, `S` states, `A` actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.tables import SURE, find_table
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform


@register("learner", "stepwise")
@dataclass
class Stepwise:
    """Finds a tabular policy step by step of the episode, from random play and a few rounds of fitted Q-iteration
    (SQIRL).

    For step i of an episode: plays `m` episodes, by the policy found for the earlier steps and uniformly random from
    there on. From their steps i on, Q^1(s, a) is the mean return to go; k - 1 times Q^j(s, a) is the mean of r + max
    Q^{j-1}(s', .), over the observed actions. The policy takes the best action by Q^k at step i, the first of a tie; in
    unobserved states it stays random.

    After the last step the policy is kept for one more draw, which is not learnt from; then it starts again with `grow`
    times as many episodes. The policy is a `tabular` one, whose states encode the step; a draw has whole episodes of
    `horizon` decisions, as with buffer.size = rollout.lanes * horizon: others are left out. Reports `stepwise/step`,
    the current step, and `stepwise/episodes`, m of this pass. Raises TypeError for a policy without a table, ValueError
    for longer episodes.
    """

    buffer: Buffer
    """Buffer that gives the episodes."""
    transforms: Mapping[str, Transform] = EMPTY
    """Name -> transform of the batches before they are learnt from."""
    k: Length = 1
    """Rounds of Q-iteration: the number of steps it looks ahead before it relies on random play."""
    m: Length = 16
    """Number of episodes for each step in the first pass."""
    horizon: Length = 10
    """Number of decisions in an episode; the task must have the same."""
    grow: Length = 2
    """Factor on the number of episodes from one pass to the next; 1 keeps it."""
    role: str = "policy"
    """Role of the tabular policy that is found."""
    name: str = "main"
    """Name of the learner in reports and events."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"step": 0, "pass": 0, "episodes": []})

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._table = find_table(models, self.role, "stepwise")

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Collects the drawn episodes; with m episodes of this step, finds its actions."""
        mine, i = self.state, self.state["step"]
        m = self.m * self.grow ** mine["pass"]
        if i == self.horizon:  # drawn by the finished policy
            self._table.zero_()
            mine |= {"step": 0, "pass": mine["pass"] + 1}
        else:
            mine["episodes"].append(torch.stack(read_episodes(batch, self.horizon)))
            if sum(x.shape[1] for x in mine["episodes"]) >= m:
                state, action, reward = torch.cat(mine["episodes"], 1)[:, :, i:]
                q = fit(state.long(), action.long(), reward, self._table.shape[0], self._table.shape[1], self.k)
                here = state[:, 0].long().unique()
                self._table[here, q[here].argmax(1)] = SURE
                mine |= {"step": i + 1, "episodes": []}
        return Updated(self.name, {"stepwise/step": float(i), "stepwise/episodes": float(m)}, batch["id"])


def read_episodes(batch: Batch, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (state, action, reward), [E, L] each and doubles, of the episodes of a batch, without those that a draw
    cuts. Raises ValueError if one has more than `horizon` decisions."""
    rows = batch.take(batch.decides)
    _, which, length = rows["episode"].unique(return_inverse=True, return_counts=True)
    if bool((length > horizon).any()):
        raise ValueError(f"stepwise: an episode of {int(length.max())} decisions: expected at most horizon = {horizon}")
    rows = rows.take((length == horizon)[which])
    order = rows["episode"].argsort(stable=True).view(-1, horizon)
    state, action, reward = rows["context"].double(), rows["action"].view(-1).double(), rows["reward"].sum(1).double()
    return state[order], action[order], reward[order]


def fit(state: Tensor, action: Tensor, reward: Tensor, S: int, A: int, k: int) -> Tensor:
    """Returns [S, A] Q^k of episodes [E, L]; -inf for unobserved actions."""
    at = (state * A + action).flatten()
    n = torch.bincount(at, minlength=S * A).double()

    def mean(y: Tensor) -> Tensor:
        return (torch.bincount(at, y.flatten(), S * A) / n).where(n > 0, -torch.inf).view(S, A)

    q = mean(reward.flip(1).cumsum(1).flip(1))
    for _ in range(k - 1):
        ahead = torch.zeros_like(reward)
        ahead[:, :-1] = q.amax(1)[state[:, 1:]]
        q = mean(reward + ahead)
    return q
