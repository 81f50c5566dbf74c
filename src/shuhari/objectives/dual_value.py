"""State values near the best recorded decisions, as the dual of a regularised return: each f-divergence gives a loss.

It replaces `expectile`: decisions bootstrap from the value (`value_td`), and the policy imitates each decision by its
advantage over the value.

Axes: `B` rows. A row is one transition, as in `td`.

Sources: Sikchi et al. 2024, "Dual RL: Unification and New Methods for Reinforcement and Imitation Learning" (f-DVL),
and its authors' code; Garg et al. 2023, "Extreme Q-Learning: MaxEnt RL without Entropy" (XQL).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, PositiveNumber, Ratio, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.expectile import advantage_of, stamp_worth
from shuhari.ports import Ctx


@register("objective", "dual_value")
@dataclass
class DualValue:
    """State values for offline RL near the best recorded actions (f-DVL, XQL), in place of IQL's expectile.

    The loss [B] of V by its gap d = min Q(s, a) - V(s) to the value of the recorded action:

    - `chi_square`: tau max(d + d²/4, 0) - (1 - tau) d, where the maximum is 0 for all d <= 0: the parabola rises again
      below -4, which the authors' code includes.
    - `total_variation`: tau max(d, 0) - (1 - tau) d: V is the quantile of Q that a share (1 - tau) / tau exceeds.
    - `reverse_kl`: e^z - z - 1, z = d / tau bounded by `most_z`; XQL. As in the authors' codes it is divided by e to
      the largest z of the optimiser batch, -1 at least, which has no gradient.

    Stamps `weight/<stream>` as `expectile` does. Info: `value`, `advantage` (d). Raises ValueError for a tau out of
    range.
    """

    form: Literal["chi_square", "total_variation", "reverse_kl"] = "chi_square"
    """Divergence whose dual is the loss: `chi_square` or `total_variation` (f-DVL), or `reverse_kl` (XQL)."""
    tau: Annotated[float, Bounds(0, open="low")] = 0.7
    """Nearness of V to the largest recorded Q, in (1/2, 1), 1 the nearest; with `reverse_kl` a temperature above 0, in
    units of the value."""
    most_z: Annotated[float, Bounds(0, open="low")] = 7.0
    """Upper bound of the exponent d / tau, so that `reverse_kl` does not overflow; other forms ignore it."""
    temperature: PositiveNumber = 1.0
    """Temperature of the imitation weights exp(advantage / temperature), in units of the value; smaller imitates only
    the best actions."""
    most: Ratio = 100.0
    """Upper bound of the imitation weights; inf for none."""
    role: str = "value"
    """Role of the state value that is trained, a name under `[models]`."""
    critic: str = "target"
    """Role of the critic whose smallest member is the action value, mostly a target network."""
    stream: str = "awr"
    """Stream that gets the imitation weights, which the policy's `nll` term names as its `stream`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __post_init__(self) -> None:
        check(self)
        if self.form == "reverse_kl":
            self.couples = "batch"
        elif not 0.5 < self.tau < 1:
            raise ValueError(f"dual_value: tau is {self.tau}: expected between 1/2 and 1 if form is {self.form!r}")

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "value", live=True), Need((self.critic,), "value")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        gap, value = advantage_of(batch, self.needs)
        stamp_worth(batch, self.stream, gap, ctx.at(self.temperature), ctx.at(self.most))
        return self.loss(gap), {"value": value.detach(), "advantage": gap.detach()}

    def loss(self, gap: Tensor) -> Tensor:
        """Returns the loss [B] for gaps [B]."""
        if self.form == "reverse_kl":
            z = (gap / self.tau).clamp(max=self.most_z)
            top = z.detach().max().clamp(min=-1.0)
            return (z - top).exp() - (z + 1) * (-top).exp()
        above = gap.clamp(min=0)
        if self.form == "chi_square":
            above = above + above.square() / 4
        return self.tau * above - (1 - self.tau) * gap
