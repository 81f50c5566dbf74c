"""Access to the server: by the name that it is called by, by the origin of a page, and by key.

A web page can make a browser send requests to a server on loopback. Its domain may be made to resolve to loopback (DNS
rebinding), so on loopback only requests to names of loopback are answered. It may also send requests that need no
permission (a form, an image), so requests from other origins (`Origin`, `Sec-Fetch-Site`) are refused, as are bodies
that are not declared as JSON (`bodies`); cross-origin access is never granted.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shuhari.desk.serving.refusals import Refused, show


def asks_health(scope: Scope) -> bool:
    return bool(scope["path"] == "/health")


@dataclass(frozen=True)
class Guard:
    """Protects `app`. `key`: required as `Authorization: Bearer KEY`, "" for none, except for requests that `is_open`
    accepts; `local`: whether the server listens on loopback."""

    app: ASGIApp
    local: bool = True
    key: str = field(default="", repr=False)
    is_open: Callable[[Scope], bool] = asks_health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refused as refused:
                reply = JSONResponse(refused.body, refused.status, dict(refused.headers))
                await reply(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.local and not is_loopback(_cut_port(host)):
            raise Refused(f"the header Host is {show(host)}: expected localhost, 127.0.0.1 or [::1]", status=403)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and not self._is_own(origin, host):
            raise Refused(f"the request comes from a page of {show(origin)}: pages of elsewhere are not answered",
                          status=403)  # fmt: skip
        site = headers.get(b"sec-fetch-site", b"").decode("latin-1")
        if site in ("cross-site", "same-site") and not _opens_page(scope, headers):
            raise Refused(f"the request is {site}: pages of elsewhere are not answered", status=403)
        if self.key and not self.is_open(scope):
            self._check_key(scope)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page is this server's (the scheme may differ, behind a TLS proxy) or, on loopback, any of this
        machine."""
        try:
            at = urlsplit(origin)
            return bool(at.netloc and at.netloc.lower() == host.lower()) or (
                self.local and is_loopback(at.hostname or "")
            )
        except ValueError:
            return False

    def _check_key(self, scope: Scope) -> None:
        if not shows_key(scope, self.key):
            raise Refused("the key is missing or wrong: expected the header `Authorization: Bearer KEY`",
                          code="invalid_api_key", status=401, headers={"WWW-Authenticate": "Bearer"})  # fmt: skip


def shows_key(scope: Scope, key: str) -> bool:
    """Whether a request has the header `Authorization: Bearer KEY`. Digests are compared, so that timing reveals
    neither part of the key nor its length."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    word, _, given = headers.get(b"authorization", b"").partition(b" ")
    found, wanted = (hashlib.sha256(x).digest() for x in (given.strip(), key.encode()))
    return hmac.compare_digest(found, wanted) and word.lower() == b"bearer"


def is_loopback(name: str) -> bool:
    """Whether a name or an address means only this machine."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"


def _cut_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else host


def _opens_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser follows a link to the first page, in a window of its own."""
    how = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return scope["path"] == "/" and scope["method"] == "GET" and how == (b"navigate", b"document")
