"""A client of one HTTP server that answers JSON with JSON: retries, one time limit for a whole answer, bounded sizes, a
key that is sent to that server alone. Left out: streams, redirects, proxies.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

LOOPBACK = ("127.0.0.1", "::1", "localhost")
AGAIN = (408, 409, 429, 500, 502, 503, 504)  # of a server that may have time later
WAIT, LONGEST = 0.5, 30.0  # seconds before a request is sent again: doubled each time, up to
REACH = 5.0  # seconds, at most, in which a server takes a connection as a run begins


class ServerError(RuntimeError):
    """The error if a server does not answer, or answers with something else."""


class _Busy(Exception):
    """A reply after which the request may be sent again, in `wait` seconds or later."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.what, self.wait = what, wait


@dataclass
class Client:
    """Requests to the server at `address` (`http://HOST:PORT` or `https://HOST`, with a path or without).

    `key_env`: environment variable of the key, sent over https or to this machine only; `connections`: requests at
    once; `timeout`: seconds for a whole answer; `retries`: how often a request is sent again if the server is busy or
    gone; `largest`: bytes of an answer; `setting`, `key_setting`: names of address and key in errors. Raises ValueError
    for an address or a key that cannot be used, and shows neither.
    """

    address: str
    key_env: str
    connections: int
    timeout: float
    retries: int
    largest: int
    setting: str
    key_setting: str
    _pool: ThreadPoolExecutor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if (parts := _split(self.address)) is None:
            raise ValueError(f"{self.setting}: expected http://HOST:PORT or https://HOST, without a key or a query")
        if self.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", self.key_env):  # what stands there is not shown
            raise ValueError(f"{self.key_setting}: expected the name of an environment variable, such as "
                             "OPENAI_API_KEY, and not the key itself")  # fmt: skip
        if self.key_env and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ValueError(f"{self.setting} {self.address!r} with a key: expected https, or a server on this machine")
        self._parts = parts
        self._open: set[Any] = set()  # sockets that are being waited at, and of these
        self._late: set[Any] = set()  # those that were ended

    def find_key(self) -> str:
        """Return the key; "" without `key_env`. Raises ValueError if the environment variable is not set."""
        if not self.key_env:
            return ""
        if not (key := os.environ.get(self.key_env, "").strip()):
            raise ValueError(f"{self.key_setting} is {self.key_env!r}, and no such environment variable is set")
        return key

    def reach(self) -> None:
        """Raise ValueError if nothing listens at the address."""
        port = self._parts.port or {"http": 80, "https": 443}[self._parts.scheme]
        try:
            socket.create_connection((str(self._parts.hostname), port), min(REACH, self.timeout)).close()
        except OSError as error:
            why = error.strerror or str(error)
            raise ValueError(f"{self.setting} {self.address!r} does not answer: {why}; expected a server that runs "
                             "before this run begins") from None  # fmt: skip

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the JSON object with which the server answers `body` at `path`, below the address's own path; sent
        repeatedly if the server is busy. Raises ServerError."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.connections, "client")
        pool, loop, data, wait = self._pool, asyncio.get_running_loop(), json.dumps(body).encode(), WAIT
        for left in range(self.retries, -1, -1):
            try:
                return await loop.run_in_executor(pool, self._post, path, data)
            except _Busy as busy:
                if not left:
                    raise ServerError(f"{self.address} did not answer {self.retries + 1} times: {busy.what}") from None
                await asyncio.sleep(min(max(wait, busy.wait), LONGEST))
                wait *= 2
        raise AssertionError

    def close(self) -> None:
        """End the open requests and their threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for sock in list(self._open):
            self._end(sock)
        self._pool = None

    def _post(self, path: str, data: bytes) -> Mapping[str, Any]:
        """Send one request, of `timeout` seconds in all once connected. It follows no redirect and uses no proxy, so
        that the key goes nowhere else."""
        parts, key = self._parts, self.find_key()
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(parts.hostname), parts.port, timeout=self.timeout)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        sock, late = None, None
        try:
            connection.connect()
            sock = connection.sock
            late = threading.Timer(self.timeout, self._end, (sock,))  # a server may trickle, and no wait is long
            late.daemon = True
            late.start()
            self._open.add(sock)
            connection.request("POST", f"{parts.path.rstrip('/')}{path}", data, headers)
            reply = connection.getresponse()
            read = reply.read(self.largest + 1)
            text = read.decode("utf-8", "replace")
            status, later = reply.status, reply.getheader("Retry-After") or ""
            if sock in self._late:
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if sock in self._late or (sock is not None and isinstance(error, TimeoutError)):
                raise _Busy(f"no whole answer within {self.timeout:g} s") from None
            raise _Busy(f"{type(error).__name__}: {_hide(str(error), key)}") from None
        finally:
            if late is not None:
                late.cancel()
            self._open.discard(sock)
            self._late.discard(sock)
            connection.close()
        if status in AGAIN:
            wait = float(later) if re.fullmatch(r"\d{1,4}", later) else 0.0
            raise _Busy(f"status {status}: {_hide(text, key)}", wait)
        if status != 200:
            raise ServerError(f"{self.address} answered with status {status}: {_hide(text, key)}")
        if len(read) > self.largest:
            raise ServerError(f"{self.address} answered with more than {self.largest} bytes: expected at most those")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ServerError(f"{self.address} answered with something that is not JSON: {_hide(text, key)}")
        return found

    def _end(self, sock: socket.socket) -> None:
        """End a connection that another thread waits for, since closing alone would not wake it."""
        self._late.add(sock)
        with suppress(OSError):  # it has ended
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _split(address: str) -> SplitResult | None:
    """Return the parts of an address; None for one that cannot be used, or that has more in it."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        return None
    return parts if usable and not parts.username and not parts.query else None


def _hide(text: str, key: str) -> str:
    """Return the first 300 characters of a server's text, without the key, which the server may repeat."""
    return (text.replace(key, "***") if key else text)[:300]
