"""The engine in a thread and event loop of its own, so that a slow step of the decoder does not delay connections.

Rows of all requests run side by side in one decoder. After each step, the new tokens of all rows are sent together to
the server's loop. A request that nobody waits for leaves the decoder at once. Axes: `K` tokens of an answer, `k`
alternatives to a token.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from shuhari.data import Array, Payload, Problem, Request, Sampling, Step, Trajectory, copy_with
from shuhari.desk.serving.refusals import Refused
from shuhari.desk.serving.telling import Said
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.models.text.tokenizers import Template
from shuhari.needs import Trace
from shuhari.ports.hooks import ability
from shuhari.store.files import find_memory

DTYPES = ("float32", "bfloat16", "float16")  # of the weights that sample
READERS = 2  # threads that render conversations and tokenise prompts
SCORED = 1 << 24  # logits of prompts in memory at once
SHARE = 4  # keys and values may take one part in so many of the machine's memory
RETRY = 1  # seconds after which a refused client may try again


@dataclass(frozen=True)
class Answer:
    """One row to sample: its noise depends only on `key`."""

    context: Array
    sampling: Sampling
    key: tuple[object, ...]


@dataclass(frozen=True)
class News:
    """News of row `i` of a request: new tokens; once it is done, `ended` (False: cut by a limit); or the error that it
    failed with."""

    i: int
    said: tuple[Said, ...] = ()
    ended: bool | None = None
    error: Exception | None = None


Inbox = asyncio.Queue[list[News]]


@dataclass(eq=False)
class Worker:
    """Serves one language model. `slots`: rows that run at once; `queue`: rows that may wait; `cache`: the most tokens
    of keys and values (0: as many as fit into a quarter of the memory); `most`: tokens of an answer; `dtype`: of the
    weights that sample ("": the model's). Raises TypeError for a model that writes no text, ValueError for settings
    that the model does not support."""

    model: Any
    slots: int = 256
    queue: int = 1024
    cache: int = 0
    most: int = 4096
    dtype: str = ""
    rows: int = field(init=False, default=0)  # running or waiting
    said: int = field(init=False, default=0)  # tokens in total

    def __post_init__(self) -> None:
        if ability(self.model, "decoder") is None or ability(self.model, "encode") is None:
            kind = type(self.model).__name__
            raise TypeError(f"the model {kind} writes no text: expected a language model (`causal`)")
        for name, value, low in (("slots", self.slots, 1), ("queue", self.queue, 0), ("most", self.most, 1)):
            if value < low:
                raise ValueError(f"{name} is {value}: expected at least {low}")
        if self.dtype not in ("", *DTYPES):
            raise ValueError(f"dtype is {self.dtype!r}: expected {', '.join(DTYPES)}, or none (as the model is)")
        settings: dict[str, Any] = {"dtype": self.dtype, "tokens": self.cache}
        if ability(self.model, "packs"):  # otherwise it samples a batch at a time, with the forward of transformers
            settings |= {"slots": self.slots, "tokens": self.cache or _find_room(self.model, self.dtype)}
        self.engine = Local(**settings)
        self._news: list[tuple[asyncio.AbstractEventLoop, Inbox, News]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._readers = ThreadPoolExecutor(READERS, "reader")

    def start(self) -> None:
        """Start the thread, and sample one token, so that errors show here."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self.close()
            raise

    async def _open(self) -> None:
        self.engine.sync({"policy": self.model}, 0)
        await self.engine.sample("policy", self.model.encode(""), Sampling(max_new=1), key=("first",))

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def limit(self) -> int:
        """The longest row that the model reads, in tokens."""
        return int(self.model.limit)

    @property
    def vocabulary(self) -> int:
        return int(self.model.module.vocabulary)

    # ---------------------------------------------------------------- called from the server's own loop

    async def encode(self, prompt: Payload) -> Array:
        """Return [k] the ids of a text or a conversation. Raises ValueError if the model cannot read it."""
        loop = asyncio.get_running_loop()
        read: Any = self.model.encode
        if isinstance(prompt, Template) and (tokens := ability(self.model, "text")) is not None:
            read = partial(tokens.encode_text, begin=True)  # without a chat template
        ids: Array = await loop.run_in_executor(self._readers, read, prompt)
        return ids

    @contextmanager
    def ask(self, answers: Sequence[Answer], *, live: bool) -> Iterator[Inbox]:
        """Start rows, and yield the inbox of their news. live: token by token, otherwise a whole row at once. On
        leaving, unfinished rows are dropped. Raises Refused (503) if too many are waiting."""
        if not self.alive:
            raise Refused("the engine has stopped: start the server anew", status=503)
        if self.rows + len(answers) > self.slots + self.queue:
            message = f"{self.rows} answers are being written or wait: expected at most {self.slots + self.queue}"
            later = {"Retry-After": str(RETRY)}
            raise Refused(f"{message}; ask again later", code="overloaded", status=503, headers=later)
        self.rows += len(answers)
        loop, inbox = asyncio.get_running_loop(), Inbox()
        work = self._say(answers, live, lambda news: self._send(loop, inbox, news))
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            yield inbox
        finally:
            self.rows -= len(answers)
            future.cancel()

    async def read_logp(self, contexts: Sequence[Array], top: int) -> list[list[Said]]:
        """Return the log-probability of each token of these texts except the first, with `top` alternatives, at
        temperature 1."""
        future = asyncio.run_coroutine_threadsafe(self._read_logp(contexts, top), self._loop)
        return await asyncio.wrap_future(future)

    # ---------------------------------------------------------------- in the engine's thread

    async def _say(self, answers: Sequence[Answer], live: bool, tell: Callable[[News], None]) -> None:
        await asyncio.gather(*(self._say_one(i, answer, live, tell) for i, answer in enumerate(answers)))

    async def _say_one(self, i: int, answer: Answer, live: bool, tell: Callable[[News], None]) -> None:
        sampling, done = answer.sampling, 0

        def hear(row: Any, token: int, logp: float) -> None:
            nonlocal done
            tell(News(i, (_said(token, logp, row.extra, done, sampling.top),)))
            done += 1

        try:
            (trace,) = await self.engine.sample(
                "policy", answer.context, sampling, key=answer.key, watch=hear if live else None
            )
            self.said += len(trace.action)
            tell(News(i, tuple(_list_said(trace, sampling.top)[done:]), bool(trace.info["ended"])))
        except Exception as error:
            tell(News(i, error=error))

    def _send(self, loop: asyncio.AbstractEventLoop, inbox: Inbox, news: News) -> None:
        if not self._news:
            self._loop.call_soon(self._post)
        self._news.append((loop, inbox, news))

    def _post(self) -> None:
        """Send the news of a step, in one call for each server's loop."""
        news, self._news = self._news, []
        by: dict[asyncio.AbstractEventLoop, dict[Inbox, list[News]]] = {}
        for loop, inbox, one in news:
            by.setdefault(loop, {}).setdefault(inbox, []).append(one)
        for loop, boxes in by.items():
            with suppress(RuntimeError):  # a closed loop: nobody waits there
                loop.call_soon_threadsafe(_deliver, boxes)

    async def _read_logp(self, contexts: Sequence[Array], top: int) -> list[list[Said]]:
        out = []
        for context in contexts:
            out.append(_read_logp(self.model, context, top))
            await asyncio.sleep(0)  # running rows get a step between two texts
        return out


def _deliver(boxes: Mapping[Inbox, list[News]]) -> None:
    for inbox, news in boxes.items():
        inbox.put_nowait(news)


def _said(token: int, logp: float, extra: Mapping[str, Any], at: int, top: int) -> Said:
    if not top:
        return Said(token, logp)
    pairs = zip(extra["top"][at].tolist(), extra["top_logp"][at].tolist(), strict=True)
    return Said(token, logp, tuple((i, p) for i, p in pairs if i >= 0 and p > -1e30))


def _list_said(trace: Trace, top: int) -> list[Said]:
    """Return [K] the tokens of a trace."""
    pairs = zip(trace.action.tolist(), trace.logp.tolist(), strict=True)  # type: ignore[union-attr]
    return [_said(token, logp, trace.info, at, top) for at, (token, logp) in enumerate(pairs)]


@torch.no_grad()
def _read_logp(model: Any, context: Array, top: int) -> list[Said]:
    """Score one text [k], as `Worker.read_logp`."""
    if len(context) < 2:
        return []
    step = Step.of(context[:1], context[1:])
    dist = model(pack([Trajectory(Request(Problem("score", "", None)), (step,))]))
    ids = torch.from_numpy(context[1:].astype("int64"))
    out = []
    for part in torch.arange(len(ids)).split(max(1, SCORED // dist.vocabulary)):
        p = dist.at(part).parameters().log_softmax(-1)  # [n, V]
        best, places = p.topk(min(top, p.shape[1]))
        logp = p.gather(1, ids[part][:, None]).squeeze(1)
        for token, x, i, b in zip(ids[part].tolist(), logp.tolist(), places.tolist(), best.tolist(), strict=True):
            out.append(Said(token, x, tuple(zip(i, b, strict=True))))
    return out


def _find_room(model: Any, dtype: str) -> int:
    """Return the tokens of keys and values that fit into a share of the device's memory; 0 if unknown."""
    net = model.module
    memory = torch.cuda.mem_get_info(net.device)[0] if net.device.type == "cuda" else find_memory()
    size = (getattr(torch, dtype) if dtype else net.lm.dtype).itemsize
    return int(memory // SHARE // (2 * net.lean.layers * net.lean.kv_heads * net.lean.width * size))


def room(sampling: Sampling, context: Array, limit: int, most: int) -> Sampling:
    """Return the settings for a context [k], with as many tokens as there is room for, at most `most`."""
    return copy_with(sampling, max_new=max(1, min(most, limit - len(context))))
