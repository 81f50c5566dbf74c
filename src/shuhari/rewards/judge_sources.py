"""Judges: a role of the run, a function, or a server of the OpenAI chat API. Left out: the questions (`judge.py`),
and how answers are read and kept (`judge_asking.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from shuhari.data import ContractError, Sampling, nearest
from shuhari.engines.client import Client, ServerError
from shuhari.engines.time_limit import EscapeError, Overdue, call_within
from shuhari.kernel import registry
from shuhari.ports import Ctx

ARGUMENTS = ("prompts", "completions", "references", "rubrics", "texts")


@dataclass(frozen=True)
class Case:
    """One question to a judge. `text`: the whole of it, with everything filled in; `answers`: the answer, or the two in
    the order in which they are shown; `key`: names its random stream; `vote`: its number among equal ones."""

    text: str
    prompt: Any
    answers: tuple[str, ...]
    reference: str | None
    rubric: str
    key: tuple[object, ...]
    vote: int


@dataclass(frozen=True)
class Said:
    """A judge's answer: text, a number, or None for no verdict. `whole`: whether it was not cut short; `share`: whether
    a number is the share of the first answer already; `tokens`: of the question and of the answer, if known."""

    what: str | float | None
    whole: bool = True
    share: bool = False
    tokens: tuple[int, int] = (0, 0)


class Source(Protocol):
    """Who judges. `name`: identifies it, with the settings that change its verdicts; "" if they are not to be kept."""

    name: str

    async def ask(self, cases: Sequence[Case], ctx: Ctx) -> list[Said | Exception]:
        """Return the answer to each case, or what went wrong with it."""
        ...

    def close(self) -> None: ...


@dataclass
class ByRole:
    """A model of the run: it writes a verdict, or its log-probabilities of two `words` behind the question are
    compared (`words` empty: it writes). Its weights may change, so nothing is kept."""

    role: str
    system: str
    sampling: Sampling
    words: tuple[str, ...]
    name: str = ""

    async def ask(self, cases: Sequence[Case], ctx: Ctx) -> list[Said | Exception]:
        asks = self._compare if self.words else self._sample
        return list(await asyncio.gather(*(_caught(asks, case, ctx) for case in cases)))

    def close(self) -> None:
        pass

    def _encode(self, case: Case, ctx: Ctx) -> Any:
        turns = {"role": "system", "content": self.system}, {"role": "user", "content": case.text}
        return ctx.encode(turns if self.system else case.text, self.role)

    async def _sample(self, case: Case, ctx: Ctx) -> Said:
        seen = self._encode(case, ctx)
        key = (*case.key, self.role, case.vote)
        (trace,) = await ctx.engine.sample(self.role, seen, self.sampling, 1, key=key)
        return Said(ctx.text(trace.action, self.role), bool(trace.info.get("ended", True)))

    async def _compare(self, case: Case, ctx: Ctx) -> Said:
        """Return exp(a) / (exp(a) + exp(b)) of the two words' log-probabilities a and b."""
        seen = self._encode(case, ctx)
        asked = [ctx.engine.score(self.role, seen, ctx.encode_text(word, self.role), ["log_prob"])
                 for word in self.words]  # fmt: skip
        first, second = (float(found["log_prob"].sum()) for found in await asyncio.gather(*asked))
        return Said(1 / (1 + math.exp(min(second - first, 500))), share=True)


