"""A metric that compares a model's weights with those of another role, such as a copy of its initial weights.

Left out: buffers (statistics of a normaliser), and where in the model the weights changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from shuhari.bounds import AtLeast0, check
from shuhari.data import nearest
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Ctx


@register("metric", "weights")
@dataclass
class Weights:
    """Compares the weights of a role with those of another, parameter by parameter, matched by name.

    Reports `changed`, the share of weights in [0, 1] that differ by more than `tolerance`; `distance`, the Euclidean
    norm of the difference; and `relative`, the distance divided by the norm of the weights of `of` (NaN if that is 0).
    `changed_bf16`, `distance_bf16` and `relative_bf16` are the same after rounding both to bfloat16 (to nearest,
    ties to even). `[models.start] init = "policy"` adds a role that keeps the initial weights of the policy.
    """

    of: str = "start"
    """Role to compare with, such as a frozen copy from the start of the stage."""
    role: str = "policy"
    """Role whose weights are measured."""
    tolerance: AtLeast0 = 0.0
    """Difference above which a weight counts as changed, in units of a weight; 0 counts every change."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, self.of)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        """Returns name -> number. Raises ValueError if a parameter is missing in `of`, or has another shape there."""
        pairs = [(a.detach(), b.detach()) for a, b in self._match(ctx)]
        rounded = [(a.bfloat16(), b.bfloat16()) for a, b in pairs]
        plain, rough = self._numbers(pairs), self._numbers(rounded)
        return {**plain, **{f"{name}_bf16": value for name, value in rough.items()}}

    def _match(self, ctx: Ctx) -> Iterator[tuple[Tensor, Tensor]]:
        others = dict(role_model(ctx.models, self.of).module.named_parameters())
        for name, x in role_model(ctx.models, self.role).module.named_parameters():
            if name not in others or others[name].shape != x.shape:
                found = tuple(others[name].shape) if name in others else nearest(name, others)
                raise ValueError(f"weights: role {self.of!r} has no parameter {name} of shape {tuple(x.shape)}: "
                                 f"{found}")  # fmt: skip
            yield x, others[name]

    def _numbers(self, pairs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
        changed = count = square = whole = 0.0
        for a, b in pairs:
            gap = a.double() - b.double()
            changed += float((gap.abs() > self.tolerance).sum())
            count += gap.numel()
            square += float(gap.square().sum())
            whole += float(b.double().square().sum())
        distance = math.sqrt(square)
        relative = distance / math.sqrt(whole) if whole else math.nan
        return {"changed": changed / count, "distance": distance, "relative": relative}
