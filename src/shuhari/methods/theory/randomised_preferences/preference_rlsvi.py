"""Randomised value iteration on a reward that is learnt from comparisons of episodes, with a rule for when to compare.

Source: Wu and Sun, "Making RL with Preference-based Feedback Efficient via Randomization" (ICLR 2024), PR-LSVI, here
with one feature for each place and action. Left out: the threshold's schedule, features that places share, the Thompson
variant for general models.

Axes: `E` episodes, `H` steps, `P` places, `A` actions, `d` = P A features, `n` compared pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, Share, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.counting import count_new, make_counts, split_states
from shuhari.learners.tables import SURE, find_table, report_regret
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform

_ROUNDS = 50  # of Newton's method


@register("learner", "preference_rlsvi")
@dataclass
class PreferenceRlsvi:
    """Learns from comparisons of episodes alone: a reward by logistic regression, exploration by Gaussian noise on the
    reward and on values, and a comparison only if the reward's posterior disagrees about it (PR-LSVI).

    Features of an episode count its places and actions. Each episode is paired with the one of the last policy. It is
    compared if the expected |(theta - theta') . difference|, for two draws theta, theta' ~ N(estimate, reward_noise^2
    Sigma^-1), is above `threshold`; Sigma = ridge + sum over compared pairs of difference difference^T. The answer of
    a simulated person prefers the first with probability sigmoid(steepness (R - R')), R the returns, which nothing else
    reads. Then for each step from the last to the first, with one draw of theta: Q = theta + w, w = sum V' / (N +
    ridge) + noise normal / sqrt(N + ridge), clipped to [-(H - h), H - h], and 0 if 1 / sqrt(N + ridge) > `trust`. The
    policy, a `tabular` one, takes the best action.

    A draw has whole episodes of `horizon` decisions, as with buffer.size = rollout.lanes * horizon; others are counted
    but not compared. Reports
    `randomised/queries` so far, `randomised/asked`, the share of pairs that were compared, and with the column `regret`
    its mean and `randomised/regret_sum`. Raises TypeError for a policy without a table; ValueError for longer episodes,
    states that do not encode the step, and rewards outside [0, 1].
    """

    buffer: Buffer
    """Buffer that episodes are drawn from; `[buffer]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    horizon: Length = 10
    """Number of steps in an episode; the states must encode the step."""
    ask: Literal["active", "always", "random", "never"] = "active"
    """Which pairs are compared: by the rule (`active`), `always`, a `random` share, or `never`."""
    threshold: AtLeast0 = 0.1
    """Expected disagreement above which a pair is compared, in units of the return. Only used by `active`."""
    share: Share = 0.5
    """Share of pairs that `random` compares."""
    steepness: Positive = 1.0
    """Steepness of the simulated person's preference, per unit of the return; larger errs less."""
    known: bool = False
    """Use the mean rewards instead of comparisons: randomised value iteration (RLSVI)."""
    reward_noise: AtLeast0 = 0.5
    """Scale of the noise on the reward estimate (the paper's sigma_r); 0 explores and asks nothing by it."""
    noise: AtLeast0 = 0.5
    """Scale of the noise on values (the paper's sigma_P)."""
    ridge: Positive = 1.0
    """Regularisation of both regressions, above 0."""
    trust: Positive = 0.9
    """Largest 1 / sqrt(N + ridge) of a state and action whose value is used; of others it is 0. With ridge 1 and 0.9,
    those that were never visited."""
    role: str = "policy"
    """Role of the tabular policy that gets the plan."""
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
        self._table = find_table(models, self.role, "preference_rlsvi")
        if not self.state:
            mine = make_counts(self._table, self.horizon, "preference_rlsvi")
            d = mine["visits"][0].numel()
            mine |= {name: torch.zeros(0, d, dtype=torch.double) for name in ("differences", "features")}
            mine |= {name: torch.zeros(0, dtype=torch.double) for name in ("answers", "returns")}
            self.state = {**mine, "pairs": 0, "regret": 0.0}

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn episodes, compares some with those before, and plans."""
        mine, rows = self.state, count_new(batch, self.state, "preference_rlsvi")
        features, returns = read_features(rows, mine["visits"].shape[1], mine["visits"].shape[2], self.horizon)
        if not self.known:
            self._compare(features, returns, ctx)
        mine |= {"features": features, "returns": returns}
        q = self._plan(ctx)
        self._table.zero_()
        self._table[torch.arange(q.shape[0] * q.shape[1]), q.flatten(0, 1).argmax(1)] = SURE
        asked = len(mine["answers"])
        info = {"randomised/queries": float(asked), "randomised/asked": asked / max(1, mine["pairs"])}
        return Updated(self.name, info | report_regret(rows, mine, "randomised"), batch["id"])

    def _compare(self, features: Tensor, returns: Tensor, ctx: Ctx) -> None:
        """Pairs the episodes with those of the last draw, and asks about some."""
        mine, n = self.state, min(len(features), len(self.state["features"]))
        rng = ctx.rng("preference_rlsvi", "answers")
        u, v = torch.rand(2, n, generator=rng, dtype=torch.double)
        inverse = torch.linalg.inv(find_gram(mine["differences"], self.ridge))
        for i in range(n):
            mine["pairs"] += 1
            difference = features[i] - mine["features"][i]
            wide = find_disagreement(difference, inverse, self.reward_noise)
            asks = {"active": wide > self.threshold, "always": True, "random": bool(v[i] < self.share), "never": False}
            if asks[self.ask]:
                likely = torch.sigmoid(self.steepness * (returns[i] - mine["returns"][i]))
                mine["differences"] = torch.cat([mine["differences"], difference[None]])
                mine["answers"] = torch.cat([mine["answers"], (u[i] < likely).double()[None]])

    def _plan(self, ctx: Ctx) -> Tensor:
        """Returns Q [H, P, A] of one draw of the noise."""
        mine = self.state
        visits, after = mine["visits"], mine["after"]
        H, P, A = visits.shape
        rng = ctx.rng("preference_rlsvi", "noise")
        z, noise = torch.randn(P * A, generator=rng, dtype=torch.double), torch.randn(H, P, A, generator=rng)
        if self.known:
            reward = mine["earned"] / visits.clamp(min=1)
        else:
            gram = find_gram(mine["differences"], self.ridge)
            theta = fit_reward(mine["differences"], mine["answers"], self.steepness, self.ridge)
            theta = theta + self.reward_noise * draw_normal(gram, z)
            reward = theta.view(1, P, A).expand(H, P, A)
        size = 1 / (visits + self.ridge).sqrt()
        q, value = torch.zeros_like(visits), visits.new_zeros(P)
        for h in reversed(range(H)):
            w = after[h] @ value / (visits[h] + self.ridge) + self.noise * noise[h] * size[h]
            q[h] = (reward[h] + w).clamp(h - H, H - h).masked_fill(size[h] > self.trust, 0.0)
            value = q[h].amax(1)
        return q


def read_features(rows: Batch, P: int, A: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Returns ([E, d] how often each place and action occurs, [E] the returns) of the episodes of a batch, in order,
    without those that a draw has cut. Raises ValueError if one has more than `horizon` decisions."""
    _, which, length = rows["episode"].unique(return_inverse=True, return_counts=True)
    if bool((length > horizon).any()):
        message = f"an episode of {int(length.max())} decisions: expected at most horizon = {horizon}"
        raise ValueError(f"preference_rlsvi: {message}")
    rows = rows.take((length == horizon)[which])
    found, which = rows["episode"].unique(return_inverse=True)
    place = split_states(rows["context"].view(-1), P)[1]
    features = torch.zeros(len(found), P * A, dtype=torch.double)
    one = torch.ones(len(rows), dtype=torch.double)
    features.index_put_((which, place * A + rows["action"].view(-1).long()), one, accumulate=True)
    returns = torch.zeros(len(found), dtype=torch.double).index_add_(0, which, rows["reward"].sum(1).double())
    return features, returns


def find_gram(differences: Tensor, ridge: float) -> Tensor:
    """Returns [d, d] Sigma = ridge + sum of difference difference^T, of differences [n, d]."""
    return differences.T @ differences + ridge * torch.eye(differences.shape[1], dtype=differences.dtype)


def find_disagreement(difference: Tensor, inverse: Tensor, noise: float) -> float:
    """Returns E |(theta - theta') . difference| for two independent draws of N(., noise^2 Sigma^-1): 2 noise / sqrt(pi)
    times the norm of the difference [d] in Sigma^-1 [d, d]."""
    return 2 * noise / math.sqrt(math.pi) * math.sqrt(max(0.0, float(difference @ inverse @ difference)))


def draw_normal(gram: Tensor, z: Tensor) -> Tensor:
    """Returns [d] a draw of N(0, gram^-1) from z [d], standard normal."""
    return torch.linalg.solve_triangular(torch.linalg.cholesky(gram).T, z[:, None], upper=True)[:, 0]


def fit_reward(differences: Tensor, answers: Tensor, steepness: float, ridge: float) -> Tensor:
    """Returns [d] the theta of the largest likelihood of answers [n] (1: the first of the pair is preferred), each with
    probability sigmoid(steepness theta . difference), less ridge |theta|^2 / 2. By Newton's method."""
    x = steepness * differences
    theta = x.new_zeros(x.shape[1])
    for _ in range(_ROUNDS):
        p = torch.sigmoid(x @ theta)
        slope = x.T @ (answers - p) - ridge * theta
        hessian = (x * (p * (1 - p))[:, None]).T @ x + ridge * torch.eye(len(theta), dtype=x.dtype)
        step = torch.linalg.solve(hessian, slope)
        theta = theta + step * min(1.0, 5.0 / max(float(step.abs().max()), 1e-12))
        if float(step.abs().max()) < 1e-9:
            break
    return theta
