"""Pieces of a transformer as single autograd functions: fewer passes over memory, fewer tensors kept for the gradient.

Left out: second derivatives, which raise an error.

Axes: `N` tokens, `n` decisions, `h` heads, `d` width of a head, `D` features, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Restrict = Callable[[Tensor, slice], Tensor]  # (logits [n', V] of some decisions, their slice) -> the restricted logits
IMPOSSIBLE = -1e29  # logits and log-probabilities of excluded ids lie below


class _RmsNorm(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean x^2 + eps); keeps x and r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        r = r.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, r = ctx.saved_tensors
        unit = x * r
        gu = g * unit
        dw = gu.flatten(0, -2).sum(0, dtype=weight.dtype) if ctx.needs_input_grad[1] else None
        mean = (gu @ weight.to(gu.dtype))[..., None].div_(x.shape[-1])
        return (g * weight).addcmul_(unit, mean, value=-1).mul_(r), dw, None


class _Rotate(torch.autograd.Function):
    """Maps halves (a, b) of each head -> (a cos - b sin, b cos + a sin). The gradient rotates back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _turn(g, cos, sin, -1), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.mul(a, cos, out=out[..., :half]).addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=out[..., half:]).addcmul_(a, sin, value=sign)
    return out


class _Taken(torch.autograd.Function):
    """log softmax(h W + b)[action] in chunks of decisions, one at a time. Probabilities are kept if there is one chunk.
    For several chunks, if only h has a gradient (the head is frozen, as with adapters), the gradient of each decision
    is kept, [n, D]; else a chunk is recomputed for its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        action: Tensor,
        restrict: Restrict,
        scale: Tensor | None,
        chunk: int,
        grad: bool,
    ) -> Tensor:
        n = len(hidden)
        graded = grad and any(ctx.needs_input_grad[:3])  # which is also True without gradients
        out = torch.empty(n, dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        alone = graded and n > chunk and not any(ctx.needs_input_grad[1:3])
        slope = torch.empty_like(hidden) if alone else None  # [n, D] of each decision, for an upstream gradient of 1
        kept, moves = None, torch.empty(n, dtype=torch.bool, device=hidden.device)
        for first in range(0, n, chunk):
            s = slice(first, first + chunk)
            z = _scores(hidden, weight, bias, scale, restrict, s)
            total = z.logsumexp(-1, keepdim=True)
            torch.sub(z.gather(1, action[s, None]), total, out=out[s, None])
            moves[s] = (out[s] >= IMPOSSIBLE) & (total[:, 0] >= IMPOSSIBLE)
            if graded and n <= chunk:
                kept = z.sub_(total).exp_()
            if slope is not None:
                p = z.sub_(total).exp_().neg_()
                p.scatter_add_(1, action[s, None], torch.ones_like(total))
                p = (p if scale is None else p.mul_(scale[s])).to(hidden.dtype)
                torch.mm(p, weight, out=slope[s])
        ctx.restrict, ctx.chunk = restrict, chunk
        ctx.save_for_backward(hidden, weight, bias, action, scale, moves, kept, slope)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        hidden, weight, bias, action, scale, moves, kept, slope = ctx.saved_tensors
        if slope is not None:
            up = g.masked_fill(~moves, 0)[:, None].to(slope.dtype)
            return slope * up, None, None, None, None, None, None, None
        needs = ctx.needs_input_grad
        dh = torch.empty_like(hidden) if needs[0] else None
        dw = torch.zeros_like(weight) if needs[1] else None
        db = torch.zeros_like(bias) if bias is not None and needs[2] else None
        for first in range(0, len(hidden), ctx.chunk):
            s = slice(first, first + ctx.chunk)
            up = g[s, None].masked_fill(~moves[s, None], 0)  # the token, or all of them, excluded: a constant
            if kept is None:
                z = _scores(hidden, weight, bias, scale, ctx.restrict, s)
                p = z.sub_(z.logsumexp(-1, keepdim=True)).exp_().mul_(-up)
            else:
                p = kept * -up
            p.scatter_add_(1, action[s, None], up)
            p = (p if scale is None else p.mul_(scale[s])).to(hidden.dtype)
            if dh is not None:
                torch.mm(p, weight, out=dh[s])
            if dw is not None:
                dw.addmm_(p.t(), hidden[s])
            if db is not None:
                db += p.sum(0)
        return dh, dw, db, None, None, None, None, None


def _scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, restrict: Restrict, s: slice
) -> Tensor:
    z = F.linear(hidden[s], weight, bias)
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return restrict(z if scale is None else z.mul_(scale[s]), s)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x [..., D] over its root mean square, times weight [D] (Zhang & Sennrich 2019, arXiv 1910.07467, equation
    4)."""
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions (Su et al. 2021, arXiv 2104.09864) to x [N, h, d] with cos and sin [N, 1, d / 2]; a pair
    is an entry of the first half and the same entry of the second."""
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]


def taken_log_prob(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    action: Tensor,
    restrict: Restrict,
    scale: Tensor | None,
    chunk: int,
) -> Tensor:
    """Returns [n] log softmax(scale (hidden W + b))[action] for hidden [n, D], weight [V, D], action [n]. `scale` [n,
    1] multiplies the logits (1 / temperature). `restrict` may set logits to a constant, in place."""
    grad = torch.is_grad_enabled()  # which cannot be read inside a function
    return _Taken.apply(hidden, weight, bias, action, restrict, scale, chunk, grad)  # type: ignore[no-untyped-call]
