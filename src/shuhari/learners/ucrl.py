"""UCRL2 and its variants for changing environments: a learner that counts and plans, without gradients.

Sources: Jaksch, Ortner and Auer, "Near-optimal Regret Bounds for Reinforcement Learning" (JMLR 2010), figure 1; the
window of Gajane, Ortner and Auer, "A Sliding-Window Algorithm for Markov Decision Processes with Arbitrarily Changing
Rewards and Transitions" (2018); the restarts of Alami, Mahfoud and Moulines (`learners.change_points`).

It plans, and tests for a change, between two draws of its buffer: with draws of one decision it is the algorithm, with
longer ones a plan lasts up to one draw longer. Left out: several lanes in different environments, and discounting.

Axes: `B` rows, `S` states, `A` actions, `W` transitions of the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Positive, ProperShare, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.change_points import has_changed
from shuhari.learners.tables import SURE, find_table, report_regret, sum_rewards
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform
from shuhari.tasks.worlds.average_reward import extended_value_iteration


@register("learner", "ucrl")
@dataclass
class Ucrl:
    """UCRL2: counts transitions and plans by optimism in a tabular environment without episodes; optionally it forgets,
    for environments that change.

    Counts transitions and rewards in [0, 1], and writes into a `tabular` policy the optimal actions of the best
    environment within the confidence bounds: L1 distances sqrt(14 S log(2 A t / delta) / N) of transitions and sqrt(7
    log(2 S A t / delta) / (2 N)) of rewards, N visits of a state and action, t decisions, both times `scale`. It plans
    again once some state and action has been visited as often since the last plan as before it. `has_changed` finds
    changes in the next states after a state and action. The end of an episode counts as a transition to the last
    observation.

    Reports `ucrl/plans` and `ucrl/restarts` so far, and if the environment has the column `regret` its mean and, as
    `ucrl/regret_sum`, its sum so far. Raises TypeError for a policy without a table, ValueError for rewards outside [0,
    1].
    """

    buffer: Buffer
    """Buffer that decisions are drawn from; `[buffer]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    restarts: Literal["never", "all", "one"] = "never"
    """Counts that are reset if next states have changed: none (`never`), `all`, or those of the `one` state and
    action."""
    rate: ProperShare = 0.05
    """False-alarm rate of the change test, in (0, 1); smaller restarts less often. Only used with restarts."""
    window: Count = 0
    """Number of last decisions that count (sliding window); 0 counts all."""
    delta: ProperShare = 0.05
    """Probability that the confidence bounds fail, in (0, 1); smaller explores more."""
    scale: Positive = 1.0
    """Factor on the confidence bounds; 1 is the papers', less explores less."""
    role: str = "policy"
    """Role of the tabular policy that gets the plan."""
    name: str = "main"
    """Name of the learner in its reports and events; `[learner.<name>]` in a recipe."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._table = find_table(models, self.role, "ucrl")
        S, A = self._table.shape
        if not self.state:
            pairs = ("earned", "before", "since")  # rewards; visits before the last plan, and since
            self.state = {
                **{name: torch.zeros(S, A, dtype=torch.double) for name in pairs},
                "visits": torch.zeros(S, A, S, dtype=torch.double), "streams": {}, "value": [0.0] * S,
                "recent": torch.zeros(0, 3, dtype=torch.long), "rewards": torch.zeros(0, dtype=torch.double),
                "t": 0, "plans": 0, "restarts": 0, "regret": 0.0,
            }  # fmt: skip

    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn rows, forgets what has changed or is too old, and plans if due."""
        mine, rows = self.state, batch.take(batch.decides)
        taken = torch.stack([rows["context"], rows["action"].view(-1).long(), rows.successors()["context"]], 1)
        reward = sum_rewards(rows, "ucrl")
        self._count(taken, reward, 1.0)
        mine["t"] += len(rows)
        mine["since"].index_put_((taken[:, 0], taken[:, 1]), torch.ones(len(rows), dtype=torch.double), accumulate=True)
        if self.window:
            self._slide(taken, reward)
        due = self.restarts != "never" and self._restart(taken)
        if due or not mine["plans"] or bool((mine["since"] >= mine["before"].clamp(min=1)).any()):
            self._plan()
        info = {"ucrl/plans": float(mine["plans"]), "ucrl/restarts": float(mine["restarts"])}
        info |= report_regret(rows, mine, "ucrl")
        return Updated(self.name, info, batch["id"])

    def _count(self, taken: Tensor, reward: Tensor, sign: float) -> None:
        s, a, after = taken.T
        one = torch.full((len(s),), sign, dtype=torch.double)
        self.state["visits"].index_put_((s, a, after), one, accumulate=True)
        self.state["earned"].index_put_((s, a), sign * reward, accumulate=True)

    def _slide(self, taken: Tensor, reward: Tensor) -> None:
        """Removes the rows that have left the window from the counts."""
        mine = self.state
        recent, rewards = torch.cat([mine["recent"], taken]), torch.cat([mine["rewards"], reward])
        old = max(0, len(recent) - self.window)
        self._count(recent[:old], rewards[:old], -1.0)
        mine["recent"], mine["rewards"] = recent[old:].clone(), rewards[old:].clone()

    def _restart(self, taken: Tensor) -> bool:
        """Adds the next states to their streams and resets the counts if one has changed; returns whether any did."""
        mine, streams, changed = self.state, self.state["streams"], False
        for s, a in dict.fromkeys(map(tuple, taken[:, :2].tolist())):
            new = taken[(taken[:, 0] == s) & (taken[:, 1] == a), 2]
            stream = streams[f"{s}.{a}"] = torch.cat([streams.get(f"{s}.{a}", new[:0]), new])
            if not has_changed(stream.numpy(), len(self._table), self.rate):
                continue
            changed = True
            mine["restarts"] += 1
            at: Any = (s, a) if self.restarts == "one" else slice(None)
            for name in ("visits", "earned", "before", "since"):
                mine[name][at] = 0.0
            mine["recent"], mine["rewards"] = mine["recent"][:0], mine["rewards"][:0]
            if self.restarts == "all":
                streams.clear()
                break
            del streams[f"{s}.{a}"]
        return changed

    @torch.no_grad()
    def _plan(self) -> None:
        """Writes the policy of the best plausible environment (figure 1, steps 2 to 5)."""
        mine, (S, A) = self.state, self._table.shape
        visits, n = mine["visits"].numpy(), mine["visits"].sum(2)
        N, t = n.clamp(min=1).numpy(), max(1, mine["t"])
        p = np.where(n.numpy()[..., None] > 0, visits / N[..., None], 1.0 / S)
        reward = mine["earned"].numpy() / N + self.scale * np.sqrt(7 * math.log(2 * S * A * t / self.delta) / (2 * N))
        distance = self.scale * np.sqrt(14 * S * math.log(2 * A * t / self.delta) / N)
        distance = np.where(n.numpy() > 0, distance, 2.0)  # unvisited pairs: any transition is possible
        start = np.array(mine["value"])
        _, act, value = extended_value_iteration(np.minimum(reward, 1.0), p, distance, 1 / math.sqrt(t), start)
        self._table.zero_()
        self._table[torch.arange(S), torch.from_numpy(act)] = SURE
        mine["value"], mine["plans"] = value.tolist(), mine["plans"] + 1
        mine["before"], mine["since"] = n, torch.zeros_like(n)
