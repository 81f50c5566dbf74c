"""Which connections are held, and for how long, so that those that never ask keep nobody out.

A connection waits until the headers of a request are there: HEAD seconds at most, of the first request from the accept
on, of a further one from the end of the answer before it. Those that wait make room for new ones, the oldest of a peer
that has too many first. Of the requests that are being answered, a peer has a share, and KEPT places are for those that
show the key. Who does not take an answer for STALL seconds is let go.

Left out: what a body may be and how long it may take (`bodies`), and who may ask at all (`guard`).
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

CONNECTIONS = 2048  # at once, where the system allows as many
SPARE = 256  # open files that are no connections
KEPT = 256  # requests at once that only those may make who show the key
WAITING = 512  # connections of one peer that wait for headers
HEAD = 10.0  # seconds for the headers of a request to be there
BRIEF = 0.5  # seconds for which a new connection keeps its place beside many of the same peer
STALL = 30.0  # seconds for which what was sent may stand untaken
RETRY = "1"  # seconds after which one that was sent away may ask again
MINE = "shuhari.connection"  # under which the state of a request has its connection

Make = Callable[..., Any]  # of the protocol of one connection, as uvicorn makes them


class Doors:
    """Stands between the sockets and `app`: uvicorn makes its connections by `connect`, and asks this application.
    `key`: what gives a request one of the places that are kept, "" for none; `make`: of uvicorn's own protocol;
    `most`: connections at once."""

    def __init__(self, app: ASGIApp, make: Make, key: str = "", most: int = CONNECTIONS) -> None:
        self.app, self.make, self.most, self._key = app, make, most, key
        self.held = 0
        self._waiting: dict[str, dict[Connection, None]] = defaultdict(dict)  # peer -> its connections, oldest first
        self._asking: Counter[str] = Counter()  # peer -> requests without the key that are being answered
        kept = min(KEPT, most // 4)
        self._strangers, self._each, self._wait = most - kept, (most - kept) // 2 + 1, min(WAITING, most // 4)

    def connect(self, *given: Any, app_state: dict[str, Any], **more: Any) -> Connection:
        """A new connection; the arguments are those of uvicorn's protocols."""
        state = {**app_state}
        made = Connection(self, lambda: self.make(*given, app_state=state, **more))
        state[MINE] = made
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine: Connection | None = scope.get("state", {}).get(MINE)
        if mine is None:  # no request, or one of a test
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
                self._asking += Counter()  # without peers that ask nothing
        finally:
            mine.end()

    # ---------------------------------------------------------------- what connections tell

    def admit(self, new: Connection) -> bool:
        """Whether there is a place for a new connection; older ones that wait make room."""
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
        """A connection has no request now. One that has shown the key keeps its place."""
        if not one.known:
            self._waiting[one.peer][one] = None

    def leave(self, one: Connection) -> None:
        """It waits no more."""
        if (mine := self._waiting.get(one.peer)) is not None:
            mine.pop(one, None)
            if not mine:
                del self._waiting[one.peer]


class Connection:
    """One connection, as `asyncio.Protocol` has it: all that it hears goes on to uvicorn's protocol."""

    def __init__(self, doors: Doors, make: Callable[[], Any]) -> None:
        self.doors, self._make = doors, make
        self.peer, self.since, self.known = "", 0.0, False
        self._inner: Any = None
        self._transport: Any = None
        self._held, self._busy = False, 0  # requests that are being answered
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
        """The headers of a request are there."""
        self._busy += 1
        self.known = self.known or known
        self._stop_waiting()

    def end(self) -> None:
        """The request is answered."""
        self._busy -= 1
        if not self._busy and self._held:
            self.since = asyncio.get_running_loop().time()
            self._wait()

    def drop(self) -> None:
        """Let go of it, whatever is left to be sent."""
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
    """Who is counted as one: an address, of IPv6 the 64 bits that a network gives away together."""
    host = str(address[0]) if address else ""
    try:
        at = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if at.version == 4 else str(ipaddress.ip_network((at, 64), strict=False))


def find_most() -> int:
    """How many connections the system lets this process hold; its limit of open files is raised where it may be. Twice
    as many files have to be free, as one that is dropped closes a moment later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(CONNECTIONS, (soft - SPARE) // 2))
