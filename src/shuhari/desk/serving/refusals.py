"""Refusals of a server, in the format of the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shuhari.data import EMPTY, nearest


class Refused(Exception):
    """A request that is refused. `param`: the field concerned; `code`: a word for programs; `status`: of HTTP;
    `headers`: of the response."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 400,
        headers: Mapping[str, str] = EMPTY,
    ) -> None:  # fmt: skip
        super().__init__(_write(message))
        self.param = None if param is None else _write(param)
        self.code, self.status, self.headers = code, status, headers

    @property
    def body(self) -> dict[str, Any]:
        """The error in the protocol's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def _write(text: str) -> str:
    """Make a text encodable, whatever a request has put into it."""
    return text.encode("utf-8", "backslashreplace").decode()


def wrong(field: str, value: object, expected: str, code: str | None = None) -> Refused:
    """Return the refusal of a field's value, which is shown."""
    return Refused(f"{field} is {show(value)}: expected {expected}", field, code)


def unknown(field: str, known: Iterable[str], where: str = "the request") -> Refused:
    """Return the refusal of an unknown field, with the nearest known one."""
    name = show(field)
    return Refused(f"{where} has the field {name}, which is not known here; {nearest(field[:60], known)}",
                   field[:60], "unknown_parameter")  # fmt: skip


def read_text(field: str, value: object) -> str:
    """Return a text that can be encoded as UTF-8. Raises Refused."""
    if not isinstance(value, str):
        raise wrong(field, value, "a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"{field} has half of a surrogate pair, U+{ord(value[error.start]):04X}, at character "
                      f"{error.start}: expected text", field) from None  # fmt: skip
    return value


def show(value: object) -> str:
    """Return a value of a request, short, and without control characters for a terminal or a log."""
    text = ascii(value) if isinstance(value, str | int | float | bool | None) else _describe(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _describe(value: object) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list | dict) else type(value).__name__
