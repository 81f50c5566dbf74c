"""Events in order: what a listener tells while it hears waits until all have heard the event at hand. And which event
the `on` of a follower means."""

from __future__ import annotations

from collections.abc import Callable

from shuhari.ports import Committed, Evaluated, Event, StageStarted, Updated

EVENTS = {"update": Updated, "step": Committed, "stage": StageStarted, "plateau": Evaluated}


class InOrder:
    """Call it to tell an event. `hear` is called with one event at a time, in the order in which they were told."""

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self.hear = hear
        self.waiting: list[Event] = []  # the one that is being heard, then those that it brought about

    def __call__(self, event: Event) -> None:
        self.waiting.append(event)
        if len(self.waiting) > 1:
            return
        try:
            while self.waiting:
                self.hear(self.waiting[0])
                del self.waiting[0]
        finally:
            self.waiting.clear()
