"""A divergence of the policy from a reference as a loss: exact per decision, or estimated from the decision taken.

Axes: `B` rows, `K` positions. With d = log pi - log ref at a decision x sampled from pi:

| form | value           | E[value]                | expected gradient of the value as a loss            |
|------|-----------------|-------------------------|-----------------------------------------------------|
| k1   | d               | KL(pi‖ref)              | 0: E[grad log pi] vanishes                          |
| k2   | d²/2            | not KL, close when near | grad KL(pi‖ref)                                     |
| k3   | exp(-d) - 1 + d | KL(pi‖ref), low variance | grad KL(ref‖pi): the other direction               |

The others are f-divergences, the expectation of f(u) over the *reference*, u = pi / ref:

| form    | f(u)                                                      | divergence        |
|---------|-----------------------------------------------------------|-------------------|
| forward | u - 1 - log u                                             | KL(ref‖pi)        |
| js      | u log u - (u + 1) log((u + 1) / 2)                        | 2 Jensen-Shannon  |
| alpha   | (u^(1 - a) - (1 - a) u - a) / (a (a - 1)), a not 0 nor 1  | alpha-divergence; KL(ref‖pi) as a -> 1 |

On rows sampled by the reference (`rows = "to"`) the value is f(u), with the gradient of the divergence. On the policy's
own rows it is f(u) / u, for `forward` then w log w - w + 1 with w = ref / pi (DPH-RL: Li et al. 2025, "The Choice of
Divergence"; RAPO: Deng et al. 2025, "Unlocking Reasoning Capabilities in LLMs via Reinforcement Learning Exploration").

Value and `gradient` are separate: `gradient = "kl"` keeps the value and uses k2's gradient, which is that of
KL(pi‖ref); for an f-divergence on own rows it uses f'(u) grad log pi, the gradient of the divergence itself. All of
this holds on samples of the current policy; otherwise expectations are those of the behaviour policy.

On-policy distillation is `to = "teacher"` on the student's own samples: k1 is the policy gradient whose advantage at a
token is log teacher - log pi (Thinking Machines Lab, On-Policy Distillation, 2025), `exact` its mean over the
vocabulary (Agarwal et al. 2023, GKD, with reverse KL). On sequences, every form here has the gradient of each
decision's KL with the contexts held fixed. The gradient of KL(pi‖ref) over whole sequences also credits a decision with
the KL of later ones (Gu et al. 2023, MiniLLM): `kl_in_reward` with beta = 1, `returns` and `clip`. Sources: Schulman,
Approximating KL Divergence (2020), for the values; Tang and Munos, On a Few Pitfalls in KL Divergence Gradient
Estimation for RL (2025), for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.data import Info, nearest
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

SAMPLED = ("k1", "k2", "k3")
GENERATORS = ("forward", "js", "alpha")
LIMIT = 20.0  # bound of exponents: beyond it f(u) and k3 continue linearly, f'(u) and 1 / u stay constant
RESTRICTED = -1e29  # a logit below is of an alternative that could not be taken, at any temper


def estimate(form: str, new: Tensor, reference: Tensor) -> Tensor:
    """Returns the estimate `form` of KL(new || reference) from log-probabilities of the decisions taken, of any one
    shape."""
    d = new - reference
    if form == "k1":
        return d
    if form == "k2":
        return d.square() / 2
    if form == "k3":
        return generator("forward", -d)
    raise ValueError(f"no form {form!r} of estimated KL; {nearest(form, SAMPLED)}")


def generator(form: str, d: Tensor, alpha: float = 0.5) -> Tensor:
    """Returns f(u) of the f-divergence `form`, d = log u of any shape; `alpha` is that of the alpha-divergence."""
    if form == "forward":
        return torch.expm1(d.clamp(max=LIMIT)) + _beyond(d) - d
    if form == "js":
        return _exp(d) * (F.logsigmoid(d) + log(2)) - (F.softplus(d) - log(2))
    return (_exp((1 - alpha) * d) - (1 - alpha) * _exp(d) - alpha) / (alpha * (alpha - 1))


def slope(form: str, d: Tensor, alpha: float = 0.5) -> Tensor:
    """Returns f'(u) of the f-divergence `form`, d = log u of any shape."""
    if form == "forward":
        return -torch.expm1((-d).clamp(max=LIMIT))
    if form == "js":
        return F.logsigmoid(d) + log(2)
    return -torch.expm1((-alpha * d).clamp(max=LIMIT)) / alpha


def _exp(x: Tensor) -> Tensor:
    """Returns exp(x), above LIMIT its tangent there, so that nothing overflows and no gradient vanishes or changes
    sign."""
    return x.clamp(max=LIMIT).exp() + _beyond(x)


def _beyond(x: Tensor) -> Tensor:
    """Returns how far that tangent rises above exp(LIMIT)."""
    return F.relu(x - LIMIT) * exp(LIMIT)  # has slope 0 at LIMIT, where the clamp beside it has one


