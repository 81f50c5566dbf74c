"""The engine `openai` against a server of this test's own: the protocol of `/v1/completions` as vLLM 0.32 speaks it
(the replies below have its fields), a plain one that knows no ids, and servers that fail."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_asked import contexts, model, score

import shuhari
from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.data import Sampling
from shuhari.engines import client
from shuhari.engines.client import ServerError
from shuhari.engines.local import Local
from shuhari.engines.openai import OpenAI
from shuhari.loop.checks import check_stages

KEY = "sk-planted-0123456789abcdef"
MADE = model()


class Server:
    """`reply(body)`: (status, what is sent); `asked`: bodies and headers as they came."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.reply: Any = lambda body: (200, answer(body))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((body, dict(self.headers)))
                status, told = outer.reply(body) if self.path == "/v1/completions" else (404, {"error": self.path})
                data = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", f"http://127.0.0.1:{outer.port}/v1/completions")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def answer(body: dict[str, Any], ids: list[int] | None = None, how: str = "ids") -> dict[str, Any]:
    """A completion of `ids` (default: the seed's digits and the end), as vLLM or a plain server writes it."""
    ids = [2 + int(d) for d in str(body["seed"])[:3]] + [1] if ids is None else ids
    ids = ids[: body["max_tokens"]]
    written = [f"token_id:{i}" for i in ids] if how == "named" else [MADE.decode(np.array([i, 1])) for i in ids]
    choice: dict[str, Any] = {
        "index": 0, "text": "".join(written), "stop_reason": None,
        "finish_reason": "stop" if ids[-1] in body["stop_token_ids"] else "length",
        "logprobs": {"tokens": written, "token_logprobs": [-0.5 - i / 100 for i in ids], "text_offset": [0] * len(ids)},
    }  # fmt: skip
    if how == "ids":
        choice["token_ids"] = ids
    return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(client, "WAIT", 0.01)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def begin(server: Server, **more: Any) -> OpenAI:
    engine = OpenAI(address=server.address, model="m", **{"processed": True, "timeout": 5.0, **more})
    engine.open(7, lambda what, amount: None)
    engine.sync({"policy": MADE}, 2)
    return engine


def draw(engine: OpenAI, n: int = 2, **more: Any) -> list[Any]:
    (context,) = contexts(MADE, 1)
    return asyncio.run(engine.sample("policy", context, Sampling(max_new=8, **more), n, key=("k",)))


@pytest.mark.parametrize("how", ["ids", "named", "text"])
def test_ids_and_log_probabilities_are_the_servers(server: Server, how: str) -> None:
    server.reply = lambda body: (200, answer(body, None if how != "text" else [5, 9, 30] * 3, how))
    engine = begin(server)
    traces = draw(engine, temperature=0.7)
    bodies = [body for body, _ in server.asked]
    assert len({b["seed"] for b in bodies}) == 2 and all(0 <= b["seed"] < 1 << 63 for b in bodies)
    for body in bodies:
        assert body["prompt"] == contexts(MADE, 1)[0].tolist() and body["temperature"] == 0.7
        assert body["stop_token_ids"] == [1] and body["max_tokens"] == 8 and body["logit_bias"] == {"0": -100}
    for trace in traces:
        np.testing.assert_allclose(trace.logp, -0.5 - trace.action / 100, rtol=1e-6)
        assert (trace.version == 2).all() and trace.info["text"] == MADE.decode(trace.action)
        assert trace.info["ended"] == (how != "text")
    said = {str(b["seed"])[:3] for b in bodies}
    if how != "text":
        assert {"".join(str(i - 2) for i in t.action[:-1]) for t in traces} == said
    engine.close()


