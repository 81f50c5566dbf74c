"""LSVI-UCB, least-squares value iteration with a bonus, and its pessimistic variant: a learner that plans in features.

Sources: Jin, Yang, Wang and Jordan, "Provably Efficient Reinforcement Learning with Linear Function Approximation"
(COLT 2020), algorithm 1; with a negative bonus Jin, Yang and Wang, "Is Pessimism Provably Efficient for Offline RL?"
(ICML 2021), algorithm 2; the rare planning of Wang, Zhou and Gu, "Provably Efficient Reinforcement Learning with Linear
Function Approximation Under Adaptivity Constraints" (2021), LSVI-UCB-RareSwitch.

States are those of a table, so sums over transitions are sums over counts; only the counts and the ids of counted rows
are kept. Left out: observations without a table, discounting.

Axes: `B` rows, `H` steps, `P` places of a step, `A` actions, `d` features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Length, Positive, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.counting import count_new, make_counts
from shuhari.learners.tables import SURE, find_table, report_regret
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform, ability


@register("learner", "linear")
@dataclass
class Linear:
    """LSVI-UCB: least-squares value iteration with an exploration bonus on linear features; with a negative bonus, its
    pessimistic variant for offline data.

    For each step h, from the last to the first: Lambda = sum phi phi^T + ridge * 1 and w = Lambda^-1 sum phi (r +
    V_h+1(s')) over all decisions of that step so far, and Q = phi^T w + bonus * sqrt(phi^T Lambda^-1 phi), clipped to
    [0, H - h], as rewards lie in [0, 1] (the LSVI-UCB paper has H for all steps). A decision counts once, however often
    it is drawn. The policy, a `tabular` one, takes the best action, the first one of a tie.

    State h * P + s is place s at step h, and H = `horizon`. phi: the environment's attribute `features`, [all states,
    A, d], of norm at most 1; without it, one feature for each place and action of a step. On recorded data a plan uses
    what was drawn so far: all of it after an epoch.

    Reports `linear/plans` so far, and if the environment has the column `regret` its mean and, as `linear/regret_sum`,
    its sum so far. Raises TypeError for a policy without a table; ValueError for states that do not encode the step,
    features of another shape or larger norm, and rewards outside [0, 1].
    """

    buffer: Buffer
    """Buffer that decisions are drawn from; `[buffer]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    horizon: Length = 10
    """Number of steps in an episode (the papers' H); the states must encode the step."""
    bonus: Annotated[float, Bounds()] = 1.0
    """Scale of the uncertainty bonus (the papers' beta): above 0 explores, below 0 is pessimistic, for recorded data; 0
    is off."""
    ridge: Positive = 1.0
    """Regularisation of the least squares (the papers' lambda), above 0."""
    growth: Annotated[float, Bounds(1)] = 1.0
    """Factor by which the determinant of some step's Gram matrix must grow before it plans again (eta of Wang et al.);
    1 plans at each draw."""
    role: str = "policy"
    """Role of the tabular policy that gets the plan."""
    name: str = "main"
    """Name of the learner in its reports and events; `[learner.<name>]` in a recipe."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        self._phi: Tensor | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._table = find_table(models, self.role, "linear")
        if not self.state:
            self.state = make_counts(self._table, self.horizon, "linear")
            self.state |= {"logdet": torch.zeros(self.horizon, dtype=torch.double), "plans": 0, "regret": 0.0}

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn rows, and plans if due."""
        mine, rows = self.state, count_new(batch, self.state, "linear")
        phi = self._phi = self._find_features(ctx) if self._phi is None else self._phi
        gram = torch.einsum("hid,hi,hie->hde", phi, mine["visits"].flatten(1), phi)
        gram += self.ridge * torch.eye(phi.shape[2], dtype=torch.double)
        logdet = torch.logdet(gram)
        if not mine["plans"] or bool((logdet >= mine["logdet"] + math.log(self.growth)).any()):
            q = plan(phi, torch.linalg.inv(gram), mine["earned"], mine["after"], self.bonus)
            self._table.zero_()
            self._table[torch.arange(q.shape[0] * q.shape[1]), q.flatten(0, 1).argmax(1)] = SURE
            mine |= {"logdet": logdet, "plans": mine["plans"] + 1}
        info = {"linear/plans": float(mine["plans"]), **report_regret(rows, mine, "linear")}
        return Updated(self.name, info, batch["id"])

    def _find_features(self, ctx: Ctx) -> Tensor:
        """Returns phi [H, P A, d]."""
        H, P, A = self.state["visits"].shape
        make = ability(ctx.task, "make")
        told = None
        if make is not None:
            with closing(make()) as env:
                if env.has_wrapper_attr("features"):
                    told = torch.from_numpy(np.array(env.get_wrapper_attr("features"), np.float64))
        if told is None:
            return torch.eye(P * A, dtype=torch.double).expand(H, -1, -1)
        if told.ndim != 3 or told.shape[:2] != self._table.shape:
            raise ValueError(f"linear: features {[*told.shape]}: expected {[*self._table.shape]} and a last axis "
                             "of features")  # fmt: skip
        if not (norm := float(told.norm(dim=2).max())) <= 1 + 1e-6:  # also false for NaN
            raise ValueError(f"linear: the largest norm of the features is {norm:g}: expected at most 1")
        return told[: H * P].reshape(H, P * A, -1)


def plan(phi: Tensor, inverse: Tensor, earned: Tensor, after: Tensor, bonus: float) -> Tensor:
    """Returns Q [H, P, A] (algorithm 1, lines 3 to 9). phi: [H, P A, d]; inverse: Lambda^-1 [H, d, d]; `earned` [H, P,
    A]: sums of rewards; `after` [H, P, A, P]: visits of the next places."""
    H, P, A = earned.shape
    width = torch.einsum("hid,hde,hie->hi", phi, inverse, phi).sqrt()  # [H, P A]
    q, value = torch.zeros_like(earned), earned.new_zeros(P)
    for h in reversed(range(H)):
        w = inverse[h] @ (phi[h].T @ (earned[h] + after[h] @ value).flatten())
        q[h] = (phi[h] @ w + bonus * width[h]).clamp(0, H - h).view(P, A)
        value = q[h].amax(1)
    return q
