"""Request bodies: read within limits of size and time, and parsed in a thread, one by one, so that a large body does
not delay other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from shuhari.desk.serving.refusals import Refused, show
from shuhari.tasks.reading import read_strictly

BODY = 1 << 20  # bytes of a request
HELD = 64 * BODY  # bytes of all requests that are being read or parsed
PATIENCE = 30.0  # seconds for a body to arrive

T = TypeVar("T")


class Bodies:
    """Reads the bodies of one server."""

    def __init__(self) -> None:
        self._held = 0
        self._pool = ThreadPoolExecutor(1, "bodies")  # two threads would interrupt the loop twice as often

    async def read(self, request: Request, parse: Callable[[bytes], T]) -> T:
        """Read a body and return the result of `parse`, called in a thread. Raises Refused if it is not declared as
        JSON, too large, too slow, or too many are being read; and any error of `parse`."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # web pages can send other types without a preflight request
            raise Refused(f"the header Content-Type is {show(kind)}: expected application/json", status=415)
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                async for part in request.stream():
                    self._held += len(part)
                    body += part
                    if len(body) > BODY:
                        raise Refused(f"the body is larger than {BODY} bytes: expected a smaller one", status=413)
                    if self._held > HELD:
                        raise Refused("too many bodies are being read; ask again later", code="overloaded", status=503,
                                      headers={"Retry-After": "1"})  # fmt: skip
            return await asyncio.get_running_loop().run_in_executor(self._pool, parse, bytes(body))
        except TimeoutError:
            raise Refused(f"the body did not come within {PATIENCE:g} s", status=408) from None
        finally:
            self._held -= len(body)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises Refused if it is not one."""
    try:
        found = read_strictly(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    except RecursionError:
        raise Refused("the body is nested too deep: expected what the protocol has") from None
    except ValueError as error:
        raise Refused(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Refused(f"the body is {show(found)}: expected an object")
    return found
