"""The engine `local` beside vLLM, in turns on one machine: tokens a second, time to new weights, time to start.

    python .ci/vllm.py                   # makes vLLM's environment, .venv-vllm
    python benchmarks/engines.py         # writes results/engines.json, engines.md; about 40 minutes on two cores
    python benchmarks/engines.py --sizes 120M --rounds 1    # this size anew; the others stay as they were measured
    python benchmarks/engines.py --quick # two sizes, one round, and no file

Llama-like models from scratch in float32 that never say their end token, so that lengths are given; prompts of 32
tokens, groups of 8 answers. Both have the same threads, and of both the first round is left out. Left out: GPUs,
quantised weights, vLLM with torch.compile, other servers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np
import torch

from shuhari.data import Sampling
from shuhari.engines.local import Local
from shuhari.engines.vllm import PYTHON, Vllm
from shuhari.models.text.causal import Causal

SIZES = {  # name -> hidden, layers, heads, intermediate
    "0.4M": (96, 4, 3, 256),
    "2.6M": (256, 4, 4, 512),
    "15M": (512, 6, 8, 1024),
    "120M": (1024, 9, 16, 2816),
}
WORK = {"256 x 24": (256, 24), "64 x 256": (64, 256)}  # answers, tokens of each
GROUP, PROMPT = 8, 32
OWN = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
PAGE = Path(__file__).with_name("engines.md")
KEPT = common.RESULTS / "engines.json"


def model(size: str) -> Causal:
    hidden, layers, heads, intermediate = SIZES[size]
    torch.manual_seed(0)
    made = Causal(hidden=hidden, layers=layers, heads=heads, intermediate=intermediate, context=512)
    made.build(None)
    made.text.ends = ()  # nothing ends an answer but its length
    return made


async def draw(engine: Any, answers: int, tokens: int, name: str, vocabulary: int) -> int:
    """The tokens of all answers, asked for at once."""
    rng = np.random.default_rng(len(name))
    prompts = [rng.integers(2, vocabulary, PROMPT, dtype=np.int32) for _ in range(answers // GROUP)]
    sampling = Sampling(max_new=tokens)
    calls = [engine.sample("policy", p, sampling, GROUP, key=(name, i)) for i, p in enumerate(prompts)]
    return sum(len(t.action) for traces in await asyncio.gather(*calls) for t in traces)


def measure(engine: Any, work: str, name: str, vocabulary: int) -> float:
    """Tokens a second."""
    answers, tokens = WORK[work]
    began = time.perf_counter()
    said = asyncio.run(draw(engine, answers, tokens, name, vocabulary))
    assert said == answers * tokens, (said, answers, tokens)
    return said / (time.perf_counter() - began)


def compare(size: str, rounds: int, threads: int, works: list[str]) -> dict[str, Any]:
    """Both engines on one model, in turns."""
    machine = common.machine(threads)
    made = model(size)
    vocabulary, weights = made.module.vocabulary, sum(p.numel() for p in made.module.parameters())
    engines = {"local": Local(), "vllm": Vllm(threads=threads)}
    found: dict[str, Any] = {"weights": weights, "rounds": rounds, "machine": machine}
    found |= {"start": {}, "update": {}, "rate": {}}
    try:
        for name, engine in engines.items():
            engine.open(1, lambda what, amount: None)
            engine.sync({"policy": made}, 1)
            began = time.perf_counter()
            asyncio.run(draw(engine, GROUP, 2, "first", vocabulary))
            found["start"][name] = time.perf_counter() - began
        for work in works:
            rates: dict[str, list[float]] = {name: [] for name in engines}
            for r in range(rounds + 1):
                for name, engine in engines.items():
                    rates[name].append(measure(engine, work, f"{work}{r}", vocabulary))
            found["rate"][work] = {name: x[1:] for name, x in rates.items()}  # the first warms caches
        for version in (2, 3, 4):
            for name, engine in engines.items():
                began = time.perf_counter()
                engine.sync({"policy": made}, version)
                asyncio.run(draw(engine, GROUP, 1, f"v{version}", vocabulary))
                found["update"].setdefault(name, []).append(time.perf_counter() - began)
    finally:
        engines["vllm"].close()
    del engines, made
    gc.collect()
    return found


def page(found: dict[str, dict[str, Any]]) -> str:
    columns = [f"{w}: {what}" for what in ("local", "vLLM", "vLLM / local") for w in WORK]
    rows = [["weights", "rounds", *columns, "new weights: local, vLLM (s)", "ready: local, vLLM (s)", "load"]]
    for f in (found[size] for size in SIZES if size in found):
        middle = {(w, e): median(x) for w, both in f["rate"].items() for e, x in both.items()}
        ratios = {w: [a / b for a, b in zip(both["vllm"], both["local"], strict=True)] for w, both in f["rate"].items()}
        rows.append([
            f"{f['weights'] / 1e6:.1f}M",
            str(f["rounds"]),
            *(f"{middle[w, e]:,.0f}" if (w, e) in middle else "-" for e in ("local", "vllm") for w in WORK),
            *(common.shown(common.spread(ratios[w])) if w in ratios else "-" for w in WORK),
            ", ".join(f"{median(f['update'][e]):.2f}" for e in ("local", "vllm")),
            ", ".join(f"{f['start'][e]:.1f}" for e in ("local", "vllm")),
            f"{f['machine']['load']:.1f}",
        ])  # fmt: skip
    on = dict.fromkeys((m := f["machine"])["cpu"] + f", {m['cores']} cores, {m['threads']} threads each; torch "
                       f"{m['versions']['torch']}, vLLM 0.32" for f in found.values())  # fmt: skip
    return "\n".join([
        "# Engines: `local` beside vLLM", "",
        "Written by `python benchmarks/engines.py`. Tokens a second, medians of the rounds, which are in turns after",
        "one that is left out; ratios are the least, the median and the largest of a round. `256 x 24`: answers x",
        "tokens of each. `load`: of the machine, as the size began.", "", f"{'; '.join(on)}.", "",
        *common.table(*rows), "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one round, no file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="*", default=None, choices=SIZES)
    given = parser.parse_args()
    if not os.environ.get(PYTHON) and OWN.is_file():
        os.environ[PYTHON] = str(OWN)
    torch.set_num_threads(given.threads)
    rounds = 1 if given.quick else given.rounds
    sizes = given.sizes or (["0.4M", "2.6M"] if given.quick else list(SIZES))
    works = ["256 x 24"] if given.quick else list(WORK)
    found = {} if given.quick or not KEPT.is_file() else json.loads(KEPT.read_text())
    for size in sizes:
        found[size] = compare(size, rounds, given.threads, works)
        print(page(found), flush=True)
        if not given.quick:
            common.write("engines", found)
            PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
