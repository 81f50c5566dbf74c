"""Guidance between two denoising policies: the outputs of a base and of its RL-tuned version, mixed in each step (RLG).

Source: Jin et al. 2025, "Inference-Time Alignment Control for Diffusion Models with Reinforcement Learning Guidance".
If RL ends at p e^(r / beta), the mixture corresponds to beta / weight, without training.

For logits the model `product` does the same. Left out: classifier-free guidance inside each model, guides that change
over time.

Axes: `B` rows, `K` steps, `A` action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Count, check
from shuhari.data import Sampling
from shuhari.kernel.registry import register
from shuhari.models.composite import Others
from shuhari.models.denoising import Chain, denoise
from shuhari.models.sampling import honour
from shuhari.models.schedules import Schedule
from shuhari.models.spaces import Seen
from shuhari.needs import Noise, Traces
from shuhari.ports import Model, Task


@register("model", "guided")
@dataclass
class Guided:
    """Samples from a diffusion policy guided between a base model and its RL-tuned version, without further training
    (RLG).

    Chains (model `chain`) whose network output is u_base + weight (u_tuned - u_base) at the same point; all else,
    including the noise of the steps, is that of the role `tuned`. Supports greedy. Roles that a part trains get
    gradients. Raises ValueError for roles with different denoising steps.
    """

    base: str = "base"
    """Role of the model before RL."""
    tuned: str = "policy"
    """Role of the model after RL."""
    weight: Annotated[float, Bounds(-100, 100)] = 1.5
    """Weight of the tuned model: 0 is the base, 1 the tuned one, above 1 extrapolates (up to 3 in the paper)."""
    after: Count = 0
    """Number of first denoising steps that use the tuned model alone."""
    kind: Literal["exact", "chain", "bound"] = field(default="chain", init=False)
    module: nn.Module = field(init=False, repr=False)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.base, self.tuned)

    def bind(self, models: Mapping[str, Model]) -> None:
        self.others.take(self.roles, models)
        one, other = self.others.models
        alike = (one.single, one.bound, one.steps) == (other.single, other.bound, other.steps)
        if not alike or not all(_are_equal(a, b) for a, b in zip(one.schedule, other.schedule, strict=True)):
            message = "denoise in other steps, or by another law"
            raise ValueError(f"guided: the roles {self.base!r} and {self.tuned!r} {message}")

    def build(self, task: Task) -> None:
        self.module = nn.Module()  # no weights of its own

    def __call__(self, batch: Batch) -> Chain:
        return Chain(self, tuple(m.features(m.seen(batch)) for m in self.others.models), batch)

    def sample(self, contexts: Seen, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples as the tuned policy."""
        honour(sampling, ("greedy",), "guided")
        with torch.no_grad():
            features = tuple(m.features(contexts) for m in self.others.models)
            traces: Traces = self._tuned.trace(*denoise(self, features, noise, sampling.greedy))
            return traces

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of decisions whose environment actions are `taken`."""
        found: dict[str, Tensor] = self._tuned.decision(taken)
        return found

    # ---------------------------------------------------------------- the parts of its chains (`Denoises`)

    def answer(self, features: Any, x: Tensor, k: int | slice) -> Tensor:
        """Returns the mixed output at x [B, A] before step k, or [B, K, A] before all."""
        base, tuned = (m.answer(f, x, k) for m, f in zip(self.others.models, features, strict=True))
        mixed = torch.lerp(base, tuned, self.weight)
        if isinstance(k, int):
            return mixed if k >= self.after else tuned
        late = torch.arange(self.steps)[k, None] >= self.after
        return torch.where(late, mixed, tuned)

    def spread_of(self, features: Any, x: Tensor, k: int | slice) -> Tensor:
        spread: Tensor = self._tuned.spread_of(features[1], x, k)
        return spread

    def error(self, features: Any, action: Tensor, noise: Noise) -> Tensor:
        """Returns the error of the tuned policy."""
        error: Tensor = self._tuned.error(features[1], action, noise)
        return error

    @property
    def _tuned(self) -> Any:
        return self.others.models[1]

    @property
    def steps(self) -> int:
        return int(self._tuned.steps)

    @property
    def single(self) -> bool:
        return bool(self._tuned.single)

    @property
    def bound(self) -> float:
        return float(self._tuned.bound)

    @property
    def dimensions(self) -> int:
        return int(self._tuned.dimensions)

    @property
    def schedule(self) -> Schedule:
        schedule: Schedule = self._tuned.schedule
        return schedule


def _are_equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else bool(a.equal(b))
