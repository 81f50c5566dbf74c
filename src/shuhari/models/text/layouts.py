"""A lean forward over the weights of a Hugging Face model, on packed tokens: no padding, no masks, no cache objects.

Supports the layouts llama, mistral, qwen2, qwen3, gemma and gpt2, with causal attention over all earlier tokens. Left
out: windows that rows outgrow, capped attention scores, rotary angles that change with the length, quantised weights.
Anything not known exactly is refused with the reason, and the forward is compared with the model's own logits once,
when it is made.

Axes: `N` tokens, `n` requested tokens, `H` heads, `G` key-value heads, `d` width of a head, `D` hidden, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shuhari.models.text.fused import rms_norm, rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q [N, H, d], k [N, G, d], v [N, G, d]) -> [N, H, d]
Norm = tuple[Tensor, Tensor | None]  # weight and bias [D]; without a bias it is an RMS norm

LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma")
STILL = ("default", "linear", "llama3", "yarn")  # kinds of rotary angles that depend on the position only
CLOSE = 1e-3  # largest distance to the model's own logits, as a share of the largest; float32


class Unknown(ValueError):
    """A model that the lean forward does not support, with the reason."""


class Linear(NamedTuple):
    """weight [out, in], bias [out], and low-rank `adapters` (A [r, in], B [out, r], scale), which add scale B A x."""

    weight: Tensor
    bias: Tensor | None = None
    adapters: tuple[tuple[Tensor, Tensor, float], ...] = ()


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of one layer. `qkv` and `up` hold several linear layers, or all of them in one."""

    before: Norm
    qkv: tuple[Linear, ...]
    of_q: Tensor | None  # [d] norms of queries and keys
    of_k: Tensor | None
    out: Linear
    between: Norm
    up: tuple[Linear, ...]  # gate and up, or one
    down: Linear


