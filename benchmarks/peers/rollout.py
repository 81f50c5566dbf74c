"""Sampling alone: groups of answers whose lengths are given, ours beside transformers' `generate` and `generate_batch`.

Answer i of the workload has `lengths[i]` tokens on every side: no row says its end token before, and each ends there.
Lengths are drawn once, from one seed: log-normal with median 64 and 99th percentile 512, or all the same. Only tokens
of answers are counted, of rows that still run. All sides sample at temperature 1; ours keeps the log-probabilities of
what it draws, theirs do not. Weights are random.

Axes: `R` rows (groups x n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gate import Gate

SIZES: dict[str, dict[str, Any]] = {  # of a Llama layout, as transformers names them
    "1M": {"hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
           "intermediate_size": 352, "max_position_embeddings": 2048, "tie_word_embeddings": True},
    "15M": {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 6,
            "intermediate_size": 1088, "max_position_embeddings": 2048, "tie_word_embeddings": True, "vocab_size": 512},
    "0.8M": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
             "intermediate_size": 344, "max_position_embeddings": 256, "tie_word_embeddings": True},
}  # fmt: skip
MEDIAN, P99 = 64, 512
PROMPT = (16, 64)  # tokens of a prompt: drawn uniformly


def prepare(folder: Path, size: str) -> None:
    """Write a model with random weights and a character tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from shuhari.models.text.made_tokenizers import PRINTABLE, character_tokenizer

    text = character_tokenizer(PRINTABLE)
    ends = {"pad_token_id": text.pad, "eos_token_id": text.end, "bos_token_id": None}
    config = AutoConfig.for_model("llama", **{"vocab_size": text.size, **ends, **SIZES[size]})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    text.save(str(folder))


def workload(case: dict[str, Any], seed: int) -> tuple[list[list[int]], list[int]]:
    """(prompts [groups] as token ids, lengths [R]); `seed` differs from block to block, and both sides use the same."""
    rng = np.random.default_rng([case["groups"], case["n"], seed])
    low, high = PROMPT
    prompts = [rng.integers(5, 95, int(k)).tolist() for k in rng.integers(low, high + 1, case["groups"])]
    rows = case["groups"] * case["n"]
    if "length" in case:
        return prompts, [case["length"]] * rows
    sigma = math.log(P99 / MEDIAN) / 2.326
    drawn = rng.lognormal(math.log(MEDIAN), sigma, rows)
    return prompts, np.clip(drawn.round(), 1, case.get("longest", 1024)).astype(int).tolist()


def blocks(case: dict[str, Any], gate: Gate, roll: Callable[[list[list[int]], list[int]], int]) -> None:
    """`roll` a workload each block until no more is wanted; it returns how many tokens it drew, which is checked."""
    seed, wanted = 0, gate.wait()
    while wanted:
        prompts, lengths = workload(case, seed)
        drawn = roll(prompts, lengths)
        if drawn != sum(lengths):
            raise RuntimeError(f"{drawn} tokens drawn: expected {sum(lengths)}")
        gate.count(tokens=drawn, rows=len(lengths))
        seed, wanted = seed + 1, gate.tick()


def ours(case: dict[str, Any], gate: Gate) -> None:
    blocks(case, gate, engine(case))


