"""The event loop in which the coroutines of a run take turns; its time is virtual if the engine models its durations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from shuhari.engines.clock import VirtualLoop, new_loop
from shuhari.ports import Durations

T = TypeVar("T")
PATIENCE = 5.0  # seconds that what was given up may take to end


class EventLoop:
    """One loop for the whole run, or for its stages with the same kind of time: `asyncio.run` for each step is slow."""

    def __init__(self) -> None:
        self.made: asyncio.AbstractEventLoop | None = None  # when it is first needed

    def get(self, virtual: Durations | None) -> asyncio.AbstractEventLoop:
        """Return the loop of virtual time by these durations, or of real time. A loop of the other kind is closed."""
        if self.made is not None and isinstance(self.made, VirtualLoop) != (virtual is not None):
            self.made.close()
            self.made = None
        if self.made is None:
            self.made = new_loop(virtual)
        return self.made

    def close(self) -> None:
        """Cancel the remaining tasks, wait for them, and close the loop."""
        if self.made is None:
            return
        if left := asyncio.all_tasks(self.made):  # of what was interrupted
            for task in left:
                task.cancel()
            run_in(self.made, asyncio.wait(left, timeout=PATIENCE))
        self.made.close()


def run_in(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in another thread if a loop already runs in this one, as in a notebook."""
    if asyncio._get_running_loop() is None:
        return loop.run_until_complete(coroutine)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(copy_context().run, loop.run_until_complete, coroutine).result()