@dataclass(frozen=True, eq=False)
class Passing:
    """`count` layers, each made when a forward reaches it and freed afterwards: for one forward."""

    count: int
    layers: Iterator[Layer]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Layer]:
        return self.layers


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a whole model."""

    tokens: Tensor  # [V, D]
    places: Tensor | None  # [positions, D]
    layers: Sequence[Layer] | Passing
    last: Norm
    head: Linear


def lean_of(lm: Any, limit: int | None = None) -> Lean | None:
    """Returns the lean forward of a Hugging Face model, or None; `Lean(lm)` raises with the reason. `limit`: the
    longest row in tokens (None: the limit of the model's configuration)."""
    try:
        return Lean(lm, limit)
    except Unknown:
        return None


class Lean:
    """The lean forward. `layers`, `heads` H, `kv_heads` G, `width` d, `scale` of the scores. Raises Unknown. `sure`:
    its numbers were already compared with the model's.

    `live()` are the parameters themselves, with gradients; `frozen(dtype)` is a detached copy with adapters merged and
    linear layers of one input joined, for sampling.
    """

    def __init__(self, lm: Any, limit: int | None = None, *, sure: bool = False) -> None:
        config = lm.config
        self.kind = kind = str(config.model_type)
        if kind != "gpt2" and kind not in LLAMAS:
            raise Unknown(f"no lean forward for layout {kind!r}")
        if not type(lm).__module__.startswith(f"transformers.models.{kind}."):
            raise Unknown(f"{type(lm).__name__} is not the {kind!r} of transformers")
        self.lm, self._base = lm, lm.base_model
        self._blocks = list(self._base.h if kind == "gpt2" else self._base.layers)
        self.layers = len(self._blocks)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(getattr(config, "num_key_value_heads", None) or self.heads)
        limit = int(limit or config.max_position_embeddings)
        first = self._blocks[0].attn if kind == "gpt2" else self._blocks[0].self_attn
        self.width, self.scale = int(first.head_dim), float(first.scaling)
        self.stretch, self.cap = logit_shaping(config)
        if kind != "gpt2":
            _check_rotary(self._base.rotary_emb, self.width)
        for block in self._blocks:
            _check_attention(block, config, self.scale, limit)
        mlp = self._blocks[0].mlp
        self._act = _activation(mlp.act if kind == "gpt2" else mlp.act_fn)
        self._gated = kind != "gpt2"
        self._shift = 1.0 if kind == "gemma" else 0.0  # its norms multiply by 1 + weight
        last = self._base.ln_f if kind == "gpt2" else self._base.norm
        self._padding = self._base.get_input_embeddings().padding_idx  # its embedding takes no gradient
        self.eps = float(getattr(last, "variance_epsilon", None) or last.eps)
        if not sure:
            self._check()

    # ---------------------------------------------------------------- weights

    def live(self, dtype: torch.dtype | None = None) -> Weights:
        """Returns the parameters themselves, with adapters beside them. `dtype`: the type in which the linear layers
        except the head compute, including adapters, with a gradient in the parameters' own."""
        one = partial(_live, dtype=dtype)
        return self._weights(one, lambda layers: tuple(map(one, layers)))

    def frozen(self, dtype: torch.dtype | None = None, *, passing: bool = False) -> Weights:
        """Returns a detached copy [in this dtype], which later optimiser steps do not change. `passing`: the
        copy serves one forward pass only; each layer is copied when the pass reaches it and freed after it."""
        kept: Any = partial(Passing, self.layers) if passing else tuple

        def one(x: Tensor) -> Tensor:
            return x.detach().to(dtype or x.dtype, copy=True).contiguous()

        def joined(layers: Sequence[nn.Module]) -> tuple[Linear, ...]:
            found = [_merged_weights(x) for x in layers]
            biases = [b for _, b in found if b is not None]
            return (Linear(one(torch.cat([w for w, _ in found])), one(torch.cat(biases)) if biases else None),)

        with torch.no_grad():
            return self._weights(lambda x: joined([x])[0], joined, one, kept)

    def _weights(
        self,
        linear: Callable[[nn.Module], Linear],
        joined: Callable[[Sequence[nn.Module]], tuple[Linear, ...]],
        tensor: Callable[[Tensor], Tensor] = lambda x: x,
        kept: Callable[[Any], Any] = tuple,
    ) -> Weights:
        def norm(m: Any) -> Norm:
            bias = getattr(m, "bias", None)
            return tensor(m.weight + self._shift if self._shift else m.weight), None if bias is None else tensor(bias)

        def head_norm(m: Any) -> Tensor | None:
            return None if m is None else tensor(m.weight)

        base = self._base
        tokens = tensor(embedding := base.get_input_embeddings().weight)
        weight, bias = _merged_weights(self.lm.get_output_embeddings())
        head = Linear(tokens if weight is embedding else tensor(weight), None if bias is None else tensor(bias))
        if self.kind == "gpt2":
            layers = kept(
                Layer(norm(b.ln_1), joined([b.attn.c_attn]), None, None, linear(b.attn.c_proj), norm(b.ln_2),
                      joined([b.mlp.c_fc]), linear(b.mlp.c_proj))
                for b in self._blocks
            )  # fmt: skip
            return Weights(tokens, tensor(base.wpe.weight), layers, norm(base.ln_f),
                           head)  # fmt: skip
        layers = kept(
            Layer(norm(b.input_layernorm), joined([a.q_proj, a.k_proj, a.v_proj]),
                  head_norm(getattr(a, "q_norm", None)), head_norm(getattr(a, "k_norm", None)), linear(a.o_proj),
                  norm(b.post_attention_layernorm), joined([b.mlp.gate_proj, b.mlp.up_proj]), linear(b.mlp.down_proj))
            for b in self._blocks
            for a in (b.self_attn,)
        )  # fmt: skip
        return Weights(tokens, None, layers, norm(base.norm), head)

    # ---------------------------------------------------------------- the forward

    def hidden(
        self,
        w: Weights,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        keep: Tensor | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Maps ids [N] at positions [N] -> [N, D] after the last norm. `keep` [n]: the requested tokens, for a result
        [n, D]. `recompute`: keep only the input of a layer, and run it again for the gradient."""
        x = F.embedding(ids, w.tokens, self._padding)
        if self.kind == "gemma":
            x = x * self._base.embed_tokens.embed_scale.to(x.dtype)
        turn: tuple[Tensor, ...] | None = None
        if w.places is not None:
            x = x + F.embedding(positions, w.places)
        else:
            rotary = self._base.rotary_emb
            angles = (positions[:, None].float() * rotary.inv_freq.float())[:, None]
            turn = tuple((f(angles) * rotary.attention_scaling).to(x.dtype) for f in (torch.cos, torch.sin))
        for i, layer in enumerate(w.layers):
            some = keep if i + 1 == len(w.layers) else None
            if recompute and torch.is_grad_enabled():
                x = checkpoint(
                    self._layer, i, layer, x, turn, attend, some, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x = self._layer(i, layer, x, turn, attend, some)
        return self._norm(x, w.last)

    def logits(self, w: Weights, hidden: Tensor) -> Tensor:
        """Maps [n, D] -> [n, V] float32."""
        return cap_logits(_apply(w.head, hidden).float(), self.stretch, self.cap)

    def _layer(
        self, i: int, w: Layer, x: Tensor, turn: tuple[Tensor, ...] | None, attend: Attend, keep: Tensor | None
    ) -> Tensor:
        N, H, G, d = len(x), self.heads, self.kv_heads, self.width
        y = self._norm(x, w.before)
        parts = [_apply(layer, y) for layer in w.qkv]
        if len(parts) == 1:
            qk, v = parts[0].view(N, H + 2 * G, d).split((H + G, G), 1)
            if w.of_q is None and turn is not None:
                qk = rotate(qk, *turn)
            q, k = qk.split((H, G), 1)
        else:
            q, k, v = (p.view(N, -1, d) for p in parts)
        if w.of_q is not None and w.of_k is not None:
            q, k = rms_norm(q, w.of_q, self.eps), rms_norm(k, w.of_k, self.eps)
        if turn is not None and (w.of_q is not None or len(parts) > 1):
            q, k = rotate(q, *turn), rotate(k, *turn)
        y = attend(i, q, k, v).reshape(N, H * d)
        if keep is not None:
            x, y = x[keep], y[keep]
        x = x + _apply(w.out, y)
        parts = [_apply(layer, self._norm(x, w.between)) for layer in w.up]
        if self._gated:
            gate, up = parts[0].chunk(2, -1) if len(parts) == 1 else parts
            return x + _apply(w.down, self._act(gate) * up)
        return x + _apply(w.down, self._act(parts[0]))

    def _norm(self, x: Tensor, w: Norm) -> Tensor:
        weight, bias = w
        return rms_norm(x, weight, self.eps) if bias is None else F.layer_norm(x, weight.shape, weight, bias, self.eps)

    @torch.no_grad()
    def _check(self) -> None:
        """Compares two packed rows with the model's own logits."""
        T = min(7, int(self.lm.config.max_position_embeddings))
        vocabulary = self._base.get_input_embeddings().weight.shape[0]
        ids = torch.arange(2 * T, device=self.lm.device).mul(7).remainder(vocabulary)
        positions = torch.arange(T, device=ids.device).repeat(2)

        def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.unflatten(0, (2, T)).transpose(1, 2) for t in (q, k, v))
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads
            )
            return out.transpose(1, 2).flatten(0, 1)

        want = self.lm(input_ids=ids.view(2, T), use_cache=False).logits.flatten(0, 1).float()
        for w in (self.live(), self.frozen(passing=True)):
            got = self.logits(w, self.hidden(w, ids, positions, attend))
            off = float((want - got).abs().max() / want.abs().max().clamp(min=1e-30))
            if not off <= tolerance(self.lm.dtype):
                raise Unknown(f"its logits differ from the lean ones by {off:.2g} of the largest")


