"""Adam and AdamW on fused kernels, with a global gradient-norm clip and a refusal of gradients that are not finite.

Calls the fused kernel directly: for nets 64 wide a step costs a quarter of one through `torch.optim`. Leaves out
parameter groups and sparse gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shuhari.data import Info, Number, Ramp
from shuhari.ports import Evaluate
from shuhari.registry import register


@register("optimiser", "adamw")
@dataclass
class AdamW:
    """AdamW (Loshchilov and Hutter 2019). `clip`: the largest global gradient norm, 0 is off.

    `state`: the count of steps [P] and both moments of every parameter, in the order of `bind`."""

    lr: Number = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: Number = 0.0
    clip: Number = 0.0
    decoupled: ClassVar[bool] = True
    _moments: Any = field(init=False, default=None, repr=False, compare=False)
    _saved: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "clip"):
            value = getattr(self, name)
            if not isinstance(value, Ramp) and value < 0:
                raise ValueError(f"{name} is {value}: expected 0 or more")
        if not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas are {self.betas}: expected numbers in [0, 1)")

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Own these parameters, with moments of zero, or those of a `state` set before; one that was owned already
        keeps its own. Raises ValueError for a parameter that does not lie contiguously in memory: the kernel would read
        it wrongly."""
        old, self._moments = self._moments, _Moments(params)
        if old is not None:
            self._moments.keep(old)
        if self._saved is not None:
            self.state = self._saved

    def step(self, evaluate: Evaluate, at: float) -> Info:
        """One step at count `at` of the schedules: the infos of the loss, `grad_norm` before the clip, `lr`.

        Raises FloatingPointError, with all parameters as they were, where the gradient is not finite."""
        info = dict(evaluate.backward())
        lr = _now(self.lr, at)
        decay, clip = _now(self.weight_decay, at), _now(self.clip, at)
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        norm = self._moments.step(lr, self.betas, self.eps, decay, clip, kernel)
        return {**info, "grad_norm": norm, "lr": lr}

    @property
    def state(self) -> dict[str, Any]:
        return {} if self._moments is None else self._moments.tree()

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        if self._moments is None:
            self._saved = tree or None
        elif tree:
            self._moments.load(tree)
            self._saved = None


@register("optimiser", "adam")
@dataclass
class Adam(AdamW):
    """Adam (Kingma and Ba 2015): as AdamW, but `weight_decay` is an L2 penalty, added to the gradient."""

    decoupled: ClassVar[bool] = False


def _now(number: Number, at: float) -> float:
    return float(number(at)) if isinstance(number, Ramp) else number


class _Moments:
    """The parameters of one optimiser and what Adam remembers of them."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        for i, given in enumerate(params):
            if not given.is_contiguous():
                raise ValueError(
                    f"parameter {i} of shape {tuple(given.shape)} is not contiguous: call .contiguous() on it"
                )
        self.params: list[Tensor] = list(params)
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(p) for p in self.params]
        self.steps: list[Tensor] = [torch.empty(0)] * len(self.params)
        kinds: dict[Any, list[int]] = {}
        for i, p in enumerate(self.params):
            kinds.setdefault((p.device, p.dtype), []).append(i)
        # norms of half-precision gradients are taken in single
        self.precision = torch.float64 if any(t is torch.float64 for _, t in kinds) else torch.float32
        self.groups = []  # what one call of the kernel takes: one device, one type; its counts are views of one tensor
        for (device, _), own in kinds.items():
            counts = torch.zeros(len(own), device=device)
            self.groups.append((own, counts))
            for i, count in zip(own, counts.unbind(), strict=True):
                self.steps[i] = count

    @torch.no_grad()
    def step(self, lr: float, betas: tuple[float, float], eps: float, decay: float, clip: float, kernel: Any) -> float:
        """Take the gradients from the parameters and move these; the global norm of the gradient."""
        live: list[int] = []
        grads: list[Tensor] = []
        for i, p in enumerate(self.params):
            g = p.grad
            if g is not None:
                p.grad = None  # the next step brings its own
                live.append(i)
                # a gradient may be a view (transposed, expanded), and the kernel reads memory in order
                grads.append(g if g.is_contiguous() else g.contiguous())
        if not live:
            return 0.0
        norms = torch._foreach_norm(grads, 2, self.precision)
        if len(self.groups) > 1:
            norms = tuple(n.to(norms[0].device) for n in norms)
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if not norm < float("inf"):
            raise FloatingPointError(f"the gradient is not finite (norm {norm}): no parameter was changed")
        if 0 < clip < norm:
            grads = list(torch._foreach_mul(grads, clip / (norm + 1e-6)))  # not in place: gradients may share memory
        settings = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "weight_decay": decay, "eps": eps}
        settings |= {"amsgrad": False, "maximize": False}
        tensors = self.params, self.mean, self.square, self.steps
        if len(self.groups) == 1 and len(live) == len(self.params):
            self.groups[0][1].add_(1)
            kernel(self.params, grads, self.mean, self.square, [], self.steps, **settings)
            return norm
        of = dict(zip(live, grads, strict=True))
        for own, _ in self.groups:
            due = [i for i in own if i in of]
            if due:
                params, mean, square, steps = ([x[i] for i in due] for x in tensors)
                torch._foreach_add_(steps, 1)
                kernel(params, [of[i] for i in due], mean, square, [], steps, **settings)
        return norm

    @torch.no_grad()
    def keep(self, old: _Moments) -> None:
        """Go on from the moments of another for the parameters that both own."""
        place = {id(p): j for j, p in enumerate(old.params)}
        for i, p in enumerate(self.params):
            j = place.get(id(p))
            if j is not None:
                self.mean[i], self.square[i] = old.mean[j], old.square[j]
                self.steps[i].copy_(old.steps[j])

    def tree(self) -> dict[str, Any]:
        return {
            "steps": torch.stack([s.cpu() for s in self.steps]) if self.steps else torch.zeros(0),
            "mean": {str(i): x for i, x in enumerate(self.mean)},
            "square": {str(i): x for i, x in enumerate(self.square)},
        }

    @torch.no_grad()
    def load(self, tree: dict[str, Any]) -> None:
        n = len(tree["steps"])
        if n != len(self.steps):
            raise ValueError(f"an optimiser's state is of {n} parameters: this one has {len(self.steps)}")
        for i, step in enumerate(self.steps):
            step.copy_(tree["steps"][i])
            for mine, theirs in ((self.mean, tree["mean"]), (self.square, tree["square"])):
                if mine[i].shape != theirs[str(i)].shape:
                    shapes = f"{tuple(theirs[str(i)].shape)}: expected {tuple(mine[i].shape)}"
                    raise ValueError(f"an optimiser's state has parameter {i} of shape {shapes}")
                mine[i].copy_(theirs[str(i)])
