"""A simulated run as events: rows that end, replies of tools, messages, updates, new weights.

All rows of a replica advance together, a token a step, so that events occur only when rows begin and end. The groups in
flight follow `loop.flight`: with staleness s, groups for 1 + s batches are in flight; an update waits for those that
are due, then takes the oldest finished ones. `setting` explains the modes. Left out: memory, failures, groups that a
filter drops.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shuhari.desk.planning.hardware import Hardware
from shuhari.desk.planning.replica import Replica, Work
from shuhari.desk.planning.setting import Outcome, Setting
from shuhari.desk.planning.workload import Group, count_tokens


@dataclass(eq=False)
class _Pending:
    group: Group
    version: int
    left: int
    due: bool = False
    readers: set[int] = field(default_factory=set)


class Simulation:
    """A simulated run. `groups` are taken from the stream in the order of requests."""

    def __init__(self, setting: Setting, hardware: Hardware, groups: Iterable[Group]) -> None:
        self.s, self.hw, self.source = setting, hardware, iter(groups)
        self.now, self._seq, self._events = 0.0, 0, list[tuple[float, int, Callable[..., None], tuple[Any, ...]]]()
        count = max(1, setting.sampling // hardware.replica)
        self.replicas = [Replica(i, hardware, self, early=setting.early) for i in range(count)]
        self._loads = [(0, i) for i in range(count)]
        self.flight: list[_Pending] = []
        self.done = self.due = 0  # groups in flight that are complete; due ones that are not
        self.version, self.portion = 0, 0
        self.want = 0  # groups that the trainer waits for; 0: it does not wait
        self.active = 0  # answers that have begun
        self._drained: Callable[[], None] | None = None
        self.draining = False
        self.driver_free = self.driver_busy = 0.0
        self.spent: dict[str, float] = {}
        self.ends: list[float] = []
        self.tokens: list[int] = []
        self.answers: list[int] = []
        self.behind: list[list[int]] = []
        self._left, self._since, self._stamp, self._learning = 0.0, 0.0, 0, False  # of an update on a shared machine
        self._waited = 0.0

    # ---------------------------------------------------------------- events

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call; calls at the same time keep their order."""
        self._seq += 1
        heapq.heappush(self._events, (time, self._seq, call, args))

    def run(self) -> Outcome:
        self._begin_step()
        while len(self.ends) < self.s.steps:
            if not self._events:
                raise RuntimeError(f"the simulated run stands still at {self.now:g} s, after {len(self.ends)} steps")
            self.now, _, call, args = heapq.heappop(self._events)
            call(*args)
        return self._outcome()

    # ---------------------------------------------------------------- sampling

    def _ask(self, lack: int) -> None:
        for _ in range(lack):
            group = next(self.source)
            pending = _Pending(group, self.version, len(group))
            self.flight.append(pending)
            for answer in group:
                self._message(self._place, Work(pending, answer))

    def _message(self, call: Callable[..., None], *args: Any) -> None:
        """Send a message through the driver, which handles one at a time."""
        if self.hw.driver and not self.s.shared:
            self.driver_free = max(self.driver_free, self.now) + self.hw.driver * self.s.scale
            self.driver_busy += self.hw.driver * self.s.scale
            self.at(self.driver_free, call, *args)
        else:
            call(*args)

    def _place(self, work: Work) -> None:
        """Assign an answer to the replica with the fewest rows."""
        while True:
            load, i = heapq.heappop(self._loads)
            if load == self.replicas[i].load:  # otherwise the entry is outdated, and there is a newer one
                break
        replica = self.replicas[i]
        replica.load += 1
        heapq.heappush(self._loads, (replica.load, i))
        work.replica = replica
        work.reads = i not in work.group.readers  # rows on the same replica share the prompt
        work.group.readers.add(i)
        replica.arrive(work)

    def ended(self, work: Work) -> None:
        """Handle the end of a turn of a row."""
        turn = work.answer[work.turn]
        if turn.wait:
            self.at(self.now + turn.wait, self._answered, work)
        else:
            self._answered(work)

    def _answered(self, work: Work) -> None:
        work.turn += 1
        work.reads = True
        assert work.replica is not None
        if work.turn < len(work.answer):
            work.replica.arrive(work)
            return
        work.replica.load -= 1
        heapq.heappush(self._loads, (work.replica.load, work.replica.number))
        self.active -= 1
        self._message(self._landed, work.group)
        if self._drained and not self.active:
            then, self._drained = self._drained, None
            then()

    def _landed(self, pending: _Pending) -> None:
        pending.left -= 1
        if pending.left:
            return
        self.done += 1
        self.due -= pending.due
        self._begin_update()

    def busy_changed(self) -> None:
        """Update the speed of training: on a shared machine an update takes twice as long while rows run."""
        if self.s.shared and self._learning:
            self._learn(self._progress())

    # ---------------------------------------------------------------- learning

    def _begin_step(self) -> None:
        s, bound = self.s, self.s.staleness
        if s.ends:
            bound = min(bound, s.steps - len(self.ends) - 1)
        self.portion = 0
        for t in self.flight:
            t.due = t.version + math.ceil(s.staleness) <= self.version
        self.due = sum(t.due and t.left > 0 for t in self.flight)
        self._taken: list[_Pending] = []
        lack = s.groups + int(bound * s.groups) - len(self.flight)
        self._wait(s.groups // s.stream if s.stream > 1 else s.groups)
        self._ask(max(0, lack))
        self._begin_update()

    def _wait(self, want: int) -> None:
        self.want, self._waited = want, self.now

    def _begin_update(self) -> None:
        """Begin an update if its portion is complete."""
        if not self.want or self.due or self.done < self.want:
            return
        due = [t for t in self.flight if t.due]
        free = [t for t in self.flight if not t.left and not t.due][: max(0, self.want - len(due))]
        chosen = due + free
        gone = {id(t) for t in chosen}
        self.flight = [t for t in self.flight if id(t) not in gone]
        self.done -= len(chosen)
        self.want = 0
        self._spend("waiting", self.now - self._waited)
        self._taken += chosen
        tokens: float = sum(
            count_tokens(a)
            for t in chosen
            for a in t.group
        )
        share = 1 / self.s.stream
        devices, tokens = round(self.s.training * self.s.scale), tokens * self.s.scale
        seconds = self.hw.learn(tokens, devices) - (1 - share) * self.hw.update
        if self.s.stream > 1:
            seconds -= (1 - share) * (self.hw.learn(0, devices) - self.hw.update)
        self._began, self._learning = self.now, True
        self._learn(seconds)

    def _learn(self, seconds: float) -> None:
        """Schedule the end of an update that would take this many seconds alone on the machine."""
        self._stamp += 1
        self._left, self._since = seconds, self.now
        slow = 2.0 if self.s.shared and any(r.rows for r in self.replicas) else 1.0
        self._slow = slow
        if self.s.shared:
            for r in self.replicas:
                r.set_speed(0.5)
        self.at(self.now + seconds * slow, self._learnt, self._stamp)

    def _progress(self) -> float:
        return max(0.0, self._left - (self.now - self._since) / self._slow)

    def _learnt(self, stamp: int) -> None:
        if stamp != self._stamp:
            return
        self._learning = False
        self._spend("training", self.now - self._began)
        self.portion += 1
        if self.portion < self.s.stream:
            rest = self.s.groups - self.s.groups // self.s.stream * (self.s.stream - 1)
            self._wait(rest if self.portion == self.s.stream - 1 else self.s.groups // self.s.stream)
            self._begin_update()
            return
        self.tokens.append(sum(
            count_tokens(a)
            for t in self._taken
            for a in t.group
        ))
        self.answers.append(sum(len(t.group) for t in self._taken))
        self.behind.append([self.version - t.version for t in self._taken])
        if self.s.mode == "async":
            self.draining, self._began = True, self.now
            if self.active:
                self._drained = self._send
                return
        self._began = self.now
        self._send()

    def _send(self) -> None:
        """Send new weights to every replica."""
        self._spend("draining", self.now - self._began)
        self.version += 1
        seconds = self.hw.broadcast(round(len(self.replicas) * self.s.scale))
        if seconds or self.s.shared:
            for r in self.replicas:
                r.set_speed(0.0)
        self._spend("weights", seconds)
        self.at(self.now + seconds, self._sent)

    def _sent(self) -> None:
        self.draining = False
        alone = self.hw.alone(self.answers[-1] * self.s.scale, self.tokens[-1] * self.s.scale)
        if self.s.shared:
            alone += self.hw.driver * 2 * self.answers[-1]
        for r in self.replicas:
            r.refresh(again=self.s.mode == "partial" and self.hw.resume)
            r.set_speed(0.0 if self.s.shared else 1.0)
        self._spend("alone", alone)
        if not self.s.shared:
            self.driver_free = max(self.driver_free, self.now) + alone  # it distributes nothing meanwhile
            self.driver_busy += alone
        self.at(self.now + alone, self._committed)

    def _committed(self) -> None:
        for r in self.replicas if self.s.shared else ():
            r.set_speed(1.0)
        self.ends.append(self.now)
        if len(self.ends) < self.s.steps:
            self._begin_step()

    def _spend(self, what: str, seconds: float) -> None:
        self.spent[what] = self.spent.get(what, 0.0) + seconds

    def _outcome(self) -> Outcome:
        first = min(len(self.ends) - 1, 1 + math.ceil(self.s.staleness))
        began = self.ends[first - 1] if first else 0.0
        span, steps = self.ends[-1] - began, len(self.ends) - first
        behind = np.concatenate([np.asarray(b) for b in self.behind[first:]])
        for r in self.replicas:
            r.account(self.now)
        busy = sum(r.busy for r in self.replicas)
        total, n = self.now or 1.0, self.s.devices
        shares = {k: v / total for k, v in self.spent.items() if v > 0}
        besides = shares.get("alone", 0.0) + shares.get("weights", 0.0) if self.s.shared else 0.0  # own work
        return Outcome(
            ends=self.ends,
            seconds=span / steps,
            tokens=self.s.scale * sum(self.tokens[first:]) / span if span else math.inf,
            answers=self.s.scale * sum(self.answers[first:]) / span if span else math.inf,
            staleness=float(behind.mean()),
            staleness_max=int(behind.max()),
            sampling_idle=1 - busy / (total * len(self.replicas)),
            training_idle=1 - (learning := shares.get("training", 0.0)),
            idle=1 - (busy / total / len(self.replicas) * self.s.sampling + learning * self.s.training + besides) / n,
            rows=sum(r.row_seconds for r in self.replicas) / busy if busy else 0.0,
            driver=self.driver_busy / total,
            shares=shares,
        )


def simulate(setting: Setting, hardware: Hardware, groups: Iterable[Group]) -> Outcome:
    """Simulate a run of `setting.steps` steps."""
    return Simulation(setting, hardware, groups).run()