@pytest.mark.parametrize(("choice", "message"), [
    ({"token_ids": None, "logprobs": {"tokens": ["ab"], "token_logprobs": [-1.0]}}, "cannot be known"),
    ({"token_ids": [400], "logprobs": {"token_logprobs": [-1.0]}}, "cannot be known"),
    ({"token_ids": [5], "logprobs": None}, "no log-probability"),
    ({"token_ids": [5], "logprobs": {"token_logprobs": [0.7]}}, "no log-probability"),
    ({"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0]}}, "2 tokens and 1"),
    ({"token_ids": [5] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "9 tokens: expected at most 8"),
])  # fmt: skip
def test_what_cannot_be_known_is_refused(server: Server, choice: dict[str, Any], message: str) -> None:
    server.reply = lambda body: (200, {"choices": [{"finish_reason": "length", "text": "ab", **choice}]})
    with pytest.raises(ServerError, match=message):
        draw(begin(server))


def test_an_end_token_that_the_server_leaves_out_is_added(server: Server) -> None:
    told = {"finish_reason": "stop", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -2.0]}}
    server.reply = lambda body: (200, {"choices": [told]})
    trace = draw(begin(server))[0]
    assert trace.action.tolist() == [5, 6, 1] and trace.info["ended"]
    np.testing.assert_array_equal(trace.logp, np.array([-1, -2, np.nan], np.float32))


def test_a_busy_server_is_asked_again_and_a_broken_one_fails(server: Server) -> None:
    plan = [(503, {"error": "busy"}), (429, {"error": "slow down"})]
    server.reply = lambda body: plan.pop() if plan else (200, answer(body))
    assert len(draw(begin(server), 1)) == 1 and len(server.asked) == 3
    server.reply = lambda body: (500, {"error": f"boom {KEY}"})
    with pytest.raises(ServerError, match="did not answer 3 times: status 500"):
        draw(begin(server, retries=2), 1)
    server.reply = lambda body: (400, {"error": "no such model"})
    asked = len(server.asked)
    with pytest.raises(ServerError, match=r"status 400: .*no such model"):
        draw(begin(server), 1)
    assert len(server.asked) == asked + 1  # which no second time makes better
    for status, told in ((200, b"<html>"), (200, {"choices": []}), (307, b"")):
        server.reply = lambda body, status=status, told=told: (status, told)
        asked = len(server.asked)
        with pytest.raises(ServerError):
            draw(begin(server), 1)
        assert len(server.asked) == asked + 1  # and no redirect is followed


@pytest.mark.timeout(60)
def test_a_server_that_trickles_has_so_many_seconds_in_all(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body comes by a byte each 50 ms, so no single wait is long: beyond `timeout`, or once the engine is
    closed, the request ends, and the thread with it."""
    hung = threading.Event()

    def trickle(body: dict[str, Any]) -> tuple[int, bytes]:
        return 200, b" " * 2000

    slow = socketserver.StreamRequestHandler.setup

    def setup(self: Any) -> None:
        slow(self)
        write = self.wfile.write

        def slowly(data: bytes) -> int:
            if len(data) < 1000:
                return int(write(data))
            hung.set()
            for i in range(len(data)):
                write(data[i : i + 1])
                time.sleep(0.05)
            return len(data)

        self.wfile.write = slowly

    server.reply = trickle
    monkeypatch.setattr(server.http.RequestHandlerClass, "setup", setup)
    with pytest.raises(ServerError, match=r"did not answer 1 times: no whole answer within 0\.4 s"):
        draw(begin(server, timeout=0.4, retries=0), 1)
    engine = begin(server, timeout=50.0, retries=0)
    hung.clear()

    async def ask() -> None:
        asking = asyncio.ensure_future(engine.sample("policy", contexts(MADE, 1)[0], Sampling(), 1, key=("k",)))
        await asyncio.to_thread(hung.wait, 20)
        engine.close()
        with pytest.raises(ServerError):
            await asyncio.wait_for(asking, 20)

    asyncio.run(ask())


def test_the_key_goes_to_the_server_and_into_no_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    draw(begin(server, key_env="JUDGE_KEY"), 1)
    assert server.asked[0][1]["Authorization"] == f"Bearer {KEY}"
    for status in (400, 500):
        server.reply = lambda body, status=status: (status, {"error": f"bad key {KEY}"})
        with pytest.raises(ServerError, match=r"bad key \*\*\*") as raised:
            draw(begin(server, key_env="JUDGE_KEY", retries=0), 1)
        assert KEY not in str(raised.value) and raised.value.__cause__ is None
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ValueError, match="no such environment variable"):
        begin(server, key_env="JUDGE_KEY")


@pytest.mark.parametrize("settings", [
    {"key_env": KEY}, {"key_env": "sk"}, {"address": "http://judge.example:80", "key_env": "JUDGE_KEY"},
    {"address": f"https://user:{KEY}@judge.example"}, {"address": f"https://judge.example?key={KEY}"},
    {"address": "ftp://judge.example"}, {"address": "judge.example:80"},
])  # fmt: skip
def test_a_key_that_would_be_seen_is_refused_and_not_repeated(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"engine\.(key_env|address)") as raised:
        OpenAI(**settings)
    assert KEY not in str(raised.value)


def test_sampling_that_it_cannot_report_is_refused(server: Server) -> None:
    engine = begin(server)
    for sampling in (Sampling(top_k=5), Sampling(top_p=0.9), Sampling(ban=(5,)), Sampling(top=2)):
        assert engine.refuses(sampling)
    assert not engine.refuses(Sampling(temperature=0.7)) and not engine.refuses(Sampling(greedy=True))
    assert "processed" in OpenAI(address=server.address).refuses(Sampling(temperature=0.7))


def test_rescored_at_another_temperature_is_refused(server: Server) -> None:
    """Our model's log-probabilities are those at temperature 1, which the trainer would divide by those at 0.7."""
    engine = begin(server, rescore=True)
    assert not engine.refuses(Sampling()) and not engine.refuses(Sampling(greedy=True))
    with pytest.raises(ValueError, match=r"temperature is 0\.7.*rescore"):
        draw(engine, temperature=0.7)
    assert not server.asked


def test_rescored_answers_have_the_log_probability_of_our_model(server: Server) -> None:
    engine, here = begin(server, rescore=True), Local()
    here.sync({"policy": MADE}, 2)
    traces = draw(engine)
    for trace, ours in zip(traces, asyncio.run(score(here, contexts(MADE, 1) * 2, traces)), strict=True):
        np.testing.assert_allclose(trace.logp, ours, atol=1e-6)


SMALL = {"models.policy.hidden": 32, "models.policy.layers": 1, "models.policy.heads": 1, "remove": ["stage.warm-up"],
         "stage.rl.steps": 2, "buffer.size": 4, "rollout.n": 2, "evaluate.n": 0}  # fmt: skip


def test_a_role_that_is_trained_is_refused(server: Server) -> None:
    engine = {"use": "openai", "address": server.address, "processed": True}
    with pytest.raises(RecipeError, match=r"trains 'policy' in stage .*weights that do not follow.*rescore"):
        check_stages([build_stage(t) for t in load("baselines/grpo", settings={"engine": engine, **SMALL}).stages])
    check_stages([
        build_stage(t)
        for t in load("baselines/grpo", settings={"engine": {**engine, "rescore": True}, **SMALL}).stages
    ])  # fmt: skip


def test_an_address_that_does_not_answer_is_told_before_the_first_step(server: Server, tmp_path: Path) -> None:
    server.http.shutdown()
    server.http.server_close()
    engine = {"use": "openai", "address": server.address, "processed": True, "rescore": True}
    with pytest.raises(ValueError, match=rf"engine\.address '{server.address}' does not answer: Connection refused"):
        shuhari.train("baselines/grpo", tmp_path / "run", engine=engine, **SMALL)


@pytest.mark.parametrize(("timeout", "wait"), [(120.0, 5.0), (2.0, 2.0)])
def test_a_host_that_swallows_packets_is_told_within_seconds(
    server: Server, monkeypatch: pytest.MonkeyPatch, timeout: float, wait: float
) -> None:
    def connect(address: Any, timeout: float) -> None:
        waits.append(timeout)
        raise TimeoutError("timed out")

    waits: list[float] = []
    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(ValueError, match="does not answer: timed out"):
        OpenAI(address=server.address, model="m", processed=True, timeout=timeout).open(0, lambda name, n: None)
    assert waits == [wait]


def test_failures_are_counted_and_the_key_is_nowhere_in_a_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every third answer is an error that repeats the key: groups fail, none is graded 0, no file has the key."""
    monkeypatch.setenv("JUDGE_KEY", KEY)
    count = iter(range(10_000))
    server.reply = lambda body: (400, {"error": KEY}) if next(count) % 9 == 4 else (200, answer(body))
    engine = {"use": "openai", "address": server.address, "processed": True, "rescore": True, "key_env": "JUDGE_KEY"}
    run = shuhari.train("baselines/grpo", tmp_path / "run", engine=engine, **SMALL)
    assert run.summary["spent"]["failed_rollouts"] >= 1 and run.summary["spent"]["steps"] == 2
    assert all(h["Authorization"].endswith(KEY) for _, h in server.asked)
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert files and not any(KEY.encode() in p.read_bytes() for p in files)
    assert KEY not in caplog.text
    assert b"JUDGE_KEY" in (tmp_path / "run" / "recipe.toml").read_bytes()
