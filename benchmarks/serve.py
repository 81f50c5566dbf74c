"""Time to the first token and tokens a second of `shuhari serve`, at 1, 8 and 64 streams, beside the engine alone.

    python benchmarks/serve.py [--vllm PYTHON] [--rounds 5] [--quick]     a quarter of an hour; writes
                                                                results/serve.json, and serve.md here
    python benchmarks/serve.py --sizes 120M --rounds 1 --new 32     this size too; the others stay as measured

Models have random weights over characters and never say their end token. A stream is a prompt of 64 characters of its
own and an answer of `new` tokens at temperature 1; all of a round begin at once. The client is this process, on the
same cores: it reads bytes from sockets and does little more. First token: from sending a request to the first text,
over all streams of a round; tokens a second: all tokens over the time from the first request to the last end. `engine
alone` is the same rows in one process without a server. --vllm: the Python of an environment in which `vllm` imports;
its server gets the same directory and the same requests, one round of it after one of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, machine, shown, spread, table, write

SIZES = {
    "0.4M": {"hidden": 96, "layers": 3, "heads": 3, "intermediate": 256},
    "2.6M": {"hidden": 256, "layers": 3, "heads": 4, "intermediate": 768},
    "15M": {"hidden": 512, "layers": 5, "heads": 8, "intermediate": 1365},
    "120M": {"hidden": 1024, "layers": 9, "heads": 16, "intermediate": 2816},
}
STREAMS, PROMPT, CONTEXT = (1, 8, 64), 64, 512


def write_model(folder: Path, sizes: dict[str, int]) -> int:
    """A directory of Hugging Face; how many weights it has."""
    import torch

    import shuhari

    torch.manual_seed(0)
    model: Any = shuhari.session({"use": "causal", "context": CONTEXT, **sizes}).models["policy"]
    model.module.lm.generation_config.suppress_tokens = [0, model.end]
    model.save(folder)
    return sum(p.numel() for p in model.module.parameters())


def prompts(n: int, round: int) -> list[str]:
    return [f"round {round} stream {i} ".ljust(PROMPT, "abcdefgh"[i % 8]) for i in range(n)]


# ---------------------------------------------------------------- servers


@contextmanager
def ours(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "shuhari", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            found = re.search(r"http://(\S+)/v1", server.stdout.readline())  # type: ignore[union-attr]
            assert found, "our server did not start"
            yield found.group(1)
        finally:
            server.terminate()


@contextmanager
def theirs(folder: Path, python: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1",
               "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager",
               "--block-size", "32", "--served-model-name", folder.name]  # fmt: skip
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    env = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder.parent / "vllm.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, env=env) as s:
        try:
            for _ in range(600):
                assert s.poll() is None, (folder.parent / "vllm.log").read_text()[-3000:]
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.5)
            yield f"127.0.0.1:{port}"
        finally:
            s.terminate()


# ---------------------------------------------------------------- the client


async def stream(address: str, model: str, prompt: str, new: int, more: dict[str, Any]) -> tuple[float, int]:
    """(seconds to the first text, tokens)."""
    host, _, port = address.rpartition(":")
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": new, "temperature": 1.0, "stream": True,
                       "stream_options": {"include_usage": True}, **more}).encode()  # fmt: skip
    began, first, used = time.perf_counter(), 0.0, 0
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    async for line in reader:
        if not first and line.startswith(b"data: "):
            first = time.perf_counter() - began
        if b'"completion_tokens":' in line:
            used = int(re.search(rb'"completion_tokens":\s*(\d+)', line)[1])  # type: ignore[index]
    writer.close()
    assert used == new, f"{used} tokens of {new}"
    return first, used


def ask(address: str, model: str, n: int, new: int, round: int, more: dict[str, Any]) -> dict[str, Any]:
    async def go() -> list[tuple[float, int]]:
        return await asyncio.gather(*(stream(address, model, p, new, more) for p in prompts(n, round)))

    began = time.perf_counter()
    found = asyncio.run(go())
    took = time.perf_counter() - began
    return {"first": [f for f, _ in found], "rate": sum(k for _, k in found) / took}


def alone(folder: Path, new: int, rounds: int) -> dict[str, list[float]]:
    """Tokens a second of the engine in this process, by the number of rows."""
    import shuhari
    from shuhari.data import Sampling
    from shuhari.engines.local import Local

    model = shuhari.load(folder).model
    engine = Local(slots=256)
    engine.sync({"policy": model}, 0)

    async def go(n: int, round: int) -> None:
        calls = (engine.sample("policy", model.encode(p), Sampling(max_new=new), key=(p,)) for p in prompts(n, round))
        await asyncio.gather(*calls)

    found: dict[str, list[float]] = {}
    for round in range(-1, rounds):
        for n in STREAMS:
            began = time.perf_counter()
            asyncio.run(go(n, round))
            if round >= 0:
                found.setdefault(str(n), []).append(n * new / (time.perf_counter() - began))
    return found


def measure(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    place = folder / name
    weights = write_model(place, SIZES[name])
    command = [sys.executable, __file__, "--alone", str(place), "--rounds", str(args.rounds), "--new", str(args.new)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    about = {"machine": machine(0), "rounds": args.rounds, "new": args.new}
    found: dict[str, Any] = {"weights": weights, **about, "sides": {}}
    found["alone"] = json.loads(done.stdout.splitlines()[-1])
    with ExitStack() as stack:
        sides: dict[str, tuple[str, dict[str, Any]]] = {"shuhari": (stack.enter_context(ours(place)), {})}
        if args.vllm:
            sides["vLLM"] = stack.enter_context(theirs(place, args.vllm)), {"ignore_eos": True}
        for round in range(-1, args.rounds):  # the first is not counted
            for n in STREAMS:
                for side, (address, more) in sides.items():
                    told = ask(address, name, n, args.new, round, more)
                    if round >= 0:
                        kept = found["sides"].setdefault(side, {}).setdefault(str(n), {"first": [], "rate": []})
                        kept["first"].append(statistics.median(told["first"]))
                        kept["rate"].append(told["rate"])
    print(f"{name}: done", flush=True)
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The page."""
    rows = [("model", "tokens", "streams", "side", "first token, ms", "tokens a second", "of our engine alone")]
    scale: Callable[[list[float]], dict[str, float]] = lambda x: spread([1e3 * v for v in x])  # noqa: E731
    for one in (found[name] for name in SIZES if name in found):
        for n, side in ((n, side) for n in map(str, STREAMS) for side in one["sides"]):
            told, base = one["sides"][side][n], statistics.median(one["alone"][n])
            share = statistics.median(told["rate"]) / base
            row = (f"{one['weights'] / 1e6:.1f}M", str(one["new"]), n, side)
            rows.append((*row, shown(scale(told["first"]), 0), shown(spread(told["rate"]), 0), f"{share:.2f}"))
    rounds = ", ".join(f"{one['weights'] / 1e6:.1f}M: {one['rounds']}" for one in found.values())
    on = dict.fromkeys(f"{(m := one['machine'])['cpu']}, {m['cores']} cores, client and server together; Python "
                       f"{m['python']}, torch {m['versions']['torch']}" for one in found.values())  # fmt: skip
    return [
        "# Serving",
        "",
        "Written by `python benchmarks/serve.py`, which says how it was measured. min / median / max over the rounds "
        "of a model",
        f"({rounds}); of the first token each round gives the median of its streams. Prompts of {PROMPT} tokens; "
        "`tokens`: of an answer.",
        "",
        *table(*rows),
        "",
        f"{'; '.join(on)}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default="", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=192, help="tokens of an answer")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES)[:3], choices=SIZES)
    parser.add_argument("--quick", action="store_true", help="two rounds of 32 tokens, printed and not written")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(alone(args.alone, args.new, args.rounds)))
        return
    if args.quick:
        args.rounds, args.new = 2, 32
    kept = RESULTS / "serve.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() and not args.quick else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.sizes:
            found[name] = measure(name, args, Path(folder))
    page = lines(found)
    print(*page, sep="\n")
    if not args.quick:
        write("serve", found)
        (HERE / "serve.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
