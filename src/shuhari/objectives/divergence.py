"""KL(policy || reference) as a loss: exact per decision, or estimated from the decision taken.

Axes: `B` rows, `K` positions. With d = log pi - log ref at a decision x sampled from pi:

| form | value           | E[value]                | expected gradient of the value as a loss            |
|------|-----------------|-------------------------|-----------------------------------------------------|
| k1   | d               | KL(pi‖ref)              | 0: E[grad log pi] vanishes                          |
| k2   | d²/2            | not KL, close when near | grad KL(pi‖ref)                                     |
| k3   | exp(-d) - 1 + d | KL(pi‖ref), low variance | grad KL(ref‖pi): the other direction               |

So a form has a value and a `gradient` of its own; `gradient = "kl"` keeps the value and takes k2's gradient, which is
that of KL(pi‖ref). All of it holds on samples of the present policy; off it, expectations are those of the behaviour.

On-policy distillation is `to = "teacher"` on the student's own samples: k1 is the policy gradient whose advantage at a
token is log teacher - log pi (Thinking Machines Lab, On-Policy Distillation, 2025), `exact` its mean over the
vocabulary (Agarwal et al. 2023, GKD, with reverse KL). Of sequences, every form here takes the gradient of each
decision's KL with the contexts held fixed. That of KL(pi‖ref) over whole sequences credits a decision with the KL of
those after it as well (Gu et al. 2023, MiniLLM): `kl_in_reward` with beta = 1, `returns` and `clip`.
Sources: Schulman, Approximating KL Divergence (2020), for the values; Tang and Munos, On a Few Pitfalls in KL
Divergence Gradient Estimation for RL (2025), for the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info, nearest
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.registry import register

SAMPLED = ("k1", "k2", "k3")
FORMS = ("exact", *SAMPLED)
GRADIENTS = ("auto", "own", "kl")
LIMIT = 20.0  # of -d before exp in k3


def estimate(form: str, new: Tensor, reference: Tensor) -> Tensor:
    """The estimate `form` of KL(new || reference) from log-probabilities of the decisions taken, any one shape."""
    d = new - reference
    if form == "k1":
        return d
    if form == "k2":
        return d.square() / 2
    if form == "k3":
        return torch.expm1((-d).clamp(max=LIMIT)) + d
    raise ValueError(f"no form {form!r} of estimated KL; {nearest(form, SAMPLED)}")


@register("objective", "divergence")
@dataclass
class Divergence:
    """KL(role || to), nats, [B, K]; the coefficient is the weight of the term. Info: `kl`, the value.

    form: `exact` (the whole distribution of each decision), `k1`, `k2`, `k3` (GRPO's, Shao et al. 2024, equation 4).
    gradient: `own`, `kl`, or `auto`: `kl` for k1, whose own gradient is noise around 0, and `own` for the others.
    """

    form: str = "k3"
    gradient: str = "auto"
    role: str = "policy"
    to: str = "reference"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __post_init__(self) -> None:
        for name, known in (("form", FORMS), ("gradient", GRADIENTS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"divergence: no {name} {getattr(self, name)!r}; {nearest(getattr(self, name), known)}"
                )

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        if self.form == "exact":
            return (Need((self.role, self.to), "kl", live=True),)
        return Need((self.role,), "log_prob", live=True), Need((self.to,), "log_prob")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        if self.form == "exact":
            kl = batch[self.needs[0]]
            return kl, {"kl": kl.detach()}
        new, reference = (batch[n] for n in self.needs)
        value = estimate(self.form, new, reference)
        loss = value
        if self.gradient == "kl" or (self.gradient == "auto" and self.form == "k1"):
            k2 = estimate("k2", new, reference)
            loss = value.detach() + k2 - k2.detach()
        return loss, {"kl": value.detach()}
