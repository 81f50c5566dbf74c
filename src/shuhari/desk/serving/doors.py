"""Limits on connections: how many are held, and for how long, so that idle ones do not keep others out.

A connection waits for the headers of a request for at most HEAD seconds: the first time from accepting it, later from
the end of the previous response. Waiting connections make room for new ones, first the oldest of a peer that has too
many. A peer may have a share of the requests in progress, and KEPT places are reserved for requests with the key. A
client that does not read a response for STALL seconds is dropped. Left out: limits on bodies (`bodies`), and access
(`guard`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shuhari.desk.serving.guard import asks_health, shows_key
from shuhari.desk.serving.refusals import Refused

CONNECTIONS = 2048  # at once, if the system allows as many
SPARE = 256  # open files that are not connections
KEPT = 256  # concurrent requests reserved for clients with the key
WAITING = 512  # connections of one peer that wait for headers
HEAD = 10.0  # seconds for the headers of a request to arrive
BRIEF = 0.5  # seconds for which a new connection is not evicted by others of its peer
STALL = 30.0  # seconds for which sent data may stay unread
RETRY = "1"  # seconds after which a refused client may try again
MINE = "shuhari.connection"  # key of the connection in the state of a request

Make = Callable[..., Any]  # makes the protocol of one connection, as in uvicorn


class Doors:
    """Stands between the sockets and `app`: uvicorn creates connections with `connect`, and calls this application.
    `key`: gives a request one of the reserved places, "" for none; `make`: creates uvicorn's own protocol; `most`:
    connections at once."""

    def __init__(self, app: ASGIApp, make: Make, key: str = "", most: int = CONNECTIONS) -> None:
        self.app, self.make, self.most, self._key = app, make, most, key
        self.held = 0
        self._waiting: dict[str, dict[Connection, None]] = defaultdict(dict)  # peer -> its connections, oldest first
        self._asking: Counter[str] = Counter()  # peer -> requests in progress without the key
        kept = min(KEPT, most // 4)
        self._strangers, self._each, self._wait = most - kept, (most - kept) // 2 + 1, min(WAITING, most // 4)

    def connect(self, *given: Any, app_state: dict[str, Any], **more: Any) -> Connection:
        """Return a new connection; the arguments are those of uvicorn's protocols."""
        state = {**app_state}
        made = Connection(self, lambda: self.make(*given, app_state=state, **more))
        state[MINE] = made
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine: Connection | None = scope.get("state", {}).get(MINE)
        if mine is None:  # not an HTTP request, or a test's
            await self.app(scope, receive, send)
            return
        known = bool(self._key) and shows_key(scope, self._key)
        try:
            with self._answering(mine, known, free=known or asks_health(scope)):
                await self.app(scope, receive, send)
        except Refused as refused:
            await JSONResponse(refused.body, refused.status, dict(refused.headers))(scope, receive, send)

    @contextmanager
    def _answering(self, mine: Connection, known: bool, free: bool) -> Iterator[None]:
        mine.begin(known)
        try:
            if free:
                yield
                return
            if self._asking[mine.peer] >= self._each or self._asking.total() >= self._strangers:
                raise Refused("too many requests are being answered; ask again later", code="overloaded", status=503,
                              headers={"Retry-After": RETRY, "Connection": "close"})  # fmt: skip
            self._asking[mine.peer] += 1
            try:
                yield
            finally:
                self._asking[mine.peer] -= 1
                self._asking += Counter()  # removes peers without requests
        finally:
            mine.end()

    # ---------------------------------------------------------------- called by connections

    def admit(self, new: Connection) -> bool:
        """Return whether there is a place for a new connection; older waiting ones make room."""
        mine, now = self._waiting.get(new.peer, {}), asyncio.get_running_loop().time()
        while len(mine) >= self._wait and now - (oldest := next(iter(mine))).since > BRIEF:
            oldest.drop()
        if self.held >= self.most:
            if not self._waiting:
                return False
            crowd = max(self._waiting.values(), key=len)
            next(iter(crowd)).drop()
        self.held += 1
        return True

    def wait(self, one: Connection) -> None:
        """Record that a connection has no request now. One that has shown the key keeps its place."""
        if not one.known:
            self._waiting[one.peer][one] = None

    def leave(self, one: Connection) -> None:
        """Record that it no longer waits."""
        if (mine := self._waiting.get(one.peer)) is not None:
            mine.pop(one, None)
            if not mine:
                del self._waiting[one.peer]


class Connection:
    """A connection, an `asyncio.Protocol` that passes everything on to uvicorn's protocol."""

    def __init__(self, doors: Doors, make: Callable[[], Any]) -> None:
        self.doors, self._make = doors, make
        self.peer, self.since, self.known = "", 0.0, False
        self._inner: Any = None
        self._transport: Any = None
        self._held, self._busy = False, 0  # requests in progress
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = name_peer(transport.get_extra_info("peername"))
        self.since = asyncio.get_running_loop().time()
        self._held = self.doors.admit(self)
        if not self._held:
            self._transport.abort()
            return
        self._inner = self._make()
        self._inner.connection_made(transport)
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        if self._inner is not None:
            self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        ended: bool | None = self._inner.eof_received()
        return ended

    def pause_writing(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(STALL, self.drop)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._inner.resume_writing()

    def begin(self, known: bool) -> None:
        """Called when the headers of a request have arrived."""
        self._busy += 1
        self.known = self.known or known
        self._stop_waiting()

    def end(self) -> None:
        """Called when the request is answered."""
        self._busy -= 1
        if not self._busy and self._held:
            self.since = asyncio.get_running_loop().time()
            self._wait()

    def drop(self) -> None:
        """Close it at once, discarding unsent data."""
        self._forget()
        self._transport.abort()

    def _wait(self) -> None:
        self._head = asyncio.get_running_loop().call_later(HEAD, self.drop)
        self.doors.wait(self)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self.doors.leave(self)

    def _forget(self) -> None:
        self._stop_waiting()
        if self._stall is not None:
            self._stall.cancel()
        if self._held:
            self._held = False
            self.doors.held -= 1


def name_peer(address: Any) -> str:
    """Return the name under which a peer is counted: its address; for IPv6 the /64 network, which belongs to one
    client."""
    host = str(address[0]) if address else ""
    try:
        at = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if at.version == 4 else str(ipaddress.ip_network((at, 64), strict=False))


def find_most() -> int:
    """Return how many connections the system lets this process hold, after raising its limit of open files if allowed.
    Twice as many files must be free, because a dropped connection closes a moment later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(CONNECTIONS, (soft - SPARE) // 2))