def tolerance(dtype: torch.dtype) -> float:
    """Returns the largest difference between two ways to compute in this type: CLOSE, or a few roundings if that is
    more."""
    return max(CLOSE, 8 * torch.finfo(dtype).eps)


def logit_shaping(config: Any) -> tuple[float, float | None]:
    """Returns the model's logit scaling and soft cap, as arguments of `cap_logits`."""
    stretch = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    return stretch, getattr(config, "final_logit_softcapping", None)


def cap_logits(x: Tensor, stretch: float, cap: float | None) -> Tensor:
    """Returns logits [n, V] times `stretch`, softly capped to +- `cap`."""
    x = x if stretch == 1 else x * stretch
    return x if cap is None else cap * torch.tanh(x / cap)


def _apply(w: Linear, x: Tensor) -> Tensor:
    x = x.to(w.weight.dtype)
    y = F.linear(x, w.weight, w.bias)
    for a, b, scale in w.adapters:
        y = y + F.linear(F.linear(x, a), b) * scale
    return y


def _live(layer: Any, dtype: torch.dtype | None = None) -> Linear:
    """Returns the parameters of a linear layer, and of its adapters."""

    def one(x: Tensor) -> Tensor:
        return x if dtype is None else x.to(dtype)

    weight, bias = _merged_weights(getattr(layer, "base_layer", layer))
    names = layer.active_adapters if hasattr(layer, "base_layer") and not layer.merged else ()
    adapters = ((layer.lora_A[n].weight, layer.lora_B[n].weight, layer.scaling[n]) for n in names)
    low = tuple((one(a), one(b), float(scale)) for a, b, scale in adapters)
    return Linear(one(weight), None if bias is None else one(bias), low)


