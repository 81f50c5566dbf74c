"""Against vLLM itself, where SHUHARI_VLLM_PYTHON names its interpreter (`python .ci/vllm.py` makes one). Slow: a start
of vLLM takes 10 to 30 seconds, so each architecture is started once and asked all that there is to ask.

The oracle is the other engine: `Local` and transformers' weights behind it have nothing in common with vLLM's code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm_asked import NEAR, SETTINGS, ask, check_settings, contexts, model, score

import shuhari
from shuhari.data import Sampling
from shuhari.engines.local import Local
from shuhari.engines.vllm import PYTHON, Vllm
from shuhari.models.text.causal import Causal
from small_runs import write_sums

pytestmark = [
    pytest.mark.skipif(not os.environ.get(PYTHON), reason=f"{PYTHON} names no interpreter"),
    pytest.mark.timeout(600),
]
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2": {}, "qwen3": {}, "gemma": {"config": {"num_key_value_heads": 1}},
    "gpt2": {"config": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 96, "n_positions": 256}},
}  # fmt: skip


def check_alike(engine: Any, made: Causal) -> None:
    """Greedy tokens are the same, and what vLLM says of its own samples is what our forward says of them."""
    here, prompts = Local(), contexts(made, 6)
    here.sync({"policy": made}, engine.outside.version)
    greedy = Sampling(greedy=True, max_new=24)
    ours, theirs = asyncio.run(ask(here, prompts, greedy)), asyncio.run(ask(engine, prompts, greedy))
    for a, b in zip(ours, theirs, strict=True):
        assert a.action.tolist() == b.action.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=NEAR)
        assert (b.version == engine.outside.version).all() and a.info["ended"] == b.info["ended"]
    drawn = asyncio.run(ask(engine, prompts, Sampling(max_new=24)))
    for said, logp in zip(drawn, asyncio.run(score(here, prompts, drawn)), strict=True):
        np.testing.assert_allclose(said.logp, logp, atol=NEAR)
    for a, b in zip(asyncio.run(score(engine, prompts, drawn)), asyncio.run(score(here, prompts, drawn)), strict=True):
        np.testing.assert_allclose(a, b, atol=NEAR)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Vllm, Causal]]:
    engine, made = Vllm(threads=1), model("llama")
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": made}, 3)
    yield engine, made
    engine.close()


@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures(architecture: str) -> None:
    engine, made = Vllm(threads=1), model(architecture, **OTHERS[architecture])
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": made}, 2)
    try:
        check_alike(engine, made)
        with torch.no_grad():
            for p in made.module.parameters():
                p.mul_(1.25)
        engine.sync({"policy": made}, 3)  # in place
        check_alike(engine, made)
    finally:
        engine.close()


def test_llama_and_its_draws(served: tuple[Vllm, Causal]) -> None:
    engine, made = served
    check_alike(engine, made)
    prompts = contexts(made, 4)
    together = asyncio.run(ask(engine, prompts, Sampling(max_new=16), 3, "s"))
    alone = asyncio.run(ask(engine, prompts[:1], Sampling(max_new=16), 3, "s"))
    assert [t.action.tolist() for t in alone] == [t.action.tolist() for t in together[:3]]
    assert len({tuple(t.action.tolist()) for t in alone}) == 3  # a seed for each


@pytest.mark.parametrize("name", SETTINGS)
def test_log_probabilities_are_of_the_settings(served: tuple[Vllm, Causal], name: str) -> None:
    engine, made = served
    prompts = contexts(made, 5)
    check_settings(made, prompts, asyncio.run(ask(engine, prompts, SETTINGS[name])), SETTINGS[name])


def test_more_tokens_of_prompts_than_are_read_at_once(served: tuple[Vllm, Causal]) -> None:
    """vLLM reads 2048 at once. A prompt read in parts has draws taken back, which generators of a CPU cannot."""
    engine, made = served
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, made.module.vocabulary, 60 + i % 7, dtype=np.int32) for i in range(80)]
    traces = asyncio.run(ask(engine, prompts, Sampling(max_new=24)))
    check_settings(made, prompts, traces, Sampling(max_new=24))

    async def go() -> list[Any]:
        task = asyncio.ensure_future(ask(engine, prompts, Sampling(max_new=24), name="again"))
        await asyncio.sleep(0.2)
        engine.sync({"policy": made}, engine.outside.version)  # what has been said is read again
        return await task

    traces = asyncio.run(go())
    check_settings(made, prompts, traces, Sampling(max_new=24))


def test_weights_that_come_in_the_middle_of_answers(served: tuple[Vllm, Causal]) -> None:
    engine, made = served
    prompts, before = contexts(made, 8), engine.outside.version

    async def go() -> list[Any]:
        task = asyncio.ensure_future(ask(engine, prompts, Sampling(max_new=200, ban=()), 1, "long"))
        await asyncio.sleep(0.5)
        with torch.no_grad():
            for p in made.module.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        engine.sync({"policy": made}, before + 1)
        return await task

    process = engine.process
    old = Local(staleness=1)
    old.sync({"policy": made}, before)  # its copies keep the old weights
    traces = asyncio.run(go())
    new = Local()
    new.sync({"policy": made}, before + 1)
    assert engine.process is process  # in place
    first, second = (asyncio.run(score(e, prompts, traces)) for e in (old, new))
    mixed = 0
    for trace, a, b in zip(traces, first, second, strict=True):
        assert set(trace.version.tolist()) <= {before, before + 1} and (np.diff(trace.version) >= 0).all()
        mixed += len(set(trace.version.tolist())) == 2
        # each token by the weights that its version names: before the cut by the old ones, and behind it the rest is
        # what the new weights make of all that was said
        np.testing.assert_allclose(trace.logp, np.where(trace.version == before, a, b), atol=NEAR)
    assert mixed  # or nothing was tested
    check_alike(engine, made)


def test_a_run_learns_what_it_learns_here(tmp_path: Path) -> None:
    """GRPO from scratch on a dense reward, the share of sevens: both engines come to the same, up to chance."""
    code = "def sevens(completions):\n    return [t[:6].count('7') / 6 for t in completions]\n"
    (tmp_path / "sevens.py").write_text(code)
    recipe = write_sums(steps=30, size=8) + f'[reward.sevens]\nuse = "{tmp_path}/sevens.py:sevens"\n'
    (tmp_path / "sums.toml").write_text(recipe)
    ends = {}
    for use in ("local", "vllm"):
        settings = {"engine.use": use, "rollout.sampling.max_new": 6, "rollout.n": 8, "evaluate.n": 0,
                    "models.policy.hidden": 64, "models.policy.intermediate": 96}  # fmt: skip
        if use == "vllm":
            settings |= {"engine.threads": 1, "engine.staleness": 1}  # asynchronous too: weights come at any time
        run = shuhari.train(tmp_path / "sums.toml", tmp_path / use, **settings)
        columns = run.metrics
        rewards = np.array(columns["reward/sevens"])
        gaps = [gap for gap in columns["engine/gap_max"] if gap is not None]  # of steps with rows of the weights of now
        assert gaps and max(gaps) < NEAR
        ends[use] = float(rewards[:3].mean()), float(rewards[-5:].mean())
    for first, last in ends.values():
        assert last > first + 0.3, ends
    assert abs(ends["local"][1] - ends["vllm"][1]) < 0.15, ends
