"""Steps within a trust region, under a constraint: TRPO, CPO and PCPO, on the terms of a part.

Leaves out several constraints. Axes: `P` parameters, flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from shuhari.bounds import AtLeast0, Bounds, Length, Positive, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.ports import Evaluate

TINY = 1e-3  # smallest multiplier of the trust region, as a share of TRPO's: below it, all is rounding
Product = Callable[[Tensor], Tensor]


@register("optimiser", "trust_region")
@dataclass
class TrustRegion:
    """TRPO, CPO and PCPO: natural gradient steps within a KL trust region, under a cost constraint.

    theta + x, x the best step of the linearised loss with x'Hx / 2 <= `bound` under c + b'x <= 0. The part's term `kl`
    is the divergence from the sampling policy, with Hessian H; `cost` is the excess over a limit, c with gradient b;
    the loss is the sum of all others. `trpo` is Schulman et al. 2015, "Trust Region Policy Optimization"; `cpo` Achiam
    et al. 2017, "Constrained Policy Optimization", equations 11 to 14; `pcpo` TRPO's step, then projected onto the
    constraint in the metric H (Yang et al. 2020, "Projection-Based Constrained Policy Optimization"). A line search
    shortens x until the KL is within the bound, the cost at most 0 or its previous value, and, if the cost was not
    above 0, the loss no higher; otherwise nothing changes.

    Reports `kl` after the step, `search` (how often it was shortened; `tries` if every length failed), `gain`, the
    decrease of the loss, and, but for `trpo`, `bent`: 1 if the constraint changed the step from TRPO's, else 0.
    """

    method: Literal["trpo", "cpo", "pcpo"] = "cpo"
    """Kind of step: `trpo` (no constraint), `cpo`, or `pcpo` (TRPO's step projected onto the constraint)."""
    bound: Positive = 0.01
    """Largest KL from the old policy in one step, in nats; it sets the step size in place of a learning rate."""
    damping: AtLeast0 = 0.1
    """Number added to the diagonal of the Hessian of the KL; larger stabilises the solution and shortens steps."""
    iterations: Length = 10
    """Iterations of conjugate gradients that solve for the step."""
    shrink: Annotated[float, Bounds(0, 1, open="both")] = 0.8
    """Factor in (0, 1) by which the line search shortens a step."""
    tries: Length = 15
    """Number of lengths that the line search tries before it leaves the policy unchanged."""

    def __post_init__(self) -> None:
        check(self)
        self._params: list[nn.Parameter] = []

    @property
    def terms(self) -> dict[str, bool]:
        """The terms that it treats by name, and whether the part must have them; all others are the loss."""
        return {"kl": True, "cost": self.method != "trpo"}

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        self._params = list(params)

    def step(self, evaluate: Evaluate, at: float) -> Info:
        """Runs one step; see the class. Raises FloatingPointError, without changing any parameter, for values that are
        not finite."""
        info, before = dict(evaluate.backward()), evaluate.values()
        for p in self._params:
            p.grad = None
        gradients = evaluate.gradients()
        g = -torch.stack([x for name, x in gradients.items() if name not in self.terms]).sum(0)

        def curvature(v: Tensor) -> Tensor:
            return evaluate.hvp("kl", v) + self.damping * v

        v = solve(curvature, g, self.iterations)
        x = free = step_trpo(g, v, self.bound)
        if self.method != "trpo":
            b, step = gradients["cost"], step_cpo if self.method == "cpo" else step_pcpo
            w = solve(curvature, b, self.iterations)
            if float(b @ w) > 0:  # otherwise no step changes the cost
                x = step(g, b, before["cost"], v, w, self.bound)
            info["bent"] = float(not torch.allclose(x, free))
        if not bool(x.isfinite().all()):
            raise FloatingPointError("the step is not finite: no parameter was changed")
        return {**info, **self._search(evaluate, before, x)}

    def _search(self, evaluate: Evaluate, before: dict[str, float], x: Tensor) -> Info:
        """Moves by the first of x, shrink x, ... that satisfies all conditions."""
        start = nn.utils.parameters_to_vector(self._params).detach()
        cost = before.get("cost", 0.0)
        for i in range(self.tries):
            self._place(start + self.shrink**i * x)
            now = evaluate.values()
            gain = sum(before[name] - now[name] for name in now if name not in self.terms)
            within = now["kl"] <= self.bound and now.get("cost", 0.0) <= max(cost, 0.0)
            if within and (cost > 0 or gain >= 0):
                return {"kl": now["kl"], "search": float(i), "gain": gain}
        self._place(start)
        return {"kl": before["kl"], "search": float(self.tries), "gain": 0.0}

    @torch.no_grad()
    def _place(self, theta: Tensor) -> None:
        for p, x in zip(self._params, theta.split([p.numel() for p in self._params]), strict=True):
            p.copy_(x.view_as(p))


def solve(product: Product, b: Tensor, iterations: int) -> Tensor:
    """Returns [P] x with product(x) = b, by conjugate gradients (Hestenes and Stiefel 1952)."""
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r @ r
    solved = float(rr) * (10 * torch.finfo(b.dtype).eps) ** 2
    for _ in range(iterations):
        if float(rr) <= solved:
            break
        z = product(p)
        alpha = rr / (p @ z)
        x, r = x + alpha * p, r - alpha * z
        new = r @ r
        p, rr = r + new / rr * p, new
    return x


def step_trpo(g: Tensor, v: Tensor, bound: float) -> Tensor:
    """Returns [P] the step to the edge of the trust region; v = H^-1 g."""
    q = float(g @ v)
    return torch.zeros_like(v) if q <= 0 else math.sqrt(2 * bound / q) * v


def step_pcpo(g: Tensor, b: Tensor, c: float, v: Tensor, w: Tensor, bound: float) -> Tensor:
    """Returns TRPO's step, projected to the feasible side of c + b'x = 0; w = H^-1 b."""
    x = step_trpo(g, v, bound)
    return x - max(0.0, (float(b @ x) + c) / float(b @ w)) * w


def step_cpo(g: Tensor, b: Tensor, c: float, v: Tensor, w: Tensor, bound: float) -> Tensor:
    """Returns the best step in the trust region with c + b'x <= 0; if there is none, the one that lowers the cost
    most."""
    q, r, s = max(float(g @ v), 0.0), float(g @ w), float(b @ w)
    A, B = max(q - r**2 / s, 0.0), 2 * bound - c**2 / s
    if B < 0:  # the constraint's plane misses the trust region: all of it satisfies the limit, or none
        return step_trpo(g, v, bound) if c < 0 else -math.sqrt(2 * bound / s) * w
    # the dual in lambda: if lambda c + r > 0 the constraint binds, elsewhere it is TRPO's (their equation 12)
    edge = max(-r / c, 0.0) if c else math.inf if r > 0 else 0.0
    bound_at = (0.0, edge) if c <= 0 else (edge, math.inf)
    free_at = (edge, math.inf) if c <= 0 else (0.0, edge)
    trpo = math.sqrt(q / (2 * bound))
    least = TINY * trpo or 1.0
    binding = max(least, _clamp(math.sqrt(A / max(B, TINY**2 * bound)), bound_at))
    free = max(least, _clamp(trpo, free_at))
    at_binding = (A / binding + B * binding) / 2 - r * c / s
    at_free = (q / free + 2 * bound * free) / 2
    if at_binding <= at_free and bound_at[0] < bound_at[1]:
        price = max(0.0, (binding * c + r) / s)
        return (v - price * w) / binding
    return v / free


def _clamp(x: float, ends: tuple[float, float]) -> float:
    return min(max(x, ends[0]), ends[1])
