"""A small language model as a Hugging Face directory, and requests to an application in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import torch

from shuhari.data import Problem
from shuhari.models.text.causal import Causal
from shuhari.tasks.prompts import Prompts
from shuhari.tasks.source import Listed

TEXTS = ("What is 3 plus 4? The sum is", "Österreich, €5, 日本語 und 🙂", "once upon a time there was a model")
CONTEXT = 160


class Texts(Prompts):
    def problems(self, split: str) -> Listed:
        return Listed([Problem("t", str(i), text) for i, text in enumerate(TEXTS * 3)])


def write_model(folder: Path, **settings: Any) -> Path:
    """A model with random weights, larger than usual, so that its answers differ."""
    torch.manual_seed(0)
    sizes = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64, "context": CONTEXT}
    model = Causal(**{**sizes, "tokenizer": "bpe", "vocabulary": 300, **settings})
    model.build(Texts())
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    model.save(folder)
    return folder


def ask(app: Any, *requests: Any, base: str = "http://127.0.0.1:8000", **headers: str) -> list[httpx.Response]:
    """The replies to (path, body) posted side by side; a path alone is got."""

    kind = {"content-type": "application/json"}

    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base, headers=headers) as client:
            sent: list[Awaitable[httpx.Response]] = []
            for one in requests:
                if isinstance(one, str):
                    sent.append(client.get(one))
                else:
                    sent.append(client.post(one[0], content=json.dumps(one[1]), headers=kind))
            return await asyncio.gather(*sent)

    return asyncio.run(go())


def read_events(text: str) -> list[Any]:
    """The events of a stream, which has to end as it should."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""] and all(p.startswith("data: ") for p in parts[:-1])
    return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
