"""An actor of multiplicative weights on an optimistic critic, both made anew only if the critic is out of date.

Source: Tan, Fan and Wei, "Actor-Critics Can Achieve Optimal Sample Efficiency" (ICML 2025), NORA, here in a table: the
optimism of LSVI-UCB, and the determinant of the counts as the sign that the critic is out of date. Left out: general
classes of functions, and data that are there before.

Axes: `H` steps, `P` places of a step, `A` actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Bounds, Length, Positive, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.counting import count_new, make_counts
from shuhari.learners.tables import find_table, report_regret
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform


@register("learner", "rare_actor")
@dataclass
class RareActor:
    """An actor-critic in a table: the actor takes a step of multiplicative weights for each draw, and both begin anew
    if the counts have grown enough (NORA).

    Critic f, for each step h from the last to the first: the mean of r + V_h+1(s') over N visits + bonus / sqrt(N),
    clipped to [0, H - h], as rewards lie in [0, 1]; of what was never visited H - h if there is a bonus, else 0. V is
    its largest value (`target` "best") or the mean under the actor ("actor"). It is fitted anew, and the actor is
    uniform again, once the determinant of some step's counts (the product of N + 1) is `growth` times as large as at
    the last fit. After each draw the actor is multiplied by
    exp(rate f). State h * P + s is place s at step h, and H = `horizon`.

    Reports `actor/switches`, the number of fits so far, `actor/greedy`, the actor's mean probability of the critic's
    best action over visited places, and with the column `regret` its mean and `actor/regret_sum`. Raises TypeError for
    a policy without a table; ValueError for states that do not encode the step, and rewards outside [0, 1].
    """

    buffer: Buffer
    """Buffer that decisions are drawn from; `[buffer]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    horizon: Length = 10
    """Number of steps in an episode; the states must encode the step."""
    rate: Positive = 10.0
    """Step size of the actor per unit of value (the paper's eta), above 0."""
    bonus: AtLeast0 = 1.0
    """Scale of the uncertainty bonus; 0 has no optimism."""
    growth: Annotated[float, Bounds(1)] = 2.0
    """Factor by which the determinant of some step's counts must grow before the critic is fitted anew; 1 fits it at
    each draw."""
    resets: bool = True
    """Make the actor uniform when the critic is fitted anew."""
    target: Literal["best", "actor"] = "best"
    """Value of the next place that the critic is fitted to: the `best` action's, or the mean of the `actor`."""
    role: str = "policy"
    """Role of the tabular policy that is the actor."""
    name: str = "main"
    """Name of the learner in its reports and events."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._table = find_table(models, self.role, "rare_actor")
        if not self.state:
            mine = make_counts(self._table, self.horizon, "rare_actor")
            critic = torch.zeros_like(mine["visits"])
            logdet = torch.zeros(self.horizon, dtype=torch.double)
            self.state = {**mine, "critic": critic, "logdet": logdet, "switches": 0, "regret": 0.0}

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn rows, fits the critic anew if it is due, and moves the actor."""
        mine, rows = self.state, count_new(batch, self.state, "rare_actor")
        H, P, A = mine["visits"].shape
        actor = self._table[: H * P]
        logdet = (mine["visits"] + 1).log().sum((1, 2))
        if not mine["switches"] or bool((logdet >= mine["logdet"] + math.log(self.growth)).any()):
            policy = actor.double().softmax(1).view(H, P, A) if self.target == "actor" else None
            mine["critic"] = fit_critic(mine, self.bonus, policy)
            mine |= {"logdet": logdet, "switches": mine["switches"] + 1}
            if self.resets:
                self._table.zero_()
        actor += (self.rate * mine["critic"]).flatten(0, 1).to(actor.dtype)
        actor -= actor.amax(1, keepdim=True)  # the same policy; logits stay bounded above
        seen = (mine["visits"].sum(2) > 0).flatten()
        best = mine["critic"].flatten(0, 1).argmax(1, keepdim=True)
        greedy = actor.softmax(1).gather(1, best)[seen]
        info = {
            "actor/switches": float(mine["switches"]),
            "actor/greedy": float(greedy.mean()) if len(greedy) else 0.0,
            **report_regret(rows, mine, "actor"),
        }
        return Updated(self.name, info, batch["id"])


def fit_critic(counts: Mapping[str, Any], bonus: float, policy: Tensor | None) -> Tensor:
    """Returns f [H, P, A] by the counts (`make_counts`). policy [H, P, A]: the actor whose mean is the next place's
    value; None takes the best action's."""
    new, n = counts["visits"] == 0, counts["visits"].clamp(min=1)
    H, P = n.shape[:2]
    f, value = torch.zeros_like(n), n.new_zeros(P)
    for h in reversed(range(H)):
        mean = (counts["earned"][h] + counts["after"][h] @ value) / n[h]
        f[h] = (mean + bonus / n[h].sqrt()).clamp(0, H - h)
        f[h][new[h]] = float(H - h) if bonus else 0.0
        value = f[h].amax(1) if policy is None else (policy[h] * f[h]).sum(1)
    return f
