"""Connections that ask nothing, take nothing, or send half a body, against a real server: they keep nobody out."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from listening import FLOOD, connect, count_open, flooded, get, is_open, served, take, until
from shuhari.desk.serving import bodies, doors
from shuhari.desk.serving.bodies import BODY, Bodies, read_object
from shuhari.desk.serving.doors import name_peer
from shuhari.desk.serving.events import refuse, wait_gone
from shuhari.desk.serving.guard import Guard
from shuhari.desk.serving.refusals import Refused

KEY = "a-key-of-thirty-two-characters-!"
POST = b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


def make_app(key: str = "", began: list[int] | None = None) -> Any:
    """/health, /body (the length of a JSON object), /wait (until who asks has gone), /stream (never ends)."""
    reader, ended = Bodies(), began if began is not None else []

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def body(request: Request) -> Response:
        return PlainTextResponse(str(len(await reader.read(request, read_object))))

    async def wait(request: Request) -> Response:
        await wait_gone(request.receive)
        return PlainTextResponse("gone")

    async def stream(request: Request) -> Response:
        async def write() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                ended.append(1)

        return StreamingResponse(write())

    routes = [Route("/health", health), Route("/body", body, methods=["POST"]), Route("/wait", wait),
              Route("/stream", stream)]  # fmt: skip
    return Guard(Starlette(routes=routes, exception_handlers={Refused: refuse}), key=key)


def ask(path: str, key: str = "") -> bytes:
    bearer = f"Authorization: Bearer {key}\r\n" if key else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n".encode()


def test_sockets_that_never_finish_their_headers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while they are there nor for long: after their time they are let go."""
    monkeypatch.setattr(doors, "HEAD", 3.0)
    with served(make_app(KEY), KEY) as port, flooded(port) as held:
        for _ in range(3):
            assert get(port, "/health").status_code == 200 and get(port, "/stranger").status_code == 401
            assert get(port, "/nosuch", KEY).status_code == 404
        assert count_open(held) <= doors.CONNECTIONS < FLOOD
        until(lambda: not count_open(held))
        assert get(port, "/health").status_code == 200


def test_headers_that_come_letter_by_letter_have_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HEAD", 0.5)
    with served(make_app()) as port:
        first, again = connect(port, b"GET /hea"), connect(port, ask("/health"))
        assert take(again) == 200
        again.sendall(b"GET /hea")  # the headers of a second request over the same connection
        began = time.monotonic()
        for one in (first, again):
            with pytest.raises(ConnectionError):
                trickle(one)
        assert time.monotonic() - began < 3


def trickle(one: socket.socket) -> None:
    for _ in range(400):
        one.sendall(b"a")
        time.sleep(0.01)


def test_a_peer_has_so_many_that_wait_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "WAITING", 4)
    monkeypatch.setattr(doors, "BRIEF", 0.0)
    with served(make_app(KEY), KEY) as port:
        mine = connect(port, ask("/nosuch", KEY))
        assert take(mine) == 404  # it has shown the key, so its connection stays
        held = []
        for _ in range(9):
            held.append(connect(port, b"GET "))
            time.sleep(0.02)
        until(lambda: count_open(held) == 4)
        assert [is_open(one) for one in held] == [False] * 5 + [True] * 4
        mine.settimeout(5)
        mine.sendall(ask("/nosuch", KEY))
        assert take(mine) == 404


def test_requests_without_the_key_leave_places_for_those_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "CONNECTIONS", 64)
    app = make_app(KEY)
    app = Guard(app.app, key=KEY, is_open=lambda scope: scope["path"] != "/key")  # strangers may ask /wait
    with served(app, KEY) as port:
        held = [connect(port, ask("/wait")) for _ in range(40)]
        until(lambda: count_open(held) == 25)  # of one peer: half of the places that are not kept, and one
        assert get(port, "/wait", seconds=2).status_code == 503
        assert get(port, "/health").status_code == 200 and get(port, "/key", KEY).status_code == 404
        for one in held:
            one.close()
        until(lambda: get(port, "/nosuch").status_code == 404)


def test_who_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "STALL", 0.5)
    ended: list[int] = []
    with served(make_app(began=ended)) as port:
        held = [connect(port, ask("/stream")) for _ in range(20)]
        time.sleep(0.2)
        assert get(port, "/health").status_code == 200 and not ended
        until(lambda: len(ended) == 20)
        for one in held:
            one.close()