@dataclass
class ByFunction:
    """A function of a user's: `f(prompts, completions, ...)`, which may be async, called once with all cases."""

    path: str
    timeout: float
    reward: str
    call: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found: Any = registry.find("reward", self.path)
        if not callable(found) or isinstance(found, type):
            raise ValueError(f"judge: function {self.path!r} is {found!r:.60}: expected a function")
        self.call, asked = found, inspect.signature(found).parameters.values()
        everything = any(p.kind is p.VAR_KEYWORD for p in asked)
        named = [p.name for p in asked if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        must = [p.name for p in asked if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if unknown := [n for n in must if n not in ARGUMENTS]:
            raise ValueError(f"judge: function {self.path!r} asks for {unknown[0]!r}; {nearest(unknown[0], ARGUMENTS)}")
        self._named = [n for n in ARGUMENTS if everything or n in named]
        code = ""
        with suppress(OSError, TypeError):
            code = inspect.getsource(found)
        self.name = digest(["function", self.path, code])

    async def ask(self, cases: Sequence[Case], ctx: Ctx) -> list[Said | Exception]:
        """Raises what the function raises, Overdue after `timeout`, and ContractError for anything but a list."""
        one = all(len(c.answers) == 1 for c in cases)
        columns = {
            "prompts": [c.prompt for c in cases],
            "completions": [c.answers[0] if one else list(c.answers) for c in cases],
            "references": [c.reference for c in cases],
            "rubrics": [c.rubric for c in cases],
            "texts": [c.text for c in cases],
        }
        who = f"the judge of reward {self.reward!r} ({self.path})"
        try:
            given = await call_within(self.timeout, lambda: self.call(**{n: columns[n] for n in self._named}))
        except Overdue:
            limit = f"{self.timeout:g} s ([reward.{self.reward}] timeout)"
            raise Overdue(f"{who} has not returned within {limit}") from None
        except EscapeError as error:
            raise EscapeError(f"{who}: {error}") from None
        if not isinstance(given, list | tuple) or len(given) != len(cases):
            length = f" of length {len(given)}" if isinstance(given, list | tuple) else ""
            raise ContractError(f"{who} returned {type(given).__name__}{length}: expected a list of {len(cases)}, a "
                                "number, a text or None for each")  # fmt: skip
        return [self._read(x, who) for x in given]

    def close(self) -> None:
        pass

    def _read(self, value: Any, who: str) -> Said:
        if value is None or isinstance(value, str):
            return Said(value)
        if not isinstance(value, bool | int | float):
            raise ContractError(f"{who} returned {str(value)[:60]!r} for a case: expected a number, a text or None")
        return Said(float(value) if abs(value) < 1e300 else math.nan)


@dataclass
class ByServer:
    """A server of the OpenAI chat API."""

    client: Client
    model: str
    system: str
    temperature: float
    max_new: int

    def __post_init__(self) -> None:
        below = self.client.address.rstrip("/").endswith("/v1")
        self._path = "/chat/completions" if below else "/v1/chat/completions"
        known = [self.client.address, self.model, self.system, self.temperature, self.max_new]
        self.name = digest(["server", *known])

    async def ask(self, cases: Sequence[Case], ctx: Ctx) -> list[Said | Exception]:
        """Raises ContractError if the key is not set."""
        try:
            self.client.find_key()
        except ValueError as error:
            raise ContractError(str(error)) from None
        return list(await asyncio.gather(*(_caught(self._say, case, ctx) for case in cases)))

    def close(self) -> None:
        self.client.close()

    async def _say(self, case: Case, ctx: Ctx) -> Said:
        turns = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "model": self.model, "messages": [*turns, {"role": "user", "content": case.text}],
            "temperature": self.temperature, "max_tokens": self.max_new,
        }  # fmt: skip
        reply = await self.client.post(self._path, body)
        try:
            choice = reply["choices"][0]
            text = choice["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = choice = None
        if not isinstance(text, str) or not isinstance(choice, Mapping):
            raise ServerError(f"{self.client.address} answered without choices[0].message.content: expected the answer "
                              "of /v1/chat/completions")  # fmt: skip
        used: Any = reply.get("usage")
        used = used if isinstance(used, Mapping) else {}
        counts = (used.get(n) for n in ("prompt_tokens", "completion_tokens"))
        tokens = tuple(x if type(x) is int and 0 <= x < 1 << 40 else 0 for x in counts)
        return Said(text, choice.get("finish_reason") != "length", tokens=(tokens[0], tokens[1]))


async def _caught(ask: Callable[[Case, Ctx], Any], case: Case, ctx: Ctx) -> Said | Exception:
    """Return what a call gives, or its error, but for those that end the run."""
    try:
        found: Said = await ask(case, ctx)
        return found
    except (MemoryError, FloatingPointError, ContractError):
        raise
    except Exception as error:
        return error


def digest(parts: Sequence[Any]) -> str:
    """Return a digest of plain data."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
