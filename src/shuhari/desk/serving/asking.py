"""Request bodies, checked: every field is used, known to be harmless, or refused by name.

Left out: penalties, biases, response formats: a field that would change the meaning of a request is refused unless it
has its neutral value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from shuhari.data import Array, Sampling, is_tokens
from shuhari.desk.serving.bodies import read_object
from shuhari.desk.serving.chatting import read_messages, tells_tools
from shuhari.desk.serving.refusals import Refused, read_text, show, unknown, wrong

ROWS = 256  # answers to one request: prompts times n
TOP = 20  # alternatives to a token
STOPS, STOP_LENGTH = 16, 128  # stop strings, and the characters of one
COOLEST = 1e-6  # below it, logits over the temperature overflow
USUAL_MAX = 16  # default tokens of a completion in the protocol

SHARED = "max_tokens min_p model n seed stop stream stream_options temperature top_k top_p".split()
CHAT = frozenset({*SHARED, "logprobs", "max_completion_tokens", "messages", "tool_choice", "tools", "top_logprobs"})
COMPLETION = frozenset({*SHARED, "echo", "logprobs", "prompt"})
IGNORED = frozenset(  # about accounts and caches, or a hint for speed; no answer depends on them
    "metadata prediction prompt_cache_key prompt_cache_retention safety_identifier service_tier store user".split()
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType({  # accepted with their neutral value
    "best_of": (1,), "frequency_penalty": (0,), "length_penalty": (1,), "logit_bias": ({},), "modalities": (["text"],),
    "parallel_tool_calls": (True,), "presence_penalty": (0,), "repetition_penalty": (1,),
    "response_format": ({"type": "text"},), "suffix": ("",), "use_beam_search": (False,),
})  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A parsed request. `prompts`: texts, token ids [k] int32, or one conversation; `n` answers to each. `most`: tokens
    of an answer, None for as many as fit, 0 for none (with `echo`). `top`: alternatives to each token; None: without
    log-probabilities. `usage`: a stream ends with the token counts. `tools`: the conversation starts with a system
    message about tools."""

    prompts: tuple[Any, ...]
    sampling: Sampling
    n: int
    most: int | None
    seed: int | None
    top: int | None
    stream: bool
    usage: bool
    echo: bool
    chat: bool
    tools: bool = False


def read_body(body: bytes, *, chat: bool) -> dict[str, Any]:
    """Parse a body into its fields, without null ones. Raises Refused for invalid JSON, for unknown fields, and for
    values that are not supported."""
    found = read_object(body)
    known = CHAT if chat else COMPLETION
    given = {k: v for k, v in found.items() if v is not None}
    for name, value in given.items():
        if name in known or name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise unknown(name, [*known, *IGNORED, *NEUTRAL])
        usual = (given.get("n", 1),) if name == "best_of" else NEUTRAL[name]
        if not any(type(value) in (type(u), float) and value == u for u in usual):
            only = " or ".join(map(str, usual))
            raise Refused(f"{name} is {show(value)}, which is not done here: expected {only}, or to leave it out",
                          name, "unsupported_value")  # fmt: skip
    return {k: v for k, v in given.items() if k in known}


def read_ask(given: Mapping[str, Any], *, chat: bool) -> Ask:
    """Read a request from its fields. Raises Refused with the field, its value and what was expected."""
    prompts = (read_messages(given),) if chat else _read_prompts(given)
    n, echo = _whole(given, "n", 1, 1, ROWS), not chat and _flag(given, "echo")
    if len(prompts) * n > ROWS:
        message = f"{len(prompts)} prompts times n = {n} are {len(prompts) * n} answers"
        raise Refused(f"{message}: expected at most {ROWS}", "n")
    top, stream = _read_top(given, chat=chat), _flag(given, "stream")
    if echo and stream:
        raise wrong("echo", True, "false where stream is true")
    usage = _read_options(given, stream)
    most = _read_most(given, chat=chat, least=0 if echo else 1)
    seed = None if "seed" not in given else _whole(given, "seed", 0, -(1 << 63), (1 << 64) - 1)
    tools = chat and tells_tools(given)
    return Ask(prompts, _read_sampling(given, top or 0), n, most, seed, top, stream, usage, echo, chat, tools)


