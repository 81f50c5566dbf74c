"""A real server on a port of its own, asked by the client `openai`: 64 streams at once, who may ask, and its end.

It takes seconds because a process has to start and import torch.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from served import TEXTS, write_model

from listening import flooded, get
from shuhari.data import Sampling
from shuhari.desk.api import load
from shuhari.engines.local import Local

KEY = "a-key-of-thirty-two-characters-!"
STREAMS, LONG = 64, 40


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    base: str
    log: Path


def start(log: Path, *arguments: str) -> Server:
    """A server as a user starts it; the port is the one that it tells."""
    command = [sys.executable, "-m", "shuhari", "serve", *arguments, "--port", "0"]
    env = {**os.environ, "SERVE_KEY": KEY, "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=env)
    end = time.monotonic() + 90
    while not (found := re.search(r"http://\S+/v1", log.read_text())):
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return Server(process, found.group(), log)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("live") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = start(folder.parent / "log", str(folder), "--key-env", "SERVE_KEY", "--slots", "48")
    yield made
    made.process.kill()
    made.process.wait()


def client(server: Server, key: str = KEY, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base, api_key=key, **{"max_retries": 0, "timeout": 60, **more})


def prompts() -> list[str]:
    return [f"{TEXTS[i % len(TEXTS)]} {i}" for i in range(STREAMS)]


async def read_stream(asked: openai.AsyncOpenAI, prompt: str) -> tuple[str, list[float], str | None, int]:
    text, logp, reason, used = "", [], None, 0
    stream = await asked.completions.create(
        model="tiny", prompt=prompt, max_tokens=LONG, temperature=0, logprobs=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    async for chunk in stream:
        if chunk.usage:
            used = chunk.usage.completion_tokens
        for choice in chunk.choices:
            assert reason is None, "nothing comes after the end"
            text += choice.text
            logp += choice.logprobs.token_logprobs if choice.logprobs else []
            reason = choice.finish_reason
    return text, logp, reason, used


def test_64_streams_say_what_the_engine_says_by_itself(server: Server, folder: Path) -> None:
    torch.set_num_threads(1)

    async def served() -> list[tuple[str, list[float], str | None, int]]:
        async with client(server) as asked:
            return await asyncio.gather(*(read_stream(asked, p) for p in prompts()))

    async def by_itself() -> list[Any]:
        engine, model = Local(), load(folder).model
        engine.sync({"policy": model}, 0)
        settings = Sampling(greedy=True, max_new=LONG)
        calls = (engine.sample("policy", model.encode(p), settings, key=(p,)) for p in prompts())
        return [trace for (trace,) in await asyncio.gather(*calls)]

    found, wanted = asyncio.run(served()), asyncio.run(by_itself())
    for (text, logp, reason, used), trace in zip(found, wanted, strict=True):
        assert text == trace.info["text"] and used == len(trace.action) == len(logp)
        assert np.allclose(logp, trace.logp, atol=1e-4)
        assert reason == ("stop" if trace.info["ended"] else "length")
    assert len({text for text, *_ in found}) > STREAMS // 2 and sum(used for *_, used in found) > 10 * STREAMS


def test_the_client_reads_chats_models_and_errors(server: Server) -> None:
    async def go() -> None:
        async with client(server) as asked:
            assert [m.id async for m in asked.models.list()] == ["tiny"]
            turn: Any = [{"role": "user", "content": "What is 3 plus 4?"}]
            tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
            more: Any = {"model": "tiny", "messages": turn, "max_tokens": 8, "seed": 4, "logprobs": True, "n": 2}
            whole = await asked.chat.completions.create(**more, top_logprobs=2, user="me", extra_body={"top_k": 50})
            again = await asked.chat.completions.create(**more, top_logprobs=2, extra_body={"top_k": 50})
            assert [c.message.content for c in whole.choices] == [c.message.content for c in again.choices]
            for choice in whole.choices:
                assert choice.logprobs is not None and choice.logprobs.content is not None
                spelled = bytes(b for t in choice.logprobs.content for b in t.bytes or [])
                assert spelled.decode() == choice.message.content
                assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)
            with pytest.raises(openai.BadRequestError, match=r"messages has \d{3} tokens"):  # they stand in the prompt
                await asked.chat.completions.create(model="tiny", messages=turn, tools=tools, max_tokens=2)
            with pytest.raises(openai.NotFoundError, match="no model 'large' is served here"):
                await asked.completions.create(model="large", prompt="a")
            with pytest.raises(openai.BadRequestError, match="temperature is 3") as refused:
                await asked.completions.create(model="tiny", prompt="a", temperature=3)
            assert refused.value.param == "temperature"
            with pytest.raises(openai.BadRequestError) as long:
                await asked.completions.create(model="tiny", prompt="word " * 300)
            assert long.value.code == "context_length_exceeded"
        async with client(server, "another-key-of-32-characters-!!!") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()

    asyncio.run(go())


def test_a_client_that_goes_is_forgotten(server: Server) -> None:
    """As its connection closes in the middle of a stream, its rows leave; the server's own count says so."""

    async def go() -> None:
        async with client(server) as asked:
            for _ in range(3):
                made: Any = {"model": "tiny", "prompt": "a", "max_tokens": 150, "n": 40}
                stream = await asked.completions.create(**made, stream=True, temperature=1.9)
                await anext(aiter(stream))
                await stream.close()
            async with asyncio.timeout(20):
                while True:
                    numbers = (await asked.get("/../metrics", cast_to=str)).splitlines()
                    if "shuhari_rows 0" in numbers:
                        return
                    await asyncio.sleep(0.05)

    asyncio.run(go())


def test_2100_sockets_that_ask_nothing_keep_nobody_out(server: Server) -> None:
    port = int(server.base.rpartition(":")[2].partition("/")[0])
    with flooded(port):
        assert get(port, "/health").status_code == 200 and get(port, "/v1/models").status_code == 401
        assert get(port, "/v1/models", KEY).status_code == 200


def test_a_signal_ends_it_cleanly_and_the_log_holds_no_key(server: Server) -> None:
    """The last test of this server: a stream that runs is given its time, then all ends with 0."""

    async def go() -> str | None:
        async with client(server) as asked:
            stream = await asked.completions.create(model="tiny", prompt="a", max_tokens=30, stream=True, temperature=0)
            await anext(aiter(stream))
            server.process.send_signal(signal.SIGTERM)
            reason = None
            async for chunk in stream:
                reason = chunk.choices[0].finish_reason
            return reason

    assert asyncio.run(go()) in ("stop", "length")
    assert server.process.wait(30) == 0
    log = server.log.read_text()
    assert log.splitlines()[-1] == "ended" and KEY not in log and "Traceback" not in log
    assert "with a key" in log


def test_what_cannot_be_served_is_said_before_it_listens(folder: Path) -> None:
    def tell(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "shuhari", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, " ".join(re.sub(r"[│╭╰╮╯─]", " ", done.stderr).split())

    code, told = tell(str(folder), "--host", "0.0.0.0")
    assert code == 2 and "--key-env" in told
    code, told = tell(str(folder), "--port", "1" if os.getuid() else "99999")
    assert code == 2


def test_without_its_packages_the_error_names_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from shuhari.desk.serving.running import check_installed

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[serve\]"'):
        check_installed()