def test_a_body_that_stops_is_given_up_and_many_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.7)
    monkeypatch.setattr(bodies, "HELD", 100_000)
    with served(make_app()) as port:
        held = [connect(port, POST % (BODY, b"x" * 30_000)) for _ in range(5)]
        assert get(port, "/health").status_code == 200
        time.sleep(0.2)
        assert sorted(take(one) for one in held) == [408, 408, 408, 503, 503]
        whole = connect(port, POST % (2, b"{}"))
        assert take(whole) == 200, "what they held is free again"
        for one in (*held, whole):
            one.close()


def fill(piece: str, begin: str, end: str) -> bytes:
    """As many pieces as a body may have."""
    n = (BODY - len(begin) - len(end)) // (len(piece) + 1)
    return f"{begin}{','.join([piece] * n)}{end}".encode()


LARGEST = {
    "objects": fill('{"a":1}', '{"a":[', "]}"),
    "empty": fill("{}", '{"a":[', "]}"),
    "numbers": fill("1", '{"prompt":[', "]}"),
    "floats": fill("1e-9", '{"prompt":[', "]}"),
    "keys": ("{" + ",".join(f'"{i:x}":0' for i in range(BODY // 10)) + "}").encode(),
    "escapes": ('{"prompt":"' + r"\ud83d" * (BODY // 6 - 20) + '"}').encode(),
    "deep": b'{"a":' * 190_000,
    "digits": b'{"a":' + b"9" * (BODY - 10) + b"}",
    "twice": ("{" + ",".join(f'"{i}":0' for i in (*range(5000), 4999)) + "}").encode().rjust(BODY),
    "spaces": b" " * (BODY - 2) + b"{}",
}


PROBE = """
import socket, sys, time
probe, longest = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20), []
print("ready", flush=True)
sys.stdin.readline()
end = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    began = time.perf_counter()
    probe.sendall(b"GET /health HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    reply = b""
    while not reply.endswith(b"ok"):
        reply += probe.recv(4096)
    longest.append(time.perf_counter() - began)
print(max(longest))
"""  # in a process of its own, as this one takes part in what the server's threads wait for


def measure_load(body: bytes) -> float:
    """How many times as long as by itself such a body takes on this machine now, 1 or more."""
    began, worked = time.perf_counter(), time.process_time()
    with suppress(Refused):
        read_object(body)
    return max(1.0, (time.perf_counter() - began) / max(0.001, time.process_time() - worked))


def measure_longest(port: int, body: bytes) -> float:
    """Seconds of the slowest of many requests while three such bodies are parsed."""
    sent = [connect(port, POST % (len(body), b"")) for _ in range(3)]
    command = [sys.executable, "-c", PROBE, str(port), "0.6"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin and probe.stdout and probe.stdout.readline() == "ready\n"
        probe.stdin.write("\n")
        probe.stdin.flush()
        for one in sent:
            one.sendall(body)
        longest = float(probe.stdout.readline())
    assert {take(one) for one in sent} <= {200, 400}
    return longest


@pytest.mark.parametrize("name", LARGEST)
def test_health_is_answered_while_the_largest_bodies_are_parsed(name: str) -> None:
    """Within 100 ms of this machine's time. Of a few tries one is enough, as other work comes between now and then."""
    assert 0.9 * BODY < len(LARGEST[name]) <= BODY
    with served(make_app()) as port:
        get(port, "/health")
        tries = ((measure_load(LARGEST[name]), measure_longest(port, LARGEST[name])) for _ in range(6))
        assert any(longest < 0.1 * load for load, longest in tries)


def test_an_address_of_ipv6_counts_with_its_network() -> None:
    assert name_peer(("192.0.2.7", 5)) == "192.0.2.7" and name_peer(None) == ""
    assert name_peer(("2001:db8::1", 5, 0, 0)) == name_peer(("2001:db8::ffff:2", 9, 0, 0))
    assert name_peer(("2001:db8::1", 5)) != name_peer(("2001:db9::1", 5))
    assert name_peer(("fe80::1%eth0", 5, 0, 2)) == name_peer(("fe80::2", 5))


def test_a_body_is_an_object() -> None:
    for text in (b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff", b"[" * 100_000):
        with pytest.raises(Refused):
            read_object(text)
    assert read_object(json.dumps({"a": [1]}).encode()) == {"a": [1]}
