"""The price of a constraint: a multiplier that rises while a limit is exceeded, and falls otherwise.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx


@register("objective", "dual")
@dataclass
class Dual:
    """The loss of a Lagrange multiplier, which rises while a cost limit is exceeded and falls otherwise.

    -log(lambda) · excess, [B, K], with the column `excess` from the transform `constrain`: dual ascent on the logarithm
    of the multiplier, which keeps it positive (Altman 1999; on the logarithm, as for SAC's temperature). Info:
    `multiplier`, `excess`.
    """

    role: str = "multiplier"
    """Role of the multiplier, a model of one positive number whose `parameters()` is its logarithm."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    reads = ("excess",)
    stamps = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        model: Any = role_model(ctx.models, self.role)
        scalar, excess = model(batch), batch["excess"]
        return -scalar.parameters() * excess, {"multiplier": scalar.value().detach(), "excess": excess}
