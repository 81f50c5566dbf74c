"""Adapters against their algebra: nothing at first, a low-rank change of each layer after, and the base as it was."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shuhari
from shuhari.config.recipe import load
from shuhari.config.settings import Settings
from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.loop.run import loop, open_run
from shuhari.models.text.causal import Causal
from shuhari.models.text.lora import Lora
from shuhari.store import Run
from shuhari.store.codec import dumps

pytest.importorskip("peft")
TASK = SimpleNamespace(alphabet="abcdef")
SIZES: dict[str, Any] = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 24, "context": 32}
IDS = torch.tensor([[2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2]])
RECIPE = """
steps = 4
threads = 1
task = {name = "arithmetic", kind = "carry", digits = 1}
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16, LORA}
models.reference.init = "policy"
rollout = {n = 4, sampling.max_new = 3}
buffer = {use = "mixture", buffers.rl = {use = "fresh", size = 3}, buffers.ce = {use = "demos", size = 4}}
collect.advantage.scale = "batch"
part.policy.terms = {loss = {use = "clip"}, divergence = {}, nll = {stream = "ce"}}
part.policy.optimiser = {lr = 1e-2, weight_decay = 0.1}
evaluate = {every = 2, n = 4}
store = {every = 1, keep = 9}
"""
LORA = "lora = {rank = 2, alpha = 4}"


def made(lora: Lora | None = None, **fields: Any) -> Causal:
    """A model, whose adapters say something where there are any."""
    model = Causal(**{**SIZES, **fields}, lora=lora)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(TASK)
    return model


def filled(model: Causal) -> Causal:
    """With B no longer 0."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.module.named_parameters():
            if ".lora_B" in name:
                p += 0.3 * torch.randn(p.shape, generator=g)
    return model


def logits(model: Causal) -> torch.Tensor:
    return model.module.logits(model.module.hidden(IDS))


