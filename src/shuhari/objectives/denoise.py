"""Imitation by denoising: the losses of flow matching, diffusion and consistency training, on the rows' actions.

Axes: `B` rows.
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


@register("objective", "denoise")
@dataclass
class Denoise:
    """Behaviour cloning of diffusion, flow and consistency policies: the denoising loss on the actions of the rows,
    [B].

    The squared error, averaged over dimensions, of such a policy's (the model `chain`) prediction from the row's action
    mixed with noise (`Chain.denoising`): flow matching, diffusion or consistency training, by the policy's kind. A
    likelihood would need the chains of the demonstrations, which are not recorded. Reduce it by `row`.
    """

    role: str = "policy"
    """Role of the denoising policy that is trained, a name under `[models]`."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        policy: Any = role_model(ctx.models, self.role)
        loss: Tensor = policy(batch).denoising(ctx.noise(batch, "denoise"))
        return loss, {"error": loss.detach()}
