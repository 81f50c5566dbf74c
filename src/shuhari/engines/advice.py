"""Advice on when vLLM is faster than the engine `local` on a CPU, from measurements; needs no torch."""

from __future__ import annotations

WEIGHTS, ANSWER = 15_000_000, 256
"""Sizes from which vLLM samples more tokens a second than the engine `local`: weights of the policy, and tokens of an
answer. Measured on two cores, with vLLM 0.32 by itself and 64 answers of 256 tokens: 0.8 times as many at 2.6 million
weights, 1.1 times at 16 million, 2.8 times at 116 million (beside other work); 256 answers of 24 tokens are even at 116
million. `python benchmarks/engines.py` measures it anew."""


def advise(weights: int, max_new: int) -> str:
    """Return the advice for a run with so many weights and so long answers; "" if the engine `local` is right."""
    if weights < WEIGHTS or max_new < ANSWER:
        return ""
    return (f"a policy of {weights / 1e6:,.0f} million weights, answers of up to {max_new} tokens: on a CPU vLLM "
            f"samples these faster from {WEIGHTS / 1e6:g} million weights and {ANSWER} tokens on "
            "(engine.use = \"vllm\", docs/scale.md)")  # fmt: skip