def engine(case: dict[str, Any]) -> Callable[[list[list[int]], list[int]], int]:
    """A roll through our engine, one call a group. A call has settings for all of its n rows, so the length of each row
    is set where rows enter the decoder."""
    import asyncio

    from shuhari.data import Sampling
    from shuhari.engines.local import Local
    from shuhari.kernel.noise import keys
    from shuhari.models.text.causal import Causal
    from shuhari.tasks.prompts import Prompts

    wanted: dict[int, int] = {}  # the key of a row -> its length
    longest = case.get("length") or case.get("longest", 1024)

    class Forced(Causal):
        def decoder(self, **settings: Any) -> Any:
            made = super().decoder(**settings)
            add = made.add

            def forced(rows: Any) -> None:
                rows = list(rows)
                for row in rows:
                    row.least = wanted[int(row.key)]
                    row.sampling = Sampling(max_new=row.least)
                add(rows)

            made.add = forced
            return made

    model = Forced(path=case["folder"])
    model.build(Prompts())
    local = Local(**{"slots": case["batch"], **case.get("engine", {})})
    local.sync({"policy": model}, 0)
    loop, block = asyncio.new_event_loop(), 0

    def roll(prompts: list[list[int]], lengths: list[int]) -> int:
        nonlocal block
        block, n, calls = block + 1, case["n"], []
        for i, prompt in enumerate(prompts):
            name = ("block", block, i)
            own = keys(local.seed, *name, n=n).tolist()
            wanted.update(zip(own, lengths[i * n : (i + 1) * n], strict=True))
            calls.append(local.sample("policy", np.array(prompt, np.int32), Sampling(max_new=longest), n, key=name))

        async def everybody() -> list[Any]:
            return await asyncio.gather(*calls)

        answers = loop.run_until_complete(everybody())
        wanted.clear()
        return sum(len(t.action) for traces in answers for t in traces)

    return roll


def theirs(case: dict[str, Any], gate: Gate) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, case.get("dtype", "float32"))
    lm = AutoModelForCausalLM.from_pretrained(case["folder"], dtype=dtype, attn_implementation="sdpa").eval()
    {"generate": generated, "continuous": continuous}[case["peer"]](lm, case, gate)


def generated(lm: Any, case: dict[str, Any], gate: Gate) -> None:
    """`generate`, `batch` rows at a time, padded on the left; a logits processor holds each row to its length."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    end, pad, batch = lm.config.eos_token_id, lm.config.pad_token_id, case["batch"]
    pad = pad if pad != end else 0  # which is then told apart, and never drawn

    class Length:
        def __init__(self, lengths: list[int], prompt: int) -> None:
            at = torch.arange(1, max(lengths) + 1)[:, None] - torch.tensor(lengths)
            self.end = torch.where(at < 0, -torch.inf, 1e9)  # [longest, rows] the logit of the end token
            self.prompt = prompt

        def __call__(self, ids: Any, scores: Any) -> Any:
            scores[:, pad] = -torch.inf
            scores[:, end] = self.end[ids.shape[1] - self.prompt]
            return scores

    def roll(prompts: list[list[int]], lengths: list[int]) -> int:
        drawn, rows = 0, [p for p in prompts for _ in range(case["n"])]
        for first in range(0, len(rows), batch):
            part, wanted = rows[first : first + batch], lengths[first : first + batch]
            longest = max(map(len, part))
            ids = torch.tensor([[pad] * (longest - len(p)) + p for p in part])
            config = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, max_new_tokens=max(wanted), pad_token_id=pad,
                                      eos_token_id=end, cache_implementation=case.get("cache"))  # fmt: skip
            held, seen = LogitsProcessorList([Length(wanted, longest)]), (ids != pad).long()
            said = lm.generate(ids, attention_mask=seen, generation_config=config, logits_processor=held)
            drawn += int((said[:, longest:] != pad).sum())
        return drawn

    blocks(case, gate, roll)


def continuous(lm: Any, case: dict[str, Any], gate: Gate) -> None:
    """Its continuous batching: one request a row, which ends at its own `max_new_tokens`."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=lm.config.pad_token_id)
    settings = ContinuousBatchingConfig(**{"max_requests_per_batch": case["rows"], **case.get("settings", {})})
    with lm.continuous_batching_context_manager(config, continuous_batching_config=settings, timeout=5) as manager:

        def roll(prompts: list[list[int]], lengths: list[int]) -> int:
            rows = [p for p in prompts for _ in range(case["n"])]
            for prompt, length in zip(rows, lengths, strict=True):
                manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            drawn, left = 0, len(rows)
            while left:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    drawn, left = drawn + len(result.generated_tokens), left - 1
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended before its requests")
            return drawn

        blocks(case, gate, roll)
