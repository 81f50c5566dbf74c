"""Conversations in their usual forms: messages of `role` and `content` (text, or parts of text), the `from` and `value`
of ShareGPT, tool calls. All become text messages, with the other keys that chat templates read.

Left out: images and sound, which are refused by name.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from shuhari.data import FrozenDict, Payload, nearest
from shuhari.tasks.reading import read_strictly, shorten

SPEAKERS = {  # ShareGPT's name -> the role
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "bot": "assistant", "system": "system",
    "tool": "tool", "observation": "tool", "function_response": "tool", "function_call": "function_call",
}  # fmt: skip
ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython")  # known to chat templates
TEXTS = ("text", "input_text", "output_text")  # types of parts
EXPECTED = "expected messages with `role` and `content`"
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def read_messages(value: Any, name: str) -> tuple[FrozenDict, ...]:
    """Returns the messages of a column. Raises ValueError if it has none."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":  # a cell of CSV
        try:
            value = read_strictly(value)
        except ValueError as error:
            raise ValueError(f"`{name}` is {shorten(value)}: {EXPECTED} ({error})") from None
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"`{name}` is {shorten(value)}: {EXPECTED}")
    return tuple(_read_message(m, name) for m in value)


def _read_message(m: Any, name: str) -> FrozenDict:
    if not isinstance(m, Mapping):
        raise ValueError(f"`{name}` has {shorten(m)}: {EXPECTED}")
    m = {k: v for k, v in m.items() if v is not None}
    if "role" not in m and "from" in m:
        m = _read_spoken(m, name)
    calls = _read_calls(m.pop("tool_calls", ()), name)
    content = m.get("content", "" if calls else None)
    if isinstance(content, list | tuple):
        content = _join_parts(content, name)
    if not (isinstance(m.get("role"), str) and isinstance(content, str)):
        raise ValueError(f"`{name}` has {shorten(m)}: {EXPECTED} as text")
    if calls and m["role"] != "assistant":
        raise ValueError(f"`{name}` has `tool_calls` in a turn of {m['role']!r}: only the assistant calls tools")
    rest = {k: freeze_value(v, name) for k, v in {**m, "content": content}.items()}
    return FrozenDict({**rest, "tool_calls": calls} if calls else rest)


def _read_spoken(m: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a turn of ShareGPT as a message."""
    speaker, value = m["from"], m.get("value", "")
    role = SPEAKERS.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        raise ValueError(f"`{name}` has a turn from {shorten(speaker)}; {nearest(str(speaker), SPEAKERS)}")
    rest = {k: v for k, v in m.items() if k not in ("from", "value")}
    if role != "function_call":
        return {"role": role, "content": value, **rest}
    try:
        call = read_strictly(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"`{name}` has a function_call {shorten(value)}: expected JSON ({error})") from None
    return {"role": "assistant", "tool_calls": call if isinstance(call, list | tuple) else [call], **rest}


def _read_calls(calls: Any, name: str) -> tuple[FrozenDict, ...]:
    """Returns tool calls as chat templates read them: {"type": "function", "function": {"name", "arguments"}}, with the
    arguments as an object, also if given as JSON."""
    if not isinstance(calls, list | tuple):
        raise ValueError(f"`{name}` has `tool_calls` {shorten(calls)}: expected a list of calls")
    return tuple(_read_call(call, name) for call in calls)


def _read_call(call: Any, name: str) -> FrozenDict:
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ValueError(f'`{name}` has a call {shorten(call)}: expected {{"function": {{"name", "arguments"}}}}')
    given = inner.get("arguments")
    try:
        arguments = read_strictly(given) if isinstance(given, str) and given.strip() else given or {}
    except ValueError:
        arguments = None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"`{name}` calls {inner['name']!r} with the arguments {shorten(given)}: expected an "
                         "object, or the JSON of one")  # fmt: skip
    own = {k: v for k, v in call.items() if k not in ("function", "name", "arguments") and v is not None}
    kept = {k: v for k, v in arguments.items() if v is not None}  # Parquet has every argument in every call
    function = {"name": inner["name"], "arguments": kept if isinstance(given, Mapping) else arguments}
    return FrozenDict({k: freeze_value(v, name) for k, v in {"type": "function", **own, "function": function}.items()})


def _join_parts(parts: Any, name: str) -> str:
    texts = []
    for part in parts:
        kind = part.get("type", "text" if "text" in part else None) if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(kind, str) and kind not in TEXTS:
            raise ValueError(f"`{name}` has a part of type {shorten(kind)}: expected parts of text alone: models here "
                             "read no pictures, sound or files; leave such rows out")  # fmt: skip
        if not isinstance(text, str):
            raise ValueError(f"`{name}` has the part {shorten(part)}: {EXPECTED} as text, or as parts "
                             '{"type": "text", "text"}')  # fmt: skip
        texts.append(text)
    return "".join(texts)


def spell_message(m: Mapping[str, Any]) -> str:
    """Returns the content of a message as a text unique to it, also if it only calls tools."""
    calls = m.get("tool_calls")
    return str(m["content"]) if m["content"] or not calls else json.dumps(calls, sort_keys=True)


def list_odd_roles(prompt: Payload) -> list[str]:
    """Returns the roles of a prompt that chat templates are unlikely to know."""
    return [] if isinstance(prompt, str) else [m["role"] for m in prompt if m["role"] not in ROLES]  # type: ignore


def freeze_value(value: Any, name: str) -> Payload:
    """Returns a column's value as wire data; NaN becomes None. Raises ValueError for an infinite number and for a type
    without a wire form."""
    if isinstance(value, list | tuple):
        return tuple(freeze_value(v, name) for v in value)
    if isinstance(value, Mapping):
        return FrozenDict((k, freeze_value(v, name)) for k, v in value.items())
    if isinstance(value, str):
        return check_unicode(value, name)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise ValueError(f"`{name}` is {value}: expected a finite number")
    if isinstance(value, _AS_TEXT):
        return str(value)
    if value is None or isinstance(value, bool | int | float | bytes):
        return value
    raise ValueError(f"`{name}` is of type {type(value).__name__}: expected numbers, text, lists or objects")


def check_unicode(text: str, name: str) -> str:
    """Checks that UTF-8 can encode a text: JSON may escape half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{name}` is no text of Unicode: {error}") from None
    return text
