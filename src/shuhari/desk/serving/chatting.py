"""Chat messages as a conversation for a tokenizer's template; tool definitions, calls and results are written as text.

A call is written in the format of Hermes and Qwen, which the environments `tools` also read (`rollouts/tools.py`);
calls and results that a client sends back are written the same way. Left out: images, audio.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shuhari.desk.serving.refusals import Refused, read_text, unknown, wrong
from shuhari.rollouts.tools import CLOSE, INSTRUCTIONS, OPEN

MESSAGES, TOOLS = 1024, 128
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user"}
FIELDS = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})  # the name of a speaker is not rendered

Message = dict[str, str]


def read_messages(given: Mapping[str, Any]) -> tuple[Message, ...]:
    """Read the conversation of a request: mappings of `role` (system, user, assistant) and `content`. Raises
    Refused."""
    many = given.get("messages")
    if not isinstance(many, list) or not 1 <= len(many) <= MESSAGES:
        raise wrong("messages", many, f"a list of 1 to {MESSAGES} messages")
    out: list[Message] = []
    answering = False  # whether the last message holds tool results
    for i, raw in enumerate(many):
        message = _read_message(f"messages[{i}]", raw)
        tool = raw["role"] == "tool"
        if tool and answering:  # templates want user and assistant to alternate
            out[-1]["content"] += "\n" + message["content"]
        else:
            out.append(message)
        answering = tool
    told = _read_tools(given)
    if not told:
        return tuple(out)
    if out[0]["role"] == "system":
        return ({**out[0], "content": f"{out[0]['content']}\n\n{told}"}, *out[1:])
    return ({"role": "system", "content": told}, *out)


def _read_message(place: str, raw: Any) -> Message:
    if not isinstance(raw, dict):
        raise wrong(place, raw, "an object with role and content")
    present = {k: v for k, v in raw.items() if v is not None}
    if odd := [k for k in present if k not in FIELDS and present[k] not in ([], {})]:
        raise unknown(odd[0], FIELDS, place)
    role = present.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{place}.role", role, f"one of {', '.join(ROLES)}")
    text = _read_content(f"{place}.content", present.get("content", "" if "tool_calls" in present else None))
    if "tool_calls" in present:
        if role != "assistant":
            raise wrong(f"{place}.tool_calls", present["tool_calls"], "none: calls are of the assistant")
        text = "\n".join([*filter(None, [text]), *_read_calls(f"{place}.tool_calls", present["tool_calls"])])
    if role == "tool":
        text = f"<tool_response>{text}</tool_response>"
    return {"role": ROLES[role], "content": text}


def _read_content(place: str, value: Any) -> str:
    if not isinstance(value, list):
        return read_text(place, value)
    parts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise wrong(f"{place}[{i}]", kind, "a part of the type 'text': the model reads nothing else")
        parts.append(read_text(f"{place}[{i}].text", part.get("text")))
    return "\n".join(parts)


def _read_calls(place: str, value: Any) -> list[str]:
    """Return the calls of an earlier turn, as the model wrote them."""
    if not isinstance(value, list) or len(value) > TOOLS:
        raise wrong(place, value, f"a list of at most {TOOLS} calls")
    texts = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise wrong(f"{place}[{i}].function", function, "an object with name and arguments")
        arguments = read_text(f"{place}[{i}].function.arguments", function.get("arguments"))
        name = json.dumps(read_text(f"{place}[{i}].function.name", function.get("name")), ensure_ascii=False)
        texts.append(f'{OPEN}{{"name": {name}, "arguments": {arguments}}}{CLOSE}')
    return texts


def tells_tools(given: Mapping[str, Any]) -> bool:
    """Whether a request has tools to describe to the model in a system message."""
    return bool(given.get("tools")) and given.get("tool_choice", "auto") != "none"


def _read_tools(given: Mapping[str, Any]) -> str:
    """Return the description of the tools for the model; "" without tools, or if it must not call any."""
    many, choice = given.get("tools", []), given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise wrong("tool_choice", choice, "'auto' or 'none': nothing makes a model call a tool")
    if not isinstance(many, list) or len(many) > TOOLS:
        raise wrong("tools", many, f"a list of at most {TOOLS} tools")
    for i, tool in enumerate(many):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise wrong(f"tools[{i}]", tool, "an object with type 'function' and function")
        read_text(f"tools[{i}].function.name", function.get("name"))
    if not tells_tools(given):
        return ""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in many)
    try:
        lines.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("tools have half of a surrogate pair: expected text", "tools") from None
    return INSTRUCTIONS.format(tools=lines)
