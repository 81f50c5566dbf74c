"""Optimistic planning in a table with a KL penalty to a reference policy, and optionally against the worst transitions.

Sources: Tiapkin et al., "Demonstration-Regularized RL" (ICLR 2024), UCBVI-Ent; Gu, Liu et al., "Policy Regularized
Distributionally Robust Markov Decision Processes with Linear Function Approximation" (2025), DR-RPO, here with one
feature for each place and action. Left out: features that places share, discounting.

Axes: `H` steps, `P` places of a step, `A` actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, ShareBelow1, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.counting import count_new, make_counts
from shuhari.learners.tables import SURE, find_table, report_regret
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform


@register("learner", "regularised")
@dataclass
class Regularised:
    """Plans in a tabular environment by counts, with a bonus for rarely taken actions and a KL penalty to a reference
    policy; optionally for the worst transitions within a total variation distance.

    For each step h from the last to the first, with means r and P of the counts and N visits: Q = r + E V_h+1 + bonus /
    sqrt(max(N, 1)), clipped to [0, H - h], as rewards lie in [0, 1]; V = temperature log sum over actions of reference
    exp(Q / temperature); the policy is proportional to reference exp(Q / temperature). With `radius` above 0, E V is
    the least expectation of V within that total variation distance of P. State h * P + s is place s at step h, and H =
    `horizon`. A decision counts once, however often it is drawn.

    `explore` is what the role `explorer` does, if there is one: `plan`, the policy, or `gap`, the policy but at one
    step, drawn anew for each plan among all and none, where it takes the action with the largest difference between Q
    and the same with a negative bonus. Both roles and the reference are `tabular` policies.

    Reports `regularised/gap`, the largest difference between the two values of a place where episodes began;
    `regularised/kl`, the mean KL of the policy to the reference over visited places; and if the environment has the
    column `regret` its mean and `regularised/regret_sum`. Raises TypeError for a policy without a table; ValueError for
    states that do not encode the step, and rewards outside [0, 1].
    """

    buffer: Buffer
    """Buffer that decisions are drawn from; `[buffer]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    horizon: Length = 10
    """Number of steps in an episode; the states must encode the step."""
    temperature: Positive = 0.1
    """Weight of the KL penalty, in units of the reward, above 0; larger stays nearer to the reference."""
    bonus: AtLeast0 = 1.0
    """Scale of the uncertainty bonus; 0 is off."""
    unseen: Literal["bonus", "most"] = "bonus"
    """Value of a state and action that was never visited: the `bonus` alone, or the `most` there may be, H - h, which
    explores all that can be reached."""
    radius: ShareBelow1 = 0.0
    """Total variation distance of the transitions that it guards against; 0 plans for the observed ones."""
    explore: Literal["plan", "gap"] = "plan"
    """What the role `explorer` does: the `plan`, or at one step of each episode the action of the largest `gap`."""
    reference: str = ""
    """Role of the reference policy; "" is the uniform policy."""
    explorer: str = ""
    """Role of the policy that collects; "" leaves collecting to the planned policy."""
    role: str = "policy"
    """Role of the tabular policy that gets the plan."""
    name: str = "main"
    """Name of the learner in its reports and events; `[learner.<name>]` in a recipe."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if self.explore == "gap" and not self.explorer:
            raise ValueError("regularised: explore is 'gap' and explorer is '': expected a role that collects, such as "
                             "'explorer'")  # fmt: skip

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, *(role for role in (self.reference, self.explorer) if role)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._tables = {role: find_table(models, role, "regularised") for role in self.roles}
        if not self.state:
            self.state = make_counts(self._tables[self.role], self.horizon, "regularised") | {"regret": 0.0}

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn rows, plans, and writes both policies."""
        mine, rows = self.state, count_new(batch, self.state, "regularised")
        H, P, A = mine["visits"].shape
        logp = torch.zeros(H, P, A, dtype=torch.double)
        if self.reference:
            logp = self._tables[self.reference][: H * P].double().view(H, P, A)
        logp = logp.log_softmax(-1)
        most = self.unseen == "most"
        high = plan(mine, logp, self.temperature, self.bonus, self.radius, most)
        low = plan(mine, logp, self.temperature, -self.bonus, self.radius)
        self._write(self.role, high.logp)
        if self.explorer:
            self._write(self.explorer, high.logp)
            at = int(torch.randint(H + 1, (1,), generator=ctx.rng("regularised", "explore")))
            if self.explore == "gap" and at < H:
                table, best = self._tables[self.explorer], (high.q[at] - low.q[at]).argmax(1)
                table[at * P : (at + 1) * P] = 0.0
                table[torch.arange(at * P, (at + 1) * P), best] = SURE
        seen = mine["visits"].sum(2) > 0
        kl = (high.logp.exp() * (high.logp - logp)).sum(2)[seen]
        first = (high.value[0] - low.value[0])[seen[0]]
        info = {
            "regularised/gap": float(first.max()) if len(first) else float(H),
            "regularised/kl": float(kl.mean()) if len(kl) else 0.0,
            **report_regret(rows, mine, "regularised"),
        }
        return Updated(self.name, info, batch["id"])

    def _write(self, role: str, logp: Tensor) -> None:
        table = self._tables[role]
        table[: logp.shape[0] * logp.shape[1]] = logp.flatten(0, 1).to(table.dtype)


class Plan(NamedTuple):
    """Values `q` [H, P, A] and `value` [H, P], and the policy's log-probabilities `logp` [H, P, A]."""

    q: Tensor
    value: Tensor
    logp: Tensor


def plan(
    counts: Mapping[str, Any], reference: Tensor, temperature: float, bonus: float, radius: float, most: bool = False
) -> Plan:
    """Plans by counts (`make_counts`) with a KL penalty to a policy of log-probabilities `reference` [H, P, A]; `most`:
    what was never visited is worth H - h."""
    new, n = counts["visits"] == 0, counts["visits"].clamp(min=1)
    r, p = counts["earned"] / n, counts["after"] / n[..., None]
    H, P, A = r.shape
    q, value, logp = r.new_zeros(H, P, A), r.new_zeros(H, P), r.new_zeros(H, P, A)
    after = r.new_zeros(P)
    for h in reversed(range(H)):
        q[h] = (r[h] + expect_worst(p[h], after, radius) + bonus / n[h].sqrt()).clamp(0, H - h)
        if most:
            q[h][new[h]] = float(H - h)
        tilted = reference[h] + q[h] / temperature
        after = value[h] = temperature * tilted.logsumexp(-1)
        logp[h] = tilted.log_softmax(-1)
    return Plan(q, value, logp)


def expect_worst(p: Tensor, value: Tensor, radius: float) -> Tensor:
    """Returns [...] the least expectation of `value` [P], at least 0, within total variation `radius` of p [..., P]:
    that much probability is taken from the largest values and given to the least one. Where p sums to less than 1, the
    rest is an end, of value 0, to which probability may be given too."""
    if not radius:
        return p @ value
    order = value.argsort(descending=True)
    p, value = p[..., order], value[order]
    left = (p.cumsum(-1) - radius).clamp(min=0)  # of the mass so far, after taking `radius` from the top
    kept = left.diff(dim=-1, prepend=torch.zeros_like(left[..., :1]))
    whole = p.sum(-1) > 1 - 1e-9
    least = torch.where(whole, value[-1], torch.zeros_like(value[-1]))
    return (kept * value).sum(-1) + least * (p.sum(-1) - kept.sum(-1))
