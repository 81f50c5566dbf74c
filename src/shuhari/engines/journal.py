"""What an engine has answered to groups that are still in flight, so that a resumed run can ask again for nothing.

A call is named by its key. It is kept under the group that asked (`ASKER`), with the loop's time of its answer, until
that group has been learnt from. Of calls that are not finished, what they have said so far is kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from shuhari.clock import VirtualLoop
from shuhari.needs import Trace

ASKER: ContextVar[str] = ContextVar("asker", default="")  # the key of the request whose group runs now


def call_name(kind: str, key: Sequence[object]) -> str:
    """The name of a call."""
    return json.dumps([kind, *key], default=str)


class Journal:
    """asker -> call -> {"at": time, "answer": plain data}. `loaded` ones are from before a resume."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, dict[str, Any]]] = {}
        self.before: dict[str, dict[str, Any]] = {}

    def keep(self, asker: str, call: str, answer: Any, at: float) -> None:
        """Note what is answered at a time of the loop, where a group in flight asked."""
        if asker:
            self.told.setdefault(asker, {})[call] = {"at": at, "answer": answer}

    def forget(self, asker: str) -> None:
        self.told.pop(asker, None)

    def load(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the answers of a run that goes on."""
        self.told = {asker: dict(calls) for asker, calls in told.items()}
        self.before = {call: known for calls in self.told.values() for call, known in calls.items()}

    async def known(self, call: str) -> Any:
        """The answer from before, at its time where time is virtual; None where there is none."""
        if not self.before or (known := self.before.pop(call, None)) is None:
            return None
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and known["at"] > loop.time():
            answered = loop.create_future()
            loop.call_at(known["at"], answered.set_result, None)
            await answered
        return known["answer"]


def plain(trace: Trace) -> dict[str, Any]:
    """A trace as the codec takes it."""
    return {"action": trace.action, "logp": trace.logp, "version": trace.version, "info": dict(trace.info)}
