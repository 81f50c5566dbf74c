"""One engine of a simulated run: rows that advance together, a token a step.

Between two events only the number of steps changes: for `b` rows that attend to `S` tokens, the next n steps take n
(step + row b + cached S) + cached b n (n - 1) / 2 seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.workload import Answer

TINY = 1e-9  # of a step: tolerance for rounding


@dataclass(eq=False)
class Work:
    """An answer in progress: its `turn`, its replica, and whether the replica has to read for it."""

    group: Any
    answer: Answer
    turn: int = 0
    reads: bool = True
    begun: bool = False
    replica: Replica | None = None


class Replica:
    """A replica with `rows` that attend to `cached` tokens. `taken`: steps made; `rest`: seconds left of the current
    step at full `speed`. Rows end at a number of steps."""

    def __init__(self, number: int, hardware: Hardware, run: Any, *, early: bool) -> None:
        self.number, self.hw, self.run, self.early = number, hardware, run, early
        self.now, self.speed, self.rest = 0.0, 1.0, 0.0
        self.rows = self.cached = self.taken = self.load = 0
        self.fresh = False  # whether the current step begins now
        self.ends: list[tuple[int, int, Work, int]] = []  # (step, order, row, tokens that it attends to then)
        self.queue: deque[Work] = deque()  # answers that have not begun
        self.again: deque[Work] = deque()  # answers that have
        self._order = self._stamp = self._planned = 0
        self.busy = self.row_seconds = 0.0

    # ---------------------------------------------------------------- time

    def account(self, time: float) -> None:
        """Count the time until now as busy or idle; a shared machine that learns is not busy."""
        if self.rows and self.speed == 1:
            self.busy += time - self.now
            self.row_seconds += (time - self.now) * self.rows
        self.now = time

    def _price(self) -> float:
        """Return the seconds of a step in the current state."""
        hw = self.hw
        return hw.step + hw.row * self.rows + hw.cached * self.cached

    def advance(self) -> None:
        """Advance to the time of the run, possibly into the middle of a step."""
        time = self.run.now
        work = (time - self.now) * self.speed
        self.account(time)
        if not self.rows or work <= 0:
            return
        self.fresh = False
        if work < self.rest * (1 - TINY):
            self.rest -= work
            return
        work = max(0.0, work - self.rest)
        self._count(1)
        first, more = self._price(), self.hw.cached * self.rows
        n = math.floor(work / first + TINY)
        if more:  # n first + more n (n - 1) / 2 <= work
            half = first - more / 2
            n = math.floor((math.sqrt(half * half + 2 * more * work) - half) / more + TINY)
        work -= n * first + more * n * (n - 1) / 2
        self._count(n)
        self.rest = max(0.0, self._price() - work)

    def _count(self, steps: int) -> None:
        self.taken += steps
        self.cached += steps * self.rows

    def set_speed(self, speed: float) -> None:
        """Set the speed from now on; 0: stopped."""
        if speed != self.speed:
            self.advance()
            self.speed = speed
            self._plan()

    # ---------------------------------------------------------------- rows

    def arrive(self, work: Work) -> None:
        (self.again if work.begun else self.queue).append(work)
        self.advance()
        if self._may_enter() and (not self.rows or self.fresh or self.early):
            self._enter()
        self._plan()

    def refresh(self, *, again: bool) -> None:
        """Handle new weights: reread what the rows attend to, and let rows begin that were held back."""
        self.advance()
        if again and self.rows:
            self.rest += self.hw.read * self.cached
        if not self.rows:
            self._enter()
        self._plan()

    def _may_enter(self) -> bool:
        return self.rows < self.hw.slots and bool(self.again or (self.queue and not self.run.draining))

    def _enter(self) -> None:
        """Let waiting rows join the next step or, in virtual time, the current one."""
        before, idle = self.rest, not self.rows
        read = joined = 0
        while self._may_enter():
            work = self.again.popleft() if self.again else self.queue.popleft()
            if not work.begun:
                work.begun = True
                self.run.active += 1
            turn = work.answer[work.turn]
            read += turn.read if work.reads else 0
            self.rows += 1
            self.cached += turn.read
            self._order += 1
            heapq.heappush(self.ends, (self.taken + turn.new, self._order, work, turn.read + turn.new))
            joined += 1
        if not joined:
            return
        if idle:
            before, self.fresh = self.hw.step, True
            self.run.busy_changed()
        self.rest = before + self.hw.row * joined + self.hw.read * read  # reading gives the first token

    def _plan(self) -> None:
        """Schedule the next event: the first row that ends, or the end of this step if a row is waiting."""
        self._stamp += 1
        if not self.rows or not self.speed:
            return
        n = 1 if self._may_enter() else self.ends[0][0] - self.taken
        price, more = self._price(), self.hw.cached * self.rows
        m = n - 1
        seconds = self.rest + m * (price + more) + more * m * (m - 1) / 2
        self._planned = n
        self.run.at(self.now + seconds / self.speed, self._happens, self._stamp)

    def _happens(self, stamp: int) -> None:
        if stamp != self._stamp:
            return
        self.account(self.run.now)
        self._count(self._planned)
        gone: list[Work] = []
        while self.ends and self.ends[0][0] <= self.taken:
            _, _, work, held = heapq.heappop(self.ends)
            self.rows -= 1
            self.cached -= held
            gone.append(work)
        self.fresh, self.rest = True, self._price() if self.rows else 0.0
        idle = not self.rows
        self._enter()
        if idle and not self.rows:
            self.run.busy_changed()
        self._plan()
        for work in gone:
            self.run.ended(work)
