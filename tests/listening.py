"""A server on a port of its own in a thread of this process, and sockets that ask it as no client would."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from shuhari.desk.serving.running import listen, make_server

UNFINISHED = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
FLOOD = 2100  # sockets that never finish their headers


@contextmanager
def served(app: Any, key: str = "") -> Iterator[int]:
    """The port at which `app` is served."""
    at, server = listen("127.0.0.1", 0), make_server(app, 0, key)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
    port = int(at.getsockname()[1])
    thread.start()
    try:
        yield port
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)


def connect(port: int, begin: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=20)
    made.sendall(begin)
    return made


@contextmanager
def flooded(port: int, begin: bytes = UNFINISHED, n: int = FLOOD) -> Iterator[list[socket.socket]]:
    """While so many sockets are open that have sent this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * n)), hard))
    held: list[socket.socket] = []
    try:
        for _ in range(n):
            held.append(connect(port))
            with suppress(OSError):  # dropped already
                held[-1].sendall(begin)
        yield held
    finally:
        for one in held:
            one.close()


def take(one: socket.socket) -> int:
    """The status of the next reply over a connection, which is read to its end."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = one.recv(1)
        assert part, "it was closed"
        head += part
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while length:
        length -= len(one.recv(length))
    return int(head.split()[1])


def is_open(one: socket.socket) -> bool:
    """Whether the other side holds it still, and has said nothing."""
    one.settimeout(0.0)
    try:
        return one.recv(1) == b"?"
    except BlockingIOError:
        return True
    except OSError:
        return False


def count_open(held: list[socket.socket]) -> int:
    return sum(map(is_open, held))


def get(port: int, path: str, key: str = "", seconds: float = 5.0) -> httpx.Response:
    """A reply over a connection of its own."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=seconds)


def until(holds: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.02)