def base_of(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights without adapters, by the names that they have without."""
    return {k.replace(".base_layer", ""): v for k, v in weights.items() if ".lora_" not in k}


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gpt_neox"])
@torch.no_grad()
def test_adapters_say_nothing_at_first_and_are_a_low_rank_change_of_the_weights(architecture: str) -> None:
    """W' = W + (alpha / rank) B A, written by hand into the model without adapters, gives the same logits."""
    plain, model = made(architecture=architecture), made(Lora(rank=3, alpha=6.0), architecture=architecture)
    own = model.module.state_dict()
    base = base_of(dict(own))
    assert base.keys() == plain.module.state_dict().keys()
    plain.module.load_state_dict(base)
    assert torch.equal(logits(model), logits(plain))
    filled(model)
    assert float((logits(model) - logits(plain)).abs().max()) > 0.01
    own, layers = model.module.state_dict(), 0
    for name in [k for k in own if k.endswith(".lora_A.default.weight")]:
        change = 2.0 * own[name.replace("lora_A", "lora_B")] @ own[name]  # [out, in]
        key = name.replace(".lora_A.default.weight", ".weight")
        base[key] = base[key] + (change.T if architecture == "gpt2" else change)
        layers += 1
    plain.module.load_state_dict(base)
    torch.testing.assert_close(logits(model), logits(plain), atol=2e-5, rtol=1e-5)
    assert layers == 2 * {"gpt2": 4, "llama": 7, "gpt_neox": 4}[architecture]  # every linear layer but the head


@pytest.mark.parametrize("tied", [True, False])
def test_only_adapters_and_a_value_head_are_trained(tied: bool) -> None:
    model = filled(made(Lora(rank=2), tied=tied, value_head=True))
    trained = {n for n, p in model.module.named_parameters() if p.requires_grad}
    assert {n for n in trained if ".lora_" not in n} == {"value.weight", "value.bias"}
    hidden = model.module.hidden(IDS)
    (model.module.logits(hidden).logsumexp(-1).sum() + model.module.scalar(hidden).sum()).backward()
    reached = {n for n, p in model.module.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert reached == trained


@pytest.mark.parametrize("targets", [(), ("q_proj",), ("down_proj",), ("k_proj", "up_proj")])
def test_in_half_precision_all_linear_layers_compute_in_it(targets: tuple[str, ...]) -> None:
    exact, rough = (filled(made(Lora(rank=2, targets=targets), dtype=d)) for d in ("float32", "bfloat16"))
    context, action = np.array([2, 3], np.int32), np.array([4, 5, 6, 7], np.int32)
    batch = pack([Trajectory(Request(Problem("t", "0", "")), (Step.of(context, action),))])
    used, linear = set(), torch.nn.functional.linear
    with pytest.MonkeyPatch.context() as m:
        m.setattr(torch.nn.functional, "linear", lambda x, w, b=None: used.add((x.dtype, w.dtype)) or linear(x, w, b))
        near = rough(batch)
    assert used == {(torch.bfloat16, torch.bfloat16)}  # the head comes later
    scores = [exact(batch).log_prob(), near.log_prob()]
    torch.testing.assert_close(scores[1], scores[0], atol=0.1, rtol=0)
    assert not torch.equal(*scores)
    grads = []
    for m, score in zip((exact, rough), scores, strict=True):
        score.sum().backward()
        trained = [p for p in m.module.parameters() if p.requires_grad]
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in trained)
        grads.append(torch.cat([p.grad.flatten() for p in trained if p.grad is not None]))
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > 0.97


def test_targets_are_chosen_by_name() -> None:
    model = made(Lora(targets=("c_attn", "mlp.c_proj")), architecture="gpt2")
    adapted = {n.partition(".lora_")[0] for n, _ in model.module.named_parameters() if ".lora_" in n}
    assert adapted == {f"base.h.{i}.{layer}" for i in (0, 1) for layer in ("attn.c_attn", "mlp.c_proj")}


@pytest.mark.parametrize("target", ["c_atn", "lm_head", "wte", "attn"])
def test_a_target_that_is_no_layer_is_named(target: str) -> None:
    with pytest.raises(ValueError, match=rf"lora\.targets has '{target}', no linear layer below the head"):
        made(Lora(targets=(target,)), architecture="gpt2")


def test_a_table_of_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"dropout is 0\.1: expected 0 \(a score must be a function of its row\)"):
        Lora(dropout=0.1)
    model = Settings().make_component(
        "model", {"use": "causal", "lora": {"rank": 4, "targets": ["q_proj"]}}, "models.x"
    )
    assert model.lora == Lora(rank=4, targets=("q_proj",))


def test_without_peft_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match=r'lora needs peft: pip install "shuhari\[lm\]"'):
        made(Lora())


