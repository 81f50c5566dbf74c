"""Responses in the format of the protocol: whole, or as chunks of a stream.

A log-probability is that of the sampling distribution, after temperature, top_p, top_k and min_p; for temperature 0,
and for prompts, that of temperature 1. The end token is also a decision, so it has an entry, with its name and no
bytes. Axes: `k` alternatives to a token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from shuhari import __version__
from shuhari.data import Array
from shuhari.desk.serving.telling import Piece

FINGERPRINT = f"shuhari-{__version__}"
LEAST = -9999.0  # replaces the logarithm of 0, which JSON does not have


def make_names(decode: Callable[[Array], str], end: int) -> Callable[[int], str]:
    """Return a function from a token to its name: its text on its own; for special tokens, including `end`, the
    tokenizer's name."""

    @lru_cache(1 << 16)
    def name(token: int) -> str:
        return decode(np.array([token, end], np.int32))  # the last token, which closes the text, is not decoded

    return name


@dataclass(frozen=True)
class Form:
    """The format of the response to a request. `model`: the served name; `top`: alternatives to a token (None: without
    log-probabilities); `name`: from `make_names`."""

    model: str
    chat: bool
    top: int | None
    name: Callable[[int], str]
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[dict[str, Any]], prompt: int, said: int) -> dict[str, Any]:
        """Return the whole response, with token counts of the prompts and of the answers (`said`)."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": list(choices), "usage": count(prompt, said)}

    def choice(self, i: int, pieces: Sequence[Piece], reason: str, text: str | None = None) -> dict[str, Any]:
        """Return one answer; its text defaults to that of its pieces."""
        said = "".join(p.text for p in pieces) if text is None else text
        shown = {"index": i, "logprobs": self._logprobs(pieces), "finish_reason": reason}
        if self.chat:
            return {**shown, "message": {"role": "assistant", "content": said, "refusal": None}}
        return {**shown, "text": said}

    def chunk(
        self, i: int, pieces: Sequence[Piece], reason: str | None, *, first: bool, usage: bool
    ) -> dict[str, Any]:
        """Return a chunk of answer `i`, with its new pieces; `usage`: whether the stream ends with the token counts."""
        said = "".join(p.text for p in pieces)
        shown: dict[str, Any] = {"index": i, "logprobs": self._logprobs(pieces) if pieces else None}
        if self.chat:
            delta = {"role": "assistant", "content": said} if first else {"content": said} if pieces else {}
            shown |= {"delta": delta}
        else:
            shown |= {"text": said}
        choices = [{**shown, "finish_reason": reason}]
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, **({"usage": None} if usage else {})}

    def counts(self, prompt: int, said: int) -> dict[str, Any]:
        """Return the last chunk of a stream, with the token counts."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": count(prompt, said)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}", "object": kind, "created": self.created,
                "model": self.model, "system_fingerprint": FINGERPRINT}  # fmt: skip

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self.top is None:
            return None
        return self._chat_logprobs(pieces) if self.chat else self._text_logprobs(pieces)

    def _chat_logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        content = []
        for p in pieces:
            others = [(self._call(p, i), x) for i, x in p.said.top]
            content.append({
                "token": self._call(p, p.said.id),
                "logprob": _finite(p.said.logp),
                "bytes": list(p.text.encode()),
                "top_logprobs": [{"token": t, "logprob": _finite(x), "bytes": list(t.encode())} for t, x in others],
            })  # fmt: skip
        return {"content": content, "refusal": None}

    def _text_logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        tops: list[dict[str, float] | None] = []
        for p in pieces:
            if p.said.logp is None:
                tops.append(None)
                continue
            best: dict[str, float] = {}
            for i, x in (*p.said.top, (p.said.id, p.said.logp)):  # of tokens with the same text the likeliest
                name = self._call(p, i)
                best[name] = max(_finite(x), best.get(name, LEAST))
            tops.append(best)
        return {
            "tokens": [self._call(p, p.said.id) for p in pieces],
            "token_logprobs": [None if p.said.logp is None else _finite(p.said.logp) for p in pieces],
            "top_logprobs": tops,
            "text_offset": [p.at for p in pieces],
        }

    def _call(self, piece: Piece, token: int) -> str:
        return (piece.text if token == piece.said.id else "") or self.name(token)


def count(prompt: int, said: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def _finite(x: float | None) -> float:
    return LEAST if x is None else max(float(x), LEAST)
