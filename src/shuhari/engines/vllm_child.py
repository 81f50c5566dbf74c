"""Holds vLLM's AsyncLLM for `vllm.py`, in a process of its own. Run by vLLM's interpreter, without the package.

Lines of JSON come on standard input and go back on standard output; all that vLLM prints goes to standard error, which
the parent has made a file. The first line is {"model", "version", "engine": arguments of AsyncEngineArgs, "folder"},
its reply {"ready": true, "vllm": its version} or {"error": text}; the folder is removed at the end. Then, each with an
"id" that its reply repeats:

    {"do": "generate", "ids", "max", "seed", "temperature", "top_p", "top_k", "min_p", "greedy", "stops", "never",
     "kept"}
      -> {"tokens", "logp", "versions": [[version, first, last + 1]], "stopped", "kept": [[[id, logp], ..], ..]}
    {"do": "score", "ids", "all"}
      -> {"logp": of each token but the first} and, with all, {"never": [[of each of all], ..]}
    {"do": "update", "path", "version"} -> {"seconds"}   weights in place; running rows wait, and are read again
    {"do": "cancel", "which": ids}      no reply; a "generate" that it calls off is answered with its tokens so far

or {"error": text, "fatal": whether the engine is gone}. `kept`: so many alternatives a decision, -1 for all, 0 for
none. Standard input that ends ends this process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

Say = Callable[[dict[str, Any]], None]


def load(name: str) -> Any:
    return importlib.import_module(name)


class Server:
    """The engine, and the tasks that wait for it."""

    def __init__(self, engine: Any, say: Say) -> None:
        self.engine, self.say = engine, say
        self.tasks: dict[Any, asyncio.Task[None]] = {}
        self.params = load("vllm").SamplingParams
        self.final = load("vllm.sampling_params").RequestOutputKind.FINAL_ONLY

    def take(self, request: dict[str, Any]) -> None:
        """Begin the work that a line requests."""
        if request["do"] == "cancel":
            for which in request["which"]:
                if which in self.tasks:
                    asyncio.ensure_future(self.call_off(which, self.tasks[which]))  # noqa: RUF006
            return
        do = {"generate": self.generate, "score": self.score, "update": self.update}[request["do"]]
        self.tasks[request["id"]] = asyncio.ensure_future(self.reply(request["id"], do(request)))

    async def reply(self, ticket: Any, answer: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            self.say({"id": ticket, **await answer})
        except Exception as error:
            fatal = type(error).__name__ == "EngineDeadError" or bool(self.engine.errored)
            self.say({"id": ticket, "error": f"{type(error).__name__}: {error}"[:2000], "fatal": fatal})
        finally:
            self.tasks.pop(ticket, None)

    async def call_off(self, ticket: Any, task: asyncio.Task[None]) -> None:
        """Abort a request: vLLM returns what was drawn so far; a request that it has not begun, or does not end, is
        dropped."""
        await self.engine.abort(f"r{ticket}")
        await asyncio.wait({task}, timeout=1.0)
        task.cancel()

    async def last(self, ids: list[int], ticket: Any, **settings: Any) -> Any:
        params = self.params(detokenize=False, output_kind=self.final, ignore_eos=True, **settings)
        output = None
        async for output in self.engine.generate({"prompt_token_ids": ids}, params, f"r{ticket}"):  # noqa: B007
            pass
        return output

    async def generate(self, r: dict[str, Any]) -> dict[str, Any]:
        kept, warmth = r["kept"], 0.0 if r["greedy"] else r["temperature"]
        bias = {i: float("-inf") for i in r["never"]}
        output = await self.last(
            r["ids"], r["id"], max_tokens=r["max"], seed=r["seed"], temperature=warmth,
            top_p=r["top_p"], top_k=r["top_k"], min_p=r["min_p"], stop_token_ids=r["stops"], logprobs=kept,
            logit_bias=bias or None,
        )  # fmt: skip
        said = output.outputs[0]
        tokens = [int(t) for t in said.token_ids]
        reply: dict[str, Any] = {
            "tokens": tokens,
            "logp": [float(d[t].logprob) for d, t in zip(said.logprobs, tokens, strict=True)],
            "versions": [[s.version, s.start, s.end] for s in said.weight_versions or ()],
            "stopped": said.finish_reason == "stop",
        }
        if kept:
            low = float("-inf")
            reply["kept"] = [
                [[int(i), p.logprob] for i, p in d.items() if p.logprob > low]
                for d in said.logprobs
            ]
        return reply

    async def score(self, r: dict[str, Any]) -> dict[str, Any]:
        ids = r["ids"]
        output = await self.last(ids, r["id"], max_tokens=1, temperature=0.0, prompt_logprobs=-1 if r["all"] else 0)
        found = output.prompt_logprobs[1:]
        reply: dict[str, Any] = {"logp": [float(d[t].logprob) for d, t in zip(found, ids[1:], strict=True)]}
        if r["all"]:
            reply["never"] = [
                [float(d[i].logprob) for i in r["all"]]
                for d in found
            ]
        return reply

    async def update(self, r: dict[str, Any]) -> dict[str, Any]:
        """Load new weights. The key-value cache is cleared, so that running rows are read again by the new weights."""
        began = time.perf_counter()
        await self.engine.pause_generation(mode="keep", clear_cache=True)
        await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": r["path"]})
        await self.engine.update_weight_version(str(r["version"]))
        await self.engine.resume_generation()
        return {"seconds": time.perf_counter() - began}


def end(engine: Any) -> None:
    """End what vLLM has started: its process ends by itself within a second, or not at all."""
    try:
        engine.shutdown(timeout=1.0)
    except TypeError:  # of other versions
        engine.shutdown()


async def serve(replies: Any) -> None:
    def say(reply: dict[str, Any]) -> None:
        try:
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
        except BrokenPipeError:  # the parent was killed: it removes nothing any more
            shutil.rmtree(first["folder"], ignore_errors=True)
            raise

    loop = asyncio.get_running_loop()
    lines: asyncio.StreamReader = asyncio.StreamReader(limit=1 << 30)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    first = json.loads(await lines.readline())
    try:
        vllm = load("vllm")
        if load("vllm.platforms").current_platform.is_cpu():
            first["engine"].setdefault("block_size", 32)  # the smallest that there is: more of a prefix is shared
            # of a prompt that is read in parts the draw before its end is taken back, which kills vLLM where draws have
            # seeds: generators of a CPU cannot go back
            first["engine"].setdefault("enable_chunked_prefill", False)
            first["engine"].setdefault("max_num_batched_tokens", max(2048, first["engine"]["max_model_len"]))
            if first["engine"].get("tensor_parallel_size", 1) == 1:  # no process for one worker beside the engine's
                os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        arguments = load("vllm.engine.arg_utils").AsyncEngineArgs(model=first["model"], **first["engine"])
        engine = load("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(arguments)
        await engine.update_weight_version(str(first["version"]))
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {error}"[:2000]})
        return
    say({"ready": True, "vllm": vllm.__version__})
    server = Server(engine, say)
    try:
        while line := await lines.readline():
            server.take(json.loads(line))
    finally:
        end(engine)
        shutil.rmtree(first["folder"], ignore_errors=True)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what anything prints goes to the log
    code = 0
    try:
        asyncio.run(serve(replies))
    except BaseException as error:
        code = 1
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)  # vLLM's threads and sockets would hold it up for longer than it is waited for


if __name__ == "__main__":
    main()