@torch.no_grad()
def test_save_writes_merged_weights_that_are_read_without_adapters(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = filled(made(Lora(rank=2), architecture="gpt2", value_head=True))
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    model.save(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(theirs(IDS).logits, logits(model), atol=2e-5, rtol=1e-5)
    again = Causal(path=str(tmp_path), lora=Lora(rank=2))  # new adapters upon them
    again.build(TASK)
    torch.testing.assert_close(logits(again), logits(model), atol=2e-5, rtol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())


def test_a_copy_is_a_model_of_its_own() -> None:
    model = made(Lora(rank=2))
    other = filled(copy.deepcopy(model))
    assert not torch.equal(logits(other), logits(model))
    other.module.load_state_dict(model.module.state_dict())
    assert torch.equal(logits(other), logits(model))


def test_a_model_with_adapters_starts_from_weights_without_and_back_it_is_told() -> None:
    from shuhari.loop.roles import take_weights

    plain, model = made(hidden=24), filled(made(Lora(rank=2), hidden=24))
    g = torch.Generator().manual_seed(2)
    weights = {k: torch.randn(v.shape, generator=g) * 0.2 for k, v in plain.module.state_dict().items()}
    plain.module.load_state_dict(weights)
    before = {k: v.clone() for k, v in model.module.state_dict().items() if ".lora_" in k}
    take_weights(model, weights, "weights")
    own = model.module.state_dict()
    assert all(torch.equal(own[k], v) for k, v in before.items())
    assert all(torch.equal(v, weights[k]) for k, v in base_of(dict(own)).items())
    fresh = made(Lora(rank=2), hidden=24)
    take_weights(fresh, weights, "weights")
    assert torch.equal(logits(fresh), logits(plain))  # new adapters say nothing
    take_weights(fresh, dict(own), "weights")  # of the same kind: adapters and all
    assert torch.equal(logits(fresh), logits(model))
    with pytest.raises(ValueError, match="weights have adapters, and the model here has none: give it the same `lora`"):
        take_weights(plain, dict(own), "weights")
    with pytest.raises(ValueError, match=r"do not fit: .*_proj.lora_A.default.weight is"):
        take_weights(made(Lora(rank=3), hidden=24), dict(own), "weights")
    with pytest.raises(ValueError, match=r"do not fit: base.embed_tokens.weight is"):
        take_weights(made(Lora(rank=2)), weights, "weights")


# ---------------------------------------------------------------- in a run


def weights(path: Path, step: int, role: str = "policy") -> dict[str, torch.Tensor]:
    return dict(Run(path).load(step)["models"][role])


def test_after_a_step_what_is_sampled_is_what_is_scored(tmp_path: Path) -> None:
    """The engine may sample from a merged copy of the weights: it is that of the step before the next one."""
    (tmp_path / "r.toml").write_text(RECIPE.replace("LORA", LORA))
    run = open_run(load(tmp_path / "r.toml"))
    steps = loop(run)
    first = None
    for _ in range(3):
        next(steps)
        ctx, model = run.ctx, run.ctx.models["policy"]
        context, sampling = model.encode("12+34="), Sampling(max_new=5)
        traces = ctx.wait(ctx.engine.sample("policy", context, sampling, 8, key=("test", ctx.step)))
        request = Request(Problem("t", "0", ""), sampling=sampling)
        batch = pack([Trajectory(request, (Step.of(context, t.action, t.logp, info=t.info),)) for t in traces])
        with torch.no_grad():
            torch.testing.assert_close(model(batch).log_prob(), batch["logp"], atol=1e-4, rtol=0)
            now = model.module.logits(model.module.hidden(IDS))
        assert first is None or float((now - first).abs().max()) > 1e-3  # the adapters did move
        first = now if first is None else first
    steps.close()


def test_a_run_trains_adapters_alone_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace("LORA", LORA))
    recipe = load(tmp_path / "r.toml")
    whole = shuhari.train(recipe, tmp_path / "whole")
    first, last = weights(whole.path, 1), weights(whole.path, 4)
    reference = weights(whole.path, 4, "reference")  # a copy of the policy before the first step
    assert all(torch.equal(v, last[k]) and torch.equal(v, reference[k]) for k, v in first.items() if ".lora_" not in k)
    assert all(not torch.equal(v, reference[k]) for k, v in last.items() if ".lora_B" in k)
    assert all(not bool(v.any()) for k, v in reference.items() if ".lora_B" in k)
    assert "policy/loss/divergence" in whole.metrics

    steps = loop(open_run(recipe, tmp_path / "half"))
    assert [next(steps)["step"] for _ in range(2)] == [1, 2]
    steps.close()
    half = shuhari.train(recipe, tmp_path / "half")
    assert dumps(weights(half.path, 4)) == dumps(last)
    assert json.dumps(half.summary["after"]) == json.dumps(whole.summary["after"])

    policy = shuhari.load(whole.path)
    assert isinstance(policy.generate("1+2="), str)
    assert policy.model.module.state_dict().keys() == last.keys()
    assert all(torch.equal(v, last[k]) for k, v in policy.model.module.state_dict().items())
    ids = np.array([2, 3], np.int32)
    policy.model.save(tmp_path / "merged")
    plain = Causal(path=str(tmp_path / "merged"))
    plain.build(TASK)
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        theirs, ours = (m.module.logits(m.module.hidden(tokens)) for m in (plain, policy.model))
    torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-5)
