"""The policy-gradient loss: one objective whose settings give REINFORCE, PPO and their variants for language models.

| paper       | settings of `clip`                        | reduce     | where `advantage` comes from                 |
|-------------|-------------------------------------------|------------|----------------------------------------------|
| REINFORCE   | behaviour = "present"                     | decision   | any; here `advantage` {scale = "none"}       |
| RLOO        | behaviour = "present"                     | constant:1 | `kl_in_reward`, `advantage`                  |
|             |                                           |            | {centre = "leave-one-out", scale = "none"}   |
| PPO         | low = high = 0.2                          | decision   | `gae`                                        |
| REINFORCE++ | low = high = 0.2                          | decision   | `kl_in_reward`, `returns` {scale = "batch"}  |
| GRPO        | low = high = 0.2                          | row        | `advantage`                                  |
| Dr. GRPO    | low = high = 0.2                          | constant:N | `advantage` {scale = "none"}; N = max_new    |
| DAPO        | low = 0.2, high = 0.28                    | decision   | `drop_uniform_groups`, `overlong`,           |
|             |                                           |            | `advantage`                                  |
| GSPO        | level = "sequence", low = 3e-4, high=4e-4 | row        | `advantage`                                  |
| CISPO       | clips = "weight", low = inf, high = 4     | decision   | `advantage`                                  |
| TIS         | behaviour = "old", truncate = 2, with any of the above except those with `present`                    |
| AReaL       | as PPO, behaviour = "old", truncate = 5, beyond = "drop"                                              |

Sources: REINFORCE, Williams (1992); RLOO, Ahmadian et al. (2024), arXiv 2402.14740; PPO, Schulman et al. (2017), arXiv
1707.06347; REINFORCE++, Hu et al. (2025), arXiv 2501.03262; GRPO, Shao et al. (2024), arXiv 2402.03300; Dr. GRPO, Liu
et al. (2025), arXiv 2503.20783; DAPO, Yu et al. (2025), arXiv 2503.14476; GSPO, Zheng et al. (2025), arXiv 2507.18071;
CISPO, MiniMax (2025), arXiv 2506.13585; TIS, Yao et al. (2025), "Your efficient RL framework secretly brings you
off-policy RL training"; AReaL, Fu et al. (2025), arXiv 2505.24298. KL penalties and entropy bonuses are separate terms.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Ratio, check
from shuhari.data import Info
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

LIMIT = 20.0  # bound of a log-ratio before exp: beyond it a float32 loss is meaningless, and inf x 0 is NaN


@register("objective", "clip")
@dataclass
class Clip:
    """The clipped policy-gradient loss of PPO, GRPO and their variants: importance ratio r times advantage A, [B, K].

    With `clips = "surrogate"` it is -min(r A, clamp(r, 1 - low, 1 + high) A) (PPO, equation 7): a clipped decision has
    gradient 0. With `"weight"` it is -sg[clamp(r, 1 - low, 1 + high)] A log pi (CISPO, equations 4 and 5): every
    decision keeps its gradient, with a bounded weight.

    At level `sequence` (GSPO, equation 7) r is the geometric mean over the row, and the gradient of a position goes
    through its own decision (equation 14, GSPO-token); if A is constant over the row, that is the gradient of equation
    5. With `behaviour = "present"` r = 1, with the gradient -A grad log pi of REINFORCE, for rows that the policy has
    just sampled (with `clips = "weight"` the value is -A log pi too). With `centre = "old"` the bounds are c - low and
    c + high, c = pi_old / behaviour, for rows of earlier policies (GePPO: Queeney et al. 2021, arXiv 2111.00072,
    equation 9).

    `dual` bounds the surrogate of a bad action by dual |A| (Ye et al. 2020, equation 5). `truncate` = C multiplies the
    loss by min(pi_old / mu, C), with mu the stored log-probabilities, if sampler and trainer differ, by version or by
    rounding (TIS; per decision, whatever the level). `beyond = "drop"` is the decoupled objective as in AReaL's code;
    equation 5 of that paper is C = inf.

    Info: `clip_fraction` (decisions whose gradient the clip removes, or whose weight it changes), `approx_kl` (k3 of
    behaviour from policy, per decision), `ratio`; none of them if r = 1 by definition. With truncate also `truncated`
    (decisions whose weight was cut) and `sampler_kl` (k3 of the sampler from the trainer's policy).
    """

    low: Ratio = 0.2
    """Clip range below 1 for the importance ratio (PPO's epsilon); inf clips nothing below."""
    high: Ratio = 0.2
    """Clip range above 1 for the importance ratio; inf clips nothing above, and more than `low` is DAPO's
    clip-higher."""
    level: Literal["decision", "row", "segment", "sequence", "episode"] = "decision"
    """Unit that one importance ratio covers: each `decision` (token or action), the whole `row`, a turn (`segment`),
    the mean over the row (`sequence`, GSPO), or the `episode`."""
    clips: Literal["surrogate", "weight"] = "surrogate"
    """Target of the clip range: the `surrogate` loss (PPO, GRPO), or the detached `weight` of the log-probability
    (CISPO)."""
    behaviour: str = "behaviour"
    """Denominator of the ratio: `behaviour` (log-probabilities stored at sampling), `old` (the policy rescored before
    the update), `present` (the policy itself, ratio 1: REINFORCE), or a role."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    dual: AtLeast0 = 0.0
    """Dual-clip bound on the loss of a decision with a negative advantage, in multiples of that advantage; 0 is off,
    else above 1."""
    truncate: Ratio = 0.0
    """Upper bound of the weight that corrects for a sampler that differs from the trainer (TIS); 0 is off, inf weighs
    without a bound. It needs `behaviour = "old"`."""
    beyond: Literal["cut", "drop"] = "cut"
    """Treatment of decisions whose sampler weight exceeds `truncate`: `cut` lowers the weight to it, `drop` sets the
    weight to 0 (AReaL)."""
    advantage: str = "advantage"
    """Column with the advantages that are multiplied by the ratio."""
    centre: Literal["one", "old"] = "one"
    """Middle of the clip range: `one` as in PPO, or `old`, the ratio of old policy to behaviour, for replayed rows
    (GePPO)."""
    score: str = "log_prob"
    """Method of the policy's distribution that the ratio is made of: `log_prob`, or a bound of it such as `elbo` for
    masked diffusion."""
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage,)

    def __post_init__(self) -> None:
        check(self)
        if self.dual and (self.dual <= 1 or self.clips != "surrogate"):
            raise ValueError(f"clip: dual is {self.dual}: expected 0 (off), or a number > 1 with clips = 'surrogate'")
        if self.truncate and self.behaviour != "old":
            raise ValueError(
                f"clip: truncate is {self.truncate}, which bounds the ratio of the policy before the update to the "
                f"sampler, and behaviour is {self.behaviour!r}: expected behaviour = 'old'"
            )

        if self.centre == "old" and self.behaviour in ("old", "present"):
            raise ValueError(
                f"clip: centre = 'old' is pi_old over the behaviour, which is 1 with behaviour = {self.behaviour!r}: "
                "expected 'behaviour', or a role"
            )

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        exact = self.score == "log_prob" and self.behaviour != "present"
        asked = [Need((self.role,), self.score, live=True, exact=exact)]
        if self.behaviour not in ("behaviour", "old", "present"):
            asked.append(Need((self.behaviour,), self.score, exact=exact))
        if "old" in (self.behaviour, self.centre):
            asked.append(Need((self.role,), self.score, exact=exact))
        return tuple(asked)

    @property
    def couples(self) -> Literal["row", "batch"]:
        return "batch" if self.level == "episode" else "row"  # an episode's ratio spans its rows

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        new, a = batch[self.needs[0]], batch[self.advantage]
        if self.behaviour == "present":
            old = new.detach()
        else:
            role = self.behaviour != "behaviour"  # the policy's own before the update, or another
            old = batch[self.needs[1]] if role else batch["logp"]
        log = log_ratio(new, old, batch, self.level)
        if self.level == "sequence":
            log = log.detach() + new - new.detach()
        r = log.clamp(-LIMIT, LIMIT).exp()
        low, high = ctx.at(self.low), ctx.at(self.high)
        if self.centre == "one":
            held = r.clamp(1 - low, 1 + high)
        else:
            c = log_ratio(batch[self.needs[-1]], old, batch, self.level).clamp(-LIMIT, LIMIT).exp()
            held = r.clamp(c - low, c + high)
        if self.clips == "weight":
            loss, clipped = -held.detach() * a * new, held != r
        else:
            bad = -a
            free = r * bad
            loss = torch.maximum(free, held * bad)
            if self.dual:
                loss = torch.where(a < 0, torch.minimum(loss, -self.dual * a), loss)
            clipped = loss != free
        if self.behaviour == "present":
            return loss, {}
        step = log.detach() if self.level == "decision" else log_ratio(new.detach(), old, batch)
        info = {"clip_fraction": clipped.float(), "approx_kl": k3(step), "ratio": r.detach()}
        if self.truncate:
            sampler, bound = log_ratio(old, batch["logp"], batch), ctx.at(self.truncate)
            weight = sampler.clamp(-LIMIT, LIMIT).exp()
            loss = loss * (weight.clamp(max=bound) if self.beyond == "cut" else weight * (weight <= bound))
            info |= {"truncated": (weight > bound).float(), "sampler_kl": k3(sampler)}
        return loss, info


def k3(log: Tensor) -> Tensor:
    """Returns an estimate of KL(old || new) at decisions drawn from `old`: r - 1 - log r of the log-ratio of new over
    old."""
    return log.clamp(-LIMIT, LIMIT).expm1() - log