@dataclass(frozen=True)
class Tempered:
    """A functional: [N] log-probability of the action under softmax(phi log p), phi the column `by`; 0 is uniform over
    the alternatives that could be taken."""

    by: str
    """Column with the exponents phi in [0, 1]; 0 makes the reference uniform, 1 leaves it as it is."""

    def __call__(self, dists: tuple[Any, ...], action: Tensor, column: Callable[[str], Tensor]) -> Tensor:
        logits = dists[0].parameters()  # [N, V]
        flat = torch.where(logits < RESTRICTED, logits, column(self.by)[:, None] * logits)
        return flat.log_softmax(-1).gather(-1, action[:, None].long()).squeeze(-1)


@register("objective", "divergence")
@dataclass
class Divergence:
    """The KL penalty to a reference model, or another divergence: KL(role || to), nats, [B, K].

    Its coefficient is the weight of the term. The module's table lists the forms with their values and gradients; k3 is
    GRPO's (Shao et al. 2024, equation 4). With a `temper` the reference is flattened to softmax(phi log ref). Info:
    `kl`, the value. Raises ValueError for settings that do not go together.
    """

    form: Literal["exact", "k1", "k2", "k3", "forward", "js", "alpha"] = "k3"
    """Divergence or its estimator: `exact` over the whole distribution, `k1`, `k2` or `k3` from the decision taken,
    `forward` KL, `js` or `alpha`."""
    gradient: Literal["auto", "own", "kl"] = "auto"
    """Gradient used: the form's `own`, that of the divergence (`kl`), or `auto`, which is `own` for exact, k2 and k3
    and `kl` for the rest."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    to: str = "reference"
    """Role of the reference model; `behaviour` takes the log-probabilities stored at sampling, so that no reference is
    kept."""
    rows: Literal["role", "to"] = "role"
    """Sampler of the rows: the policy (`role`), or the reference (`to`), as in rehearsal; `to` needs `forward`, `js` or
    `alpha`."""
    alpha: float = 0.5
    """Order of the alpha-divergence, read only by `form = "alpha"`; any number but 0 and 1."""
    temper: str = ""
    """Column [B] or [B, K] of exponents in [0, 1] that flatten the reference (RAPO's phi); "" leaves it as it is."""
    score: str = "log_prob"
    """Method of both distributions that is compared: `log_prob`, or a bound of it such as `elbo` for masked
    diffusion."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.temper,) if self.temper else ()

    def __post_init__(self) -> None:
        check(self)
        if self.rows == "to" and self.form not in GENERATORS:
            raise ValueError(f"divergence: rows = 'to' with form = {self.form!r}: expected {', '.join(GENERATORS)}")
        if self.form == "exact" and (self.to == "behaviour" or self.temper):
            found = f"form = 'exact', to = {self.to!r} and temper = {self.temper!r}"
            raise ValueError(f"divergence: {found}: the exact form compares two models: expected a role as `to`, and "
                             "no `temper`")  # fmt: skip
        if self.to == "behaviour" and self.temper:
            found = f"temper = {self.temper!r} and to = 'behaviour'"
            raise ValueError(f"divergence: {found}: temper needs the model of the reference: expected a role as `to`")
        if self.temper and self.score != "log_prob":
            raise ValueError(f"divergence: score is {self.score!r}: with temper expected the reference's, 'log_prob'")
        if self.alpha in (0.0, 1.0):
            raise ValueError(f"divergence: alpha is {self.alpha}: expected another number (1 is form = 'forward')")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        if self.form == "exact":
            return (Need((self.role, self.to), "kl", live=True),)
        exact = self.score == "log_prob"
        new = Need((self.role,), self.score, live=True, exact=exact)
        if self.to == "behaviour":
            return (new,)
        return new, Need((self.to,), Tempered(self.temper) if self.temper else self.score, exact=exact)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        if self.form == "exact":
            kl = batch[self.needs[0]]
            return kl, {"kl": kl.detach()}
        new = batch[self.needs[0]]
        reference = batch["logp"] if self.to == "behaviour" else batch[self.needs[1]]
        if self.to == "behaviour":
            log_ratio(new, reference, batch)  # which raises if the behaviour is unknown
        if self.form in GENERATORS:
            return self._f_divergence(new - reference)
        value = estimate(self.form, new, reference)
        loss = value
        if self.gradient == "kl" or (self.gradient == "auto" and self.form == "k1"):
            k2 = estimate("k2", new, reference)
            loss = value.detach() + k2 - k2.detach()
        return loss, {"kl": value.detach()}

    def _f_divergence(self, d: Tensor) -> tuple[Tensor, Info]:
        """Returns the loss of an f-divergence, d = log u."""
        f = generator(self.form, d, self.alpha)
        if self.rows == "to":
            return f, {"kl": f.detach()}
        value = f / d.clamp(-LIMIT, LIMIT).exp()
        if self.gradient != "own":
            value = value.detach() + slope(self.form, d, self.alpha).detach() * (d - d.detach())
        return value, {"kl": value.detach()}
