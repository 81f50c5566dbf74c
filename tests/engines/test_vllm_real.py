"""Against vLLM itself, where SHUHARI_VLLM_PYTHON names its interpreter (`python .ci/vllm.py` makes one). Slow: a start
of vLLM takes some 10 seconds of a processor, so each architecture is started once and asked all that there is to ask.
What tells most comes first, as `.ci/vllm.py` stops them where its time is over, and says which it has not reached.

The oracle is the other engine: `Local` and transformers' weights behind it have nothing in common with vLLM's code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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


@contextmanager
def serve(made: Causal) -> Iterator[Vllm]:
    """An engine with a model; at its end vLLM has gone by itself, and was not waited for in vain and killed."""
    engine = Vllm(threads=1)
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": made}, 3)
    try:
        asyncio.run(ask(engine, contexts(made, 1), Sampling(max_new=1)))  # on which it starts
        process = engine.process
        yield engine
    finally:
        engine.close()
    assert process is not None and process.process.returncode == 0


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Vllm, Causal]]:
    made = model("llama", context=512)  # for answers that are not over before something comes
    with serve(made) as engine:
        yield engine, made


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


async def ask_and_sync(engine: Vllm, prompts: list[Any], most: int, change: Callable[[], None]) -> list[Any]:
    """Answers of `most` tokens each, and weights that `change` and come when each of them has begun: an answer of few
    tokens, which vLLM says beside them, is there, and they are many times as long."""
    real = engine.outline
    engine.outline = lambda: replace(real(), ends=())  # type: ignore[method-assign]  # none ends before
    try:
        long = asyncio.ensure_future(ask(engine, prompts, Sampling(max_new=most), name="long"))
        few = Sampling(max_new=max(2, most // 100))
        await asyncio.ensure_future(ask(engine, prompts[:1], few, name="short"))  # asked last
        assert not long.done()
        change()
        return await long
    finally:
        engine.outline = real  # type: ignore[method-assign]


def test_more_tokens_of_prompts_than_are_read_at_once(served: tuple[Vllm, Causal]) -> None:
    """vLLM reads 2048 at once. A prompt read in parts has draws taken back, which generators of a CPU cannot."""
    engine, made = served
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, made.module.vocabulary, 60 + i % 7, dtype=np.int32) for i in range(80)]
    traces = asyncio.run(ask(engine, prompts, Sampling(max_new=24)))
    check_settings(made, prompts, traces, Sampling(max_new=24))

    def read_again() -> None:
        engine.sync({"policy": made}, engine.outside.version)  # the same weights: what has been said is read anew

    traces = asyncio.run(ask_and_sync(engine, prompts, 60, read_again))
    check_settings(made, prompts, traces, Sampling(max_new=60))


def test_weights_that_come_in_the_middle_of_answers(served: tuple[Vllm, Causal]) -> None:
    engine, made = served
    prompts, before = contexts(made, 4), engine.outside.version

    def change() -> None:
        with torch.no_grad():
            for p in made.module.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        engine.sync({"policy": made}, before + 1)

    process = engine.process
    old = Local(staleness=1)
    old.sync({"policy": made}, before)  # its copies keep the old weights
    traces = asyncio.run(ask_and_sync(engine, prompts, 400, change))
    new = Local()
    new.sync({"policy": made}, before + 1)
    assert engine.process is process  # in place
    first, second = (asyncio.run(score(e, prompts, traces)) for e in (old, new))
    for trace, a, b in zip(traces, first, second, strict=True):
        assert set(trace.version.tolist()) == {before, before + 1} and (np.diff(trace.version) >= 0).all()
        # each token by the weights that its version names: before the cut by the old ones, and behind it the rest is
        # what the new weights make of all that was said
        np.testing.assert_allclose(trace.logp, np.where(trace.version == before, a, b), atol=NEAR)
    check_alike(engine, made)


def test_what_is_given_up_is_paid_for(served: tuple[Vllm, Causal]) -> None:
    """vLLM tells how much it had said of an answer that is called off, and goes on with others."""
    engine, made = served
    spent: list[tuple[str, float]] = []
    engine.open(1, lambda what, amount: spent.append((what, amount)))
    real = engine.outline
    engine.outline = lambda: replace(real(), ends=())  # type: ignore[method-assign]  # none ends before

    async def give_up() -> None:
        long = asyncio.ensure_future(ask(engine, contexts(made, 1), Sampling(max_new=400), name="long"))
        await ask(engine, contexts(made, 1), Sampling(max_new=20), name="short")
        long.cancel()
        await asyncio.wait({long})
        assert long.cancelled() and not len(engine.process or ())

    try:
        asyncio.run(give_up())
    finally:
        engine.outline = real  # type: ignore[method-assign]
    assert spent[:2] == [("tokens", 20.0), ("prompt_tokens", 3.0)] and len(spent) == 3
    what, amount = spent[2]
    assert what == "tokens" and 10 <= amount < 400
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


@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures(architecture: str) -> None:
    made = model(architecture, **OTHERS[architecture])
    with serve(made) as engine:
        check_alike(engine, made)
        with torch.no_grad():
            for p in made.module.parameters():
                p.mul_(1.25)
        process = engine.process
        engine.sync({"policy": made}, 4)
        check_alike(engine, made)
        assert engine.process is process  # in place