def _merged_weights(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Returns weight [out, in] and bias of a linear layer, with its adapters added. Raises Unknown for another
    module."""
    from transformers.pytorch_utils import Conv1D

    extra = None
    if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer"):
        if not layer.merged:
            extra = sum(layer.get_delta_weight(name) for name in layer.active_adapters)
        layer = layer.base_layer
    if type(layer) is not nn.Linear and type(layer) is not Conv1D:
        raise Unknown(f"a linear layer of type {type(layer).__name__}")
    weight = layer.weight if extra is None else layer.weight + extra
    return weight.t() if type(layer) is Conv1D else weight, layer.bias


def _check_attention(block: Any, config: Any, scale: float, limit: int) -> None:
    """Raises Unknown for attention that is not plain causal attention over rows of up to `limit` tokens."""
    attn = block.attn if hasattr(block, "attn") else block.self_attn
    if float(attn.scaling) != scale:
        raise Unknown("its layers scale attention differently")
    if not attn.is_causal or hasattr(block, "crossattention"):
        raise Unknown("its attention is not causal, or looks at a second row")
    window = getattr(attn, "sliding_window", None)
    window = getattr(config, "sliding_window", None) if config.model_type == "mistral" else window
    if window is not None and window < limit:
        raise Unknown(f"its attention looks back {window} tokens, and rows may have {limit}")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise Unknown("its attention caps the scores")


def _check_rotary(rotary: Any, width: int) -> None:
    """Raises Unknown for rotary angles that do not depend on the position alone, or not for whole heads."""
    if rotary.rope_type not in STILL:
        raise Unknown(f"rotary angles of kind {rotary.rope_type!r}")
    if 2 * rotary.inv_freq.numel() != width:
        raise Unknown("its rotary angles are for a part of each head")


def _activation(module: Any) -> Callable[[Tensor], Tensor]:
    """Returns the fastest equivalent function of an activation module; an unknown module itself."""
    name = type(module).__name__
    if name == "NewGELUActivation":
        return partial(F.gelu, approximate="tanh")
    found: Callable[[Tensor], Tensor] = {"SiLUActivation": F.silu, "SiLU": F.silu}.get(name, module)
    return found
