"""How responses are sent: streams of server-sent events, and errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from shuhari.desk.serving.refusals import Refused

GONE = 499  # status in the request counts if the client has left

log = logging.getLogger("shuhari.serve")


@dataclass(frozen=True, eq=False)
class Events:
    """A response that is a stream of server-sent events. Its rows are dropped if the client leaves; a client that reads
    nothing is dropped (`doors`)."""

    chunks: AsyncIterator[dict[str, Any]]
    leave: Callable[[str, int], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(wait_gone(receive))
        status = GONE
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                status = work.result()
        except OSError:  # the client left
            pass
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self.leave(scope["path"], status)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Send the stream and return the status. An error before the first chunk becomes a response of its own, a later
        one an event."""
        async with aclosing(self.chunks) as chunks:  # type: ignore[type-var]
            try:
                first = await anext(chunks)
            except Exception as error:
                reply = await refuse(None, error) if isinstance(error, Refused) else fail(error)
                await reply(scope, receive, send)
                return reply.status_code
            kinds = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": kinds})
            await _put(send, first)
            try:
                async for chunk in chunks:
                    await _put(send, chunk)
            except OSError:
                raise
            except Exception as error:
                await _put(send, bytes(fail(error).body))
                return 500
            await _put(send, b"[DONE]")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return 200


async def wait_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _put(send: Send, event: dict[str, Any] | bytes) -> None:
    text = event if not isinstance(event, dict) else json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
    await send({"type": "http.response.body", "body": b"data: %b\n\n" % text, "more_body": True})


async def refuse(request: Any, error: Exception) -> JSONResponse:
    """Return a refusal as a response."""
    assert isinstance(error, Refused)
    return JSONResponse(error.body, error.status, dict(error.headers))


def fail(error: Exception) -> JSONResponse:
    """Log an error without the request's text, and return a response."""
    log.error("a request failed: %s", type(error).__name__, exc_info=error)
    refused = Refused(f"the server failed with {type(error).__name__}: its log says more", status=500)
    return JSONResponse(refused.body, 500)
