"""What tests of the engine `vllm` ask, of the fake and of vLLM itself: models, contexts, settings.

    SHUHARI_VLLM_PYTHON=... python tests/engines/vllm_asked.py    # writes vllm_said.json anew, from vLLM
"""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.engines.process import Process
from shuhari.engines.vllm import Vllm
from shuhari.kernel.pack import pack
from shuhari.models.text.causal import Causal

NEAR = 1e-4  # of a log-probability: what the engine promises
SAID = Path(__file__).with_name("vllm_said.json")
SMALL = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 96, "context": 256}
SETTINGS = {
    "greedy": Sampling(greedy=True, max_new=12),
    "plain": Sampling(max_new=12),
    "warm": Sampling(temperature=0.7, max_new=8),
    "top_k": Sampling(top_k=5, max_new=8),
    "top_kp": Sampling(top_k=20, top_p=0.8, max_new=6),
    "top_p": Sampling(top_p=0.5, max_new=3),
    "min_p": Sampling(min_p=0.3, temperature=0.7, max_new=4),
    "ban": Sampling(ban=tuple(range(2, 90)), max_new=4),
    "cut_ban": Sampling(ban=(5, 6), top_k=8, max_new=4),
    "stop": Sampling(stop=("a", "b7"), max_new=60),
    "top": Sampling(top=3, max_new=4),
}


def model(architecture: str = "llama", **more: Any) -> Causal:
    """A tiny model whose weights are the same under every version of torch."""
    made = Causal(architecture=architecture, **{**SMALL, **more})
    made.build(None)
    with torch.no_grad():
        for name, p in made.module.lm.named_parameters():
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            drawn = torch.from_numpy(rng.normal(0, 0.08, p.shape)).float()
            p.copy_(1 + drawn if p.dim() == 1 and "bias" not in name and architecture != "gemma" else drawn)
    return made


def contexts(made: Causal, n: int) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.integers(2, made.module.vocabulary, 3 + 5 * i, dtype=np.int32) for i in range(n)]


async def ask(engine: Any, prompts: list[Any], sampling: Sampling, n: int = 1, name: str = "a") -> list[Any]:
    calls = [engine.sample("policy", p, sampling, n, key=(name, i)) for i, p in enumerate(prompts)]
    return [t for traces in await asyncio.gather(*calls) for t in traces]


async def score(engine: Any, prompts: list[Any], traces: list[Any]) -> list[Any]:
    calls = [engine.score("policy", p, t.action, ["log_prob"]) for p, t in zip(prompts, traces, strict=True)]
    return [c["log_prob"] for c in await asyncio.gather(*calls)]


def check_settings(made: Causal, prompts: list[Any], traces: list[Any], sampling: Sampling) -> None:
    """The log-probabilities are those of the trainer's forward under the settings, and the settings were kept."""
    steps = [
        Step.of(p, t.action, t.logp, sampling=sampling, info={k: v for k, v in t.info.items() if k != "text"})
        for p, t in zip(prompts, traces, strict=True)
    ]
    batch = pack([Trajectory(Request(Problem(str(i), "", None)), (s,)) for i, s in enumerate(steps)])
    with torch.no_grad():
        scored = made(batch).log_prob()
    for i, trace in enumerate(traces):
        np.testing.assert_allclose(scored[i, : len(trace.action)].numpy(), trace.logp, atol=NEAR)
        assert trace.action[0] not in sampling.ban and len(trace.action) <= sampling.max_new
        assert not set(trace.action.tolist()) & {*made.module.suppressed.tolist()}
        text = made.decode(trace.action)
        assert all(stop not in text[:-1] for stop in sampling.stop)  # it ends there
        if trace.info["ended"]:
            assert trace.action[-1] == made.end or text.endswith(sampling.stop)
        if sampling.top:
            assert trace.info["top"].shape == trace.info["top_logp"].shape == (len(trace.action), sampling.top)
            assert (np.diff(trace.info["top_logp"]) <= 0).all()
        if sampling.top_k:
            assert trace.info["support"].shape[1] <= sampling.top_k


def record() -> None:
    """Ask vLLM all settings, and write down what it said."""
    said: list[Any] = []
    plain = Process.ask

    async def ask_and_note(self: Process, request: Any, patience: float) -> Any:
        reply = await plain(self, request, patience)
        said.append([request, {k: v for k, v in reply.items() if k != "id"}])
        return reply

    Process.ask = ask_and_note  # type: ignore[method-assign]
    engine, made = Vllm(threads=1), model()
    engine.open(1, lambda what, amount: None)
    engine.sync({"policy": made}, 3)
    for name, sampling in SETTINGS.items():
        traces = asyncio.run(ask(engine, contexts(made, 2), sampling, name=name))
        if name == "plain":
            asyncio.run(score(engine, contexts(made, 2), traces))
    engine.close()
    SAID.write_text("[\n" + ",\n".join(json.dumps(pair) for pair in said) + "\n]\n")


if __name__ == "__main__":
    record()
