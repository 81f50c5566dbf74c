"""The temperature of a maximum-entropy policy, tuned to hold the policy's entropy at a target.

Axes: `B` rows, `K` positions of a decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.data import Info, Number
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx

STAMPED = "fresh/log_prob"


@register("objective", "temperature")
@dataclass
class Temperature:
    """SAC's automatic entropy tuning: the loss of the entropy coefficient.

    -log(temperature) · (log pi(a|s) + target_entropy), [B], with the log-probabilities that `reparam` has stamped in an
    earlier part (Haarnoja et al. 2018, equation 18, on the logarithm, as in their code). Raises KeyError if they are
    missing. Info: `temperature`, `entropy` (of the sample).
    """

    target_entropy: Number | Literal["auto"] = "auto"
    """Target entropy of the policy, in nats for a whole action; `auto` is SAC's rule, minus the number of action
    dimensions."""
    role: str = "temperature"
    """Role of the entropy coefficient, a model of one positive number whose `parameters()` is its logarithm."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    reads = (STAMPED,)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        if STAMPED not in batch:
            raise KeyError(
                f"the term 'temperature' reads the column {STAMPED!r}, which nobody has stamped: a part with the term "
                "'reparam' comes before it in the recipe"
            )
        model: Any = role_model(ctx.models, self.role)
        scalar, logp = model(batch), batch[STAMPED].sum(1)
        target = self.target_entropy
        aim = -float(batch["action"][0].numel()) if target == "auto" else ctx.at(target)
        loss = -scalar.parameters() * (logp + aim)
        return loss, {"temperature": scalar.value().detach(), "entropy": -logp}
