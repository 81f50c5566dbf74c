"""A run with its profile: the same bits, files that add up, resuming, and FLOPs against PyTorch's own count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from shuhari.desk.profile_report import Cost, measure_peak, read, train_profiled
from shuhari.kernel import profile
from shuhari.kernel.profile import Work
from shuhari.loop.run import train
from shuhari.testing.compare import contents, differences
from small_runs import recipe


def _made(name: str, folder: Path) -> Any:
    return recipe(name, folder)


@pytest.mark.parametrize("name", ["text", "dqn"])
def test_a_profiled_run_is_the_same_run_bit_by_bit(name: str, tmp_path: Path) -> None:
    made, plain, other = _made(name, tmp_path), tmp_path / "plain", tmp_path / "profiled"
    first, second = list(train(made, plain)), list(train_profiled(made, other))
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in reports] for reports in (first, second)]
    assert not differences(*timeless) and not differences(contents(plain), contents(other))
    told = read(other)
    assert (told["first_step"], told["last_step"], told["resumed"]) == (1, len(first), False)
    assert math.isclose(sum(p["seconds"] for p in told["phases"].values()), told["seconds"])
    assert math.isclose(sum(p["share"] for p in told["phases"].values()), 1.0)
    assert {"generate", "update", "store", "sync", "other"} <= told["phases"].keys()
    assert all(p["seconds"] >= 0 for p in told["phases"].values())
    assert json.loads((other / "trace.json").read_text())["traceEvents"]
    assert not (plain / "profile.json").exists() and profile._active is None
    if name == "text":
        assert {"grade", "evaluate", "evaluate/generate", "pack"} <= told["phases"].keys()
        assert told["rates"]["trained"]["flops"] > 0 and told["rates"]["trained"]["share_of_peak"] > 0


def test_a_resumed_run_says_which_steps_its_profile_covers(tmp_path: Path) -> None:
    made, whole, there = _made("bandit", tmp_path), tmp_path / "whole", tmp_path / "parts"
    list(train_profiled(made, whole))
    reports = train_profiled(made, there)
    for _ in range(4):
        next(reports)
    reports.close()  # type: ignore[attr-defined]
    told = read(there)
    assert (told["first_step"], told["last_step"], told["resumed"]) == (1, 4, False)
    list(train_profiled(made, there))
    told = read(there)
    assert (told["first_step"], told["last_step"], told["resumed"]) == (5, 12, True)
    assert told["phases"]["update"]["spans"] == 8
    assert not differences(contents(whole), contents(there))
    assert (
        list(train_profiled(made, there)) == [] and read(there) == told
    )  # complete: nothing was made, nothing is written


def test_a_run_that_fails_leaves_the_profile_of_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made("bandit", tmp_path)
    reports = train_profiled(made, tmp_path / "run")
    next(reports)
    monkeypatch.setattr("shuhari.loop.collect.pack", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(reports)
    assert read(tmp_path / "run")["last_step"] == 1 and profile._active is None


def test_the_peak_is_measured_without_a_random_number() -> None:
    before = torch.random.get_rng_state()
    peak = measure_peak(torch.device("cpu"))
    assert peak["flop_s"] > 0 and peak["size"] in (1024, 2048, 4096) and peak["threads"] == torch.get_num_threads()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_flops_are_those_that_pytorch_counts(kind: str) -> None:
    """Its count of one row: matrix products alone, and attention over all pairs of T positions."""
    import transformers as hf

    T, L, D = 32, 2, 64
    if kind == "llama":
        sizes = {"hidden_size": D, "intermediate_size": 96, "num_hidden_layers": L, "num_attention_heads": 4}
        config: Any = hf.LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes)
    else:
        config = hf.GPT2Config(vocab_size=50, n_embd=D, n_layer=L, n_head=4, n_positions=T)
    config._attn_implementation = "eager"
    lm = hf.AutoModelForCausalLM.from_config(config).eval()
    cost = Cost.of(SimpleNamespace(module=SimpleNamespace(base=lm.base_model)))
    assert cost is not None and cost.trained == cost.parameters
    with FlopCounterMode(display=False) as forward:
        hidden = lm.base_model(torch.arange(T)[None]).last_hidden_state
    with FlopCounterMode(display=False) as backward:
        hidden.sum().backward()
    work = Work(tokens=T, decided=T, pairs=T * T, decided_pairs=T * T)
    # norms and biases are parameters too, and no products: the count is a little smaller
    assert cost.flops("sampled", work) == pytest.approx(forward.get_total_flops(), rel=0.02)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert cost.flops("trained", work) == pytest.approx(both, rel=0.02)
    for p in lm.base_model.parameters():
        p.requires_grad_(False)
    frozen = Cost.of(SimpleNamespace(module=SimpleNamespace(base=lm.base_model)))
    assert frozen is not None and cost.flops("trained", work) - frozen.flops("trained", work) == 2 * cost.parameters * T


def test_a_model_that_is_no_transformer_has_no_cost() -> None:
    assert Cost.of(SimpleNamespace(module=torch.nn.Linear(2, 2))) is None