# ---------------------------------------------------------------- fields


def _read_prompts(given: Mapping[str, Any]) -> tuple[str | Array, ...]:
    value = given.get("prompt")
    many = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    if value is None or value == [] or len(many) > ROWS:
        raise wrong("prompt", value, f"a string, a list of token ids, or up to {ROWS} of these")
    return tuple(_read_ids(p) if isinstance(p, list) else read_text("prompt", p) for p in many)


def _read_ids(value: list[Any]) -> Array:
    if not value or not all(type(i) is int and 0 <= i < 1 << 31 for i in value):
        raise wrong("prompt", value, "a list of token ids, at least one")
    ids = np.array(value, np.int32)
    assert is_tokens(ids)
    return ids


def _read_sampling(given: Mapping[str, Any], top: int) -> Sampling:
    """Return the sampling settings; `max_new` is set once the length of the prompt is known."""
    temperature = _number(given, "temperature", 1.0, 0.0, 2.0)
    if 0 < temperature < COOLEST:
        raise wrong("temperature", given["temperature"], f"0 (the most probable token), or {COOLEST:g} to 2")
    p = _number(given, "top_p", 1.0, 0.0, 1.0)
    if not p:
        raise wrong("top_p", given["top_p"], "a number above 0, up to 1")
    k = max(0, _whole(given, "top_k", 0, -1, 1 << 31))
    m = _number(given, "min_p", 0.0, 0.0, 1.0)
    if m == 1:
        raise wrong("min_p", given["min_p"], "a number from 0 to below 1")
    stop = tuple(dict.fromkeys(_read_stops(given.get("stop", []))))
    if temperature == 0:  # truncation does not change the mode, and probabilities are over all tokens
        return Sampling(greedy=True, stop=stop, top=top)
    return Sampling(temperature=temperature, top_p=p, top_k=k, min_p=m, stop=stop, top=top)


def _read_stops(value: object) -> Sequence[str]:
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, list) or len(many) > STOPS:
        raise wrong("stop", value, f"a string, or a list of at most {STOPS}")
    for text in many:
        if not 1 <= len(read_text("stop", text)) <= STOP_LENGTH:
            raise wrong("stop", text, f"strings of 1 to {STOP_LENGTH} characters")
    return many


def _read_top(given: Mapping[str, Any], *, chat: bool) -> int | None:
    if not chat:
        return None if given.get("logprobs", False) is False else _whole(given, "logprobs", 0, 0, TOP)
    asked, top = _flag(given, "logprobs"), _whole(given, "top_logprobs", 0, 0, TOP)
    if top and not asked:
        raise wrong("top_logprobs", top, "0 where logprobs is not true")
    return top if asked else None


def _read_most(given: Mapping[str, Any], *, chat: bool, least: int) -> int | None:
    names = [n for n in ("max_tokens", "max_completion_tokens") if n in given]
    if not names:
        return None if chat else USUAL_MAX
    found = {_whole(given, name, 0, least, 1 << 31) for name in names}
    if len(found) > 1:
        raise Refused("max_tokens and max_completion_tokens differ: expected one of them", "max_tokens")
    return found.pop()


def _read_options(given: Mapping[str, Any], stream: bool) -> bool:
    options = given.get("stream_options", {})
    if not isinstance(options, dict):
        raise wrong("stream_options", options, "an object")
    if options and not stream:
        raise Refused("stream_options are given and stream is false: expected stream to be true", "stream_options")
    known = ("include_obfuscation", "include_usage")
    if odd := [k for k in options if k not in known]:
        raise unknown(odd[0], known, "stream_options")
    return any([_flag(options, name) and name == "include_usage" for name in known])


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def _whole(given: Mapping[str, Any], name: str, usual: int, low: int, high: int) -> int:
    value = given.get(name, usual)
    if type(value) is not int or not low <= value <= high:
        raise wrong(name, value, f"a whole number from {low} to {high}")
    return value


def _number(given: Mapping[str, Any], name: str, usual: float, low: float, high: float) -> float:
    value = given.get(name, usual)
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        raise wrong(name, value, f"a number from {low:g} to {high:g}")
    return float(value)
