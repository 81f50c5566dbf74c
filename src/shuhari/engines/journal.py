"""A journal of the engine's answers to groups still in flight, so that a resumed run replays them.

A call is identified by its key and arguments. Its answer is kept under the group that made the call (`CURRENT_GROUP`),
with the event loop's time of the answer, until that group has been trained on. For calls that still run, the partial
output is kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shuhari.data import code
from shuhari.engines.clock import VirtualLoop
from shuhari.needs import Trace
from shuhari.ports import CURRENT_GROUP, REPLAYING
from shuhari.store import codec

Calls = dict[str, dict[str, dict[str, Any]]]  # asker -> call -> what is known of it


class Journal:
    """Answers by group and call; `answered`: {"at": time, "answer": plain data}. In a resumed run, `before` are answers
    that have not been requested again yet, and `begun` are calls that had no answer yet."""

    def __init__(self) -> None:
        self.answered: Calls = {}
        self.before: Calls = {}
        self.begun: Calls = {}
        self._asked: dict[str, Counter[str]] = {}

    def name(self, *asked: Any) -> str:
        """Return the name of a call of the current group, made of its arguments and of how often they came before; ""
        outside of a group."""
        if not (asker := CURRENT_GROUP.get()):
            return ""
        what = f"{code(codec.dumps(asked)):x}"
        count = self._asked.setdefault(asker, Counter())
        count[what] += 1
        return f"{what}#{count[what]}"

    def keep(self, asker: str, call: str, answer: Any, at: float) -> None:
        """Record an answer and its time on the event loop."""
        if asker:
            self.answered.setdefault(asker, {})[call] = {"at": at, "answer": answer}

    def forget(self, asker: str) -> None:
        """Drop the answers of a group that is complete."""
        for calls in (self.answered, self.before, self.begun, self._asked):
            calls.pop(asker, None)

    def load(self, answered: Calls, begun: Calls) -> None:
        """Load the answers of the resumed run."""
        self.answered = {asker: dict(calls) for asker, calls in answered.items()}
        self.before = {asker: dict(calls) for asker, calls in answered.items()}
        self.begun = {asker: dict(calls) for asker, calls in begun.items()}

    async def known(self, call: str) -> Any:
        """Return the recorded answer of a call, in virtual time at its recorded time; None if there is none."""
        known = self.before.get(CURRENT_GROUP.get(), {}).pop(call, None)
        if known is None:
            REPLAYING.set(False)
            return None
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and known["at"] > loop.time():
            answered = loop.create_future()
            loop.call_at(known["at"], answered.set_result, None)
            await answered
        return known["answer"]

    def half(self, call: str) -> Mapping[str, Any] | None:
        """Return the partial rows of a call that was still running, or None."""
        return self.begun.get(CURRENT_GROUP.get(), {}).pop(call, None)


def plain(trace: Trace) -> dict[str, Any]:
    """Convert a trace to plain data for the codec."""
    known = {"action": trace.action, "logp": trace.logp, "version": trace.version, "info": dict(trace.info)}
    more = {"taken": trace.taken, "memory": trace.memory}
    return {**known, **{name: x for name, x in more.items() if x is not None}}
