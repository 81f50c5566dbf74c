"""The routes of the server, as an ASGI application.

A request is answered from rows of the engine (`worker`); if its connection closes, they leave the decoder.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shuhari.data import Array, nearest
from shuhari.desk.serving.asking import Ask, read_ask, read_body
from shuhari.desk.serving.bodies import Bodies
from shuhari.desk.serving.events import GONE, Events, fail, refuse, wait_gone
from shuhari.desk.serving.guard import Guard
from shuhari.desk.serving.refusals import Refused, show, wrong
from shuhari.desk.serving.replies import Form, make_names
from shuhari.desk.serving.telling import Piece, Pieces, Said, Telling
from shuhari.desk.serving.worker import Answer, Inbox, News, Worker, room
from shuhari.models.text.tokenizers import Template

Work = Callable[[Request], Awaitable[Response | ASGIApp]]


def make_app(worker: Worker, name: str, *, local: bool = True, key: str = "") -> ASGIApp:
    """Return the application that serves the model of `worker` as `name`, behind its guard."""
    return Guard(Service(worker, name).app, local, key)


@dataclass(eq=False)
class Service:
    """The routes of one model."""

    worker: Worker
    name: str
    began: float = field(default_factory=time.time)
    told: Counter[tuple[str, int]] = field(default_factory=Counter)  # (route, status) -> requests

    def __post_init__(self) -> None:
        self._names = make_names(self.worker.model.decode, self.worker.model.end)
        self._salt = secrets.token_hex(16)  # of answers without a seed
        self._count = 0
        self._bodies = Bodies()
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._counted(self.chat), methods=["POST"]),
                Route("/v1/completions", self._counted(self.complete), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={Refused: refuse, HTTPException: _lost},
        )

    async def chat(self, request: Request) -> Response | ASGIApp:
        return await self._answer(request, chat=True)

    async def complete(self, request: Request) -> Response | ASGIApp:
        return await self._answer(request, chat=False)

    # ---------------------------------------------------------------- answers

    async def _answer(self, request: Request, *, chat: bool) -> Response | ASGIApp:
        ask = await self._bodies.read(request, partial(self._read_ask, chat=chat))
        contexts = [await self._encode(p, ask) for p in ask.prompts]
        form = Form(self.name, chat, ask.top, self._names)
        if ask.stream:
            return Events(self._stream(ask, contexts, form), self._leave)
        work = asyncio.ensure_future(self._write(ask, contexts, form))
        gone = asyncio.ensure_future(wait_gone(request.receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(work.result()) if work.done() else Response(status_code=GONE)
        finally:
            work.cancel()
            gone.cancel()

    async def _write(self, ask: Ask, contexts: Sequence[Array], form: Form) -> dict[str, Any]:
        """Return the whole response."""
        answers = self._list_answers(ask, contexts)
        found: list[tuple[list[Piece], str, int]] = [([], "length", 0)] * len(answers)
        if ask.most != 0:
            with self.worker.ask(answers, live=False) as inbox:
                async for i, pieces, reason, said in self._hear(ask, inbox, len(answers)):
                    found[i] = pieces, reason or "", said
        echoes = await self._echo(ask, contexts) if ask.echo else [[] for _ in contexts]
        choices = []
        for i, (pieces, reason, _) in enumerate(found):
            before = echoes[i // ask.n]
            at = sum(len(p.text) for p in before)
            later = [Piece(p.said, p.text, p.at + at) for p in pieces]
            choices.append(form.choice(i, [*before, *later], reason))
        return form.whole(choices, sum(map(len, contexts)), sum(said for *_, said in found))

    async def _stream(self, ask: Ask, contexts: Sequence[Array], form: Form) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        answers, total = self._list_answers(ask, contexts), 0
        with self.worker.ask(answers, live=True) as inbox:
            for i in range(len(answers) if ask.chat else 0):  # the role of the speaker
                yield form.chunk(i, [], None, first=True, usage=ask.usage)
            async for i, pieces, reason, said in self._hear(ask, inbox, len(answers)):
                total += said if reason else 0
                yield form.chunk(i, pieces, reason, first=False, usage=ask.usage)
        if ask.usage:
            yield form.counts(sum(map(len, contexts)), total)

    async def _hear(self, ask: Ask, inbox: Inbox, n: int) -> AsyncIterator[tuple[int, list[Piece], str | None, int]]:
        """Yield (answer, new pieces, finish reason or None, number of tokens so far) until all n have ended."""
        telling = [Telling(self.worker.model.decode, ask.sampling.stop) for _ in range(n)]
        left = n
        while left:
            news = await inbox.get()
            while not inbox.empty():  # put everything that has come since into the same chunk
                news = [*news, *inbox.get_nowait()]
            for i, said, ended in _gather(news):
                pieces = telling[i].add(said, last=ended is not None)
                left -= ended is not None
                reason = None if ended is None else "stop" if ended or telling[i].cut else "length"
                if pieces or reason:
                    yield i, pieces, reason, telling[i].count

    def _list_answers(self, ask: Ask, contexts: Sequence[Array]) -> list[Answer]:
        """Return the requests to the engine. With a seed, the noise depends on it, the prompt and the index among n."""
        most = self.worker.most if ask.most is None else min(max(1, ask.most), self.worker.most)
        out = []
        for context in contexts:
            sampling = room(ask.sampling, context, self.worker.limit, most)
            self._count += 1
            what = hashlib.blake2b(context.tobytes(), digest_size=16).hexdigest()
            name = (self._salt, self._count) if ask.seed is None else ("seed", ask.seed, what)
            out += [Answer(context, sampling, (*name, j)) for j in range(ask.n)]
        return out

    async def _echo(self, ask: Ask, contexts: Sequence[Array]) -> list[list[Piece]]:
        """Return the prompts as they are read, with log-probabilities if requested."""
        scored: Sequence[Sequence[Said]] = [
            [Said(int(i), None) for i in c[1:]]
            for c in contexts
        ]
        if ask.top is not None:
            scored = await self.worker.read_logp(contexts, ask.top)
        out = []
        for context, said in zip(contexts, scored, strict=True):
            texts, at, pieces = Pieces(self.worker.model.decode), 0, []
            tokens = [Said(int(context[0]), None), *said]
            for i, one in enumerate(tokens):
                text = texts.add(one.id) + (texts.rest() if i == len(tokens) - 1 else "")
                pieces.append(Piece(one, text, at))
                at += len(text)
            out.append(pieces)
        return out

    # ---------------------------------------------------------------- requests

    def _read_ask(self, body: bytes, *, chat: bool) -> Ask:
        """Parse a body, in a thread of `bodies`."""
        given = read_body(body, chat=chat)
        self._check_model(given.get("model"))
        return self._without_vain_stops(read_ask(given, chat=chat))

    def _without_vain_stops(self, ask: Ask) -> Ask:
        """Remove stop strings that a character tokenizer cannot write: they never occur."""

        def can_be_said(text: str) -> bool:
            try:
                self.worker.model.encode(Template(text))
            except ValueError:
                return False
            return True

        stop = tuple(filter(can_be_said, ask.sampling.stop))
        return replace(ask, sampling=replace(ask.sampling, stop=stop))

    async def _encode(self, prompt: Any, ask: Ask) -> Array:
        """Return [k] the ids of a prompt. Raises Refused if the model cannot read it, or it leaves no room for an
        answer."""
        field, size, limit = "messages" if ask.chat else "prompt", self.worker.vocabulary, self.worker.limit
        if isinstance(prompt, str | tuple):
            # clients of /v1/completions, such as lm-eval, render chat templates themselves: their special tokens count
            text = Template(prompt) if isinstance(prompt, str) else prompt
            try:
                ids = await self.worker.encode(text)
            except ValueError as error:
                hint = "; /v1/completions takes a prompt as it is, without a chat's words" if ask.chat else ""
                raise Refused(f"{field} cannot be read by this model: {str(error)[:400]}{hint}", field) from None
            if ask.tools and np.array_equal(ids, await self.worker.encode(text[1:])):
                what = "tools would not be told: the chat template of this model leaves system messages out"
                raise Refused(f"{what}; expected a model whose template has them, or no tools", "tools")
        else:
            ids = prompt
        if int(ids.max()) >= size:
            raise wrong(field, int(ids.max()), f"token ids from 0 to {size - 1}")
        more = 0 if ask.most == 0 else 1
        if len(ids) + more > limit:
            raise Refused(f"{field} has {len(ids)} tokens: expected at most {limit - more}, as the model reads {limit} "
                          "with its answer", field, "context_length_exceeded")  # fmt: skip
        return ids

    def _check_model(self, name: object) -> None:
        if name is None:
            raise Refused(f"model is missing: expected {self.name!r}", "model")
        if not isinstance(name, str):
            raise wrong("model", name, f"{self.name!r}")
        if name != self.name:
            raise Refused(f"no model {show(name)} is served here; {nearest(name[:200], [self.name])}", "model",
                          "model_not_found", 404)  # fmt: skip

    # ---------------------------------------------------------------- other addresses

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._describe_model()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._describe_model())

    def _describe_model(self) -> dict[str, Any]:
        made = {"id": self.name, "object": "model", "created": int(self.began), "owned_by": "shuhari"}
        return {**made, "max_model_len": self.worker.limit}

    async def _health(self, request: Request) -> Response:
        alive = self.worker.alive
        return JSONResponse({"status": "ok" if alive else "the engine has stopped"}, 200 if alive else 503)

    async def _metrics(self, request: Request) -> Response:
        """Return a few numbers in the text format of Prometheus."""
        lines = ["# TYPE shuhari_requests_total counter"]
        lines += [f'shuhari_requests_total{{path="{p}",status="{s}"}} {n}' for (p, s), n in sorted(self.told.items())]
        for name, kind, value in (
            ("tokens_total", "counter", self.worker.said),
            ("rows", "gauge", self.worker.rows),
            ("uptime_seconds", "gauge", round(time.time() - self.began, 1)),
        ):
            lines += [f"# TYPE shuhari_{name} {kind}", f"shuhari_{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n")

    def _leave(self, path: str, status: int) -> None:
        self.told[path, status] += 1

    def _counted(self, work: Work) -> Work:
        """Wrap a route to count its requests by status; a stream counts itself at its end."""

        async def answer(request: Request) -> Response | ASGIApp:
            path = request.url.path
            try:
                reply = await work(request)
            except Refused as refused:
                self._leave(path, refused.status)
                raise
            except ClientDisconnect:
                self._leave(path, GONE)
                return Response(status_code=GONE)
            except Exception as error:
                reply = fail(error)
            if isinstance(reply, Response):
                self._leave(path, reply.status_code)
            return reply

        return answer


# ---------------------------------------------------------------- parts


def _gather(news: Sequence[News]) -> list[tuple[int, list[Said], bool | None]]:
    """Return (row, tokens, whether it has ended) for each row with news. Raises the error of a row that failed."""
    said: dict[int, list[Said]] = {}
    ended: dict[int, bool | None] = {}
    for one in news:
        if one.error is not None:
            raise one.error
        said.setdefault(one.i, []).extend(one.said)
        ended[one.i] = one.ended
    return [(i, tokens, ended[i]) for i, tokens in said.items()]


async def _lost(request: Request, error: Exception) -> JSONResponse:
    """Answer a request with an unknown path or method."""
    assert isinstance(error, HTTPException)
    known = "/v1/chat/completions and /v1/completions (POST), /v1/models, /health, /metrics (GET)"
    what = f"{request.method} {show(request.url.path)} is not served: expected {known}"
    refused = Refused(what, code="not_found", status=error.status_code)
    return JSONResponse(refused.body, error.status_code, dict(error.headers or {}))
