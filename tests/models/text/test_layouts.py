"""The lean forward against transformers' own, over tiny models of each layout."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from shuhari.models.text import layouts
from shuhari.models.text.fused import rms_norm, rotate
from shuhari.models.text.layouts import Lean, Unknown, lean_of
from shuhari.models.text.lora import Lora, adapt

V = 23
SMALL = {
    "vocab_size": V, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "intermediate_size": 20, "max_position_embeddings": 32,
}  # fmt: skip
CASES = {
    "padding": ("llama", {"pad_token_id": 12}),  # whose embedding takes no gradient
    "llama": ("llama", {}),
    "llama, biases, untied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "llama, tied, all heads": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, angles of llama 3": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8}},
    ),
    "llama, yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                  "original_max_position_embeddings": 8}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, a wide window": ("mistral", {"sliding_window": 32}),
    "qwen2": ("qwen2", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied, biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "gemma": ("gemma", {}),
    "gemma, silu, untied": ("gemma", {"hidden_act": "silu", "tie_word_embeddings": False}),
    "gpt2": ("gpt2", {}),
    "gpt2, untied, relu, inner": ("gpt2", {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": 10}),
    "gpt2, unscaled": ("gpt2", {"scale_attn_weights": False}),
}  # fmt: skip


def made(kind: str, more: dict) -> torch.nn.Module:
    """A tiny model whose every parameter, also norms and biases, is random."""
    sizes = {"vocab_size": V, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 32} if kind == "gpt2" else SMALL
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **more})).eval()
        for p in lm.parameters():
            torch.nn.init.normal_(p, 0.5 if p.dim() == 1 else 0.0, 0.4)
    return lm


def causal(lengths: list[int], scale: float):
    """Attention within each of several rows, one after the other, with the softmax written out."""

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = []
        for a, b, c in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            b, c = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (b, c))
            score = torch.einsum("qhd,khd->hqk", a, b) * scale
            score = score.masked_fill(torch.ones(score.shape[1:]).triu(1).bool(), -torch.inf)
            out.append(torch.einsum("hqk,khd->qhd", score.softmax(-1), c))
        return torch.cat(out)

    return attend


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_transformers(case) -> None:
    lm, lengths = made(*CASES[case]), [5, 1, 9]
    lean = Lean(lm)
    ids = torch.randint(0, V, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(n) for n in lengths])
    want = torch.cat([lm(input_ids=row[None]).logits[0] for row in ids.split(lengths)])
    attend = causal(lengths, lean.scale)
    for w in (lean.live(), lean.frozen()):
        got = lean.logits(w, lean.hidden(w, ids, positions, attend))
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad((want * weight).sum(), list(lm.parameters()))
    for recompute in (False, True):
        w = lean.live()
        logits = lean.logits(w, lean.hidden(w, ids, positions, attend, recompute=recompute))
        found = torch.autograd.grad((logits * weight).sum(), list(lm.parameters()))
        for a, b in zip(found, expected, strict=True):
            # sums in another order, which the processor decides: their rounding is that of the largest summands
            torch.testing.assert_close(a, b, atol=1e-4 * max(1.0, float(b.abs().max())), rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_some_tokens_are_the_same_tokens_of_all(kind) -> None:
    lean = Lean(made(kind, {}))
    w, ids, keep = lean.live(), torch.arange(9), torch.tensor([8, 2, 3])
    attend = causal([4, 5], lean.scale)
    whole = lean.hidden(w, ids, ids % 5, attend)
    torch.testing.assert_close(lean.hidden(w, ids, ids % 5, attend, keep), whole[keep])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_frozen_weights_are_a_copy_of_their_own_type(kind) -> None:
    lm = made(kind, {})
    lean = Lean(lm)
    kept, half = lean.frozen(), lean.frozen(torch.bfloat16)
    ids, attend = torch.arange(5), causal([5], lean.scale)
    before = lean.logits(kept, lean.hidden(kept, ids, ids, attend))
    rough = lean.logits(half, lean.hidden(half, ids, ids, attend))
    assert half.tokens.dtype == torch.bfloat16 and rough.dtype == torch.float32
    torch.testing.assert_close(rough, before, atol=0.05 * float(before.detach().abs().max()), rtol=0)
    with torch.no_grad():
        for p in lm.parameters():
            p.zero_()
    assert torch.equal(lean.logits(kept, lean.hidden(kept, ids, ids, attend)), before)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_tied_head_is_copied_once(kind, dtype, tied) -> None:
    lm = made(kind, {"tie_word_embeddings": tied})
    for w in (Lean(lm).live(dtype), Lean(lm).frozen(dtype)):
        assert (w.head[0].data_ptr() == w.tokens.data_ptr()) == tied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma", "gpt2"])
def test_weights_of_half_precision_are_known(kind, dtype) -> None:
    lean = Lean(made(kind, {}).to(dtype))
    assert lean.frozen().head[0].dtype == lean.live().head[0].dtype == dtype
    with torch.no_grad():
        lean._blocks[0].mlp.register_forward_hook(lambda module, args, out: out * 1.5)  # another model
    with pytest.raises(Unknown, match="differ"):
        Lean(lean.lm)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_are_run_live_and_merged_when_frozen(kind) -> None:
    pytest.importorskip("peft")
    lm = made(kind, {})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapt(lm, Lora(rank=2))
        for name, p in lm.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p)
    lean, ids = Lean(lm), torch.arange(7)
    want = lm(input_ids=ids[None]).logits[0]
    for w in (lean.live(), lean.frozen()):
        got = lean.logits(w, lean.hidden(w, ids, ids, causal([7], lean.scale)))
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    params = [p for p in lm.parameters() if p.requires_grad]
    w = lean.live()
    got = lean.logits(w, lean.hidden(w, ids, ids, causal([7], lean.scale)))
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), params) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("mistral", {"sliding_window": 8}, "8 tokens, and rows may have 32"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
                   "num_attention_heads": 2, "num_key_value_heads": 1}, "looks back 8"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}}, "dynamic"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "differently"),
        ("gpt2", {"add_cross_attention": True}, "second row"),
        ("gemma2", {}, "gemma2"),
        ("gpt_neox", {}, "gpt_neox"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_with_the_reason(kind, more, why) -> None:
    lm = made(kind, more)
    with pytest.raises(Unknown, match=why):
        Lean(lm)
    assert lean_of(lm) is None


def test_a_window_that_no_row_outgrows_is_none() -> None:
    assert lean_of(made("mistral", {"sliding_window": 8}), limit=8) is not None


def test_a_forward_that_differs_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(layouts, "rotate", lambda x, cos, sin: x)
    assert lean_of(made("llama", {})) is None
    monkeypatch.undo()
    lm = made("llama", {})
    lm.model.layers[0].register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(Unknown, match="differ"):
        Lean(lm)


def test_the_pieces_have_the_gradient_that_they_say() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, generator=g, dtype=torch.float64, requires_grad=True)
    angle = torch.randn(3, 1, 2, generator=g, dtype=torch.float64)
    torch.testing.assert_close(rms_norm(x, w, 1e-3), F.rms_norm(x, (4,), w, 1e-3))
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-3), (x, w))
    narrow = [x.detach().bfloat16().requires_grad_(), w.detach().float().requires_grad_()]  # as of queries in bfloat16
    wide = [t.detach().double().requires_grad_() for t in narrow]
    for a, b in zip(*(torch.autograd.grad(rms_norm(x, w, 1e-3).sum(), (x, w)) for x, w in (narrow, wide)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0.03, atol=0.03)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angle.cos(), angle.sin()), (x,))
    turned = torch.view_as_complex(torch.stack(x.detach().chunk(2, -1), -1)) * torch.polar(
        torch.ones_like(angle), angle
    )
    torch.testing.assert_close(rotate(x, angle.cos(), angle.sin()), torch.cat((turned.real, turned.imag), -1))
