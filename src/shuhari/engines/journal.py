"""A journal of the engine's answers to groups still in flight, so that a resumed run replays them.

A call is named by its key and by what was asked; it is kept under the group that asked (`CURRENT_GROUP`), with the
loop's time of its answer, until that group has been learnt from. Of calls that run, what they have said so far is kept.
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
    """`answered`: answers, {"at": time, "answer": plain data}. Of a run that is resumed, `before` are answers that were
    not asked for again yet, and `begun` calls that had not been answered."""

    def __init__(self) -> None:
        self.answered: Calls = {}
        self.before: Calls = {}
        self.begun: Calls = {}
        self._asked: dict[str, Counter[str]] = {}

    def name(self, *asked: Any) -> str:
        """The name of a call of the current group: its arguments, and how often they came before. Empty outside."""
        if not (asker := CURRENT_GROUP.get()):
            return ""
        what = f"{code(codec.dumps(asked)):x}"
        count = self._asked.setdefault(asker, Counter())
        count[what] += 1
        return f"{what}#{count[what]}"

    def keep(self, asker: str, call: str, answer: Any, at: float) -> None:
        """Record an answer and the time of the loop at which it is given."""
        if asker:
            self.answered.setdefault(asker, {})[call] = {"at": at, "answer": answer}

    def forget(self, asker: str) -> None:
        """Drop the answers of a group that is complete."""
        for calls in (self.answered, self.before, self.begun, self._asked):
            calls.pop(asker, None)

    def load(self, answered: Calls, begun: Calls) -> None:
        """Load the answers of the run that is resumed."""
        self.answered = {asker: dict(calls) for asker, calls in answered.items()}
        self.before = {asker: dict(calls) for asker, calls in answered.items()}
        self.begun = {asker: dict(calls) for asker, calls in begun.items()}

    async def known(self, call: str) -> Any:
        """The answer from before, at its time where time is virtual; None where there is none."""
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
        """The partial rows of a call that was still running."""
        return self.begun.get(CURRENT_GROUP.get(), {}).pop(call, None)


def plain(trace: Trace) -> dict[str, Any]:
    """A trace as plain data for the codec."""
    known = {"action": trace.action, "logp": trace.logp, "version": trace.version, "info": dict(trace.info)}
    return known if trace.taken is None else {**known, "taken": trace.taken}
