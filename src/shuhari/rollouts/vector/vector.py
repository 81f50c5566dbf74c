"""Vectorised Gymnasium environments, stepped in this process or in workers; columns are written directly.

A fragment is a rectangle of T + 1 rows by N lanes. A row either decides (its successor is the row below in its lane) or
closes: the final observation of an episode, with `cont` 0 after termination and 1 after a time limit, or the last row
of a fragment that goes on (`cont` 1). The step that resets a lane is no transition: it leaves the closing row. Each
part of a Dict observation is an array of its own. The actor (`lanes`, `workers`) owns and steps the environments. The
task names what environments report beside observation and reward (`extras`). Left out: lanes that run ahead of others
by more than a row, policies inside the workers.

Axes: `N` lanes, `T` steps of a fragment, `B` = (T + 1) * N rows, `K` positions of a decision (1 except for chains).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, Lanes, Processes, check
from shuhari.data import Payload, Ramp, Sampling, code
from shuhari.kernel.noise import keys
from shuhari.kernel.registry import register
from shuhari.needs import Traces, role_model
from shuhari.ports import Ctx, Task, ability
from shuhari.rollouts.vector.asking import Asking
from shuhari.rollouts.vector.fragment import SENT, Fragment, join_rows, make_extra_columns, put_on_last
from shuhari.rollouts.vector.lanes import (
    PATIENCE,
    RUNNING,
    TERMINATED,
    TRUNCATED,
    Actor,
    Inline,
    Seen,
    allocate,
    find_extras,
    map_parts,
    view_rows,
    write,
)  # fmt: skip
from shuhari.rollouts.vector.memory import LaneMemory
from shuhari.rollouts.vector.noise import LaneNoise
from shuhari.rollouts.vector.workers import Workers
from shuhari.tasks.snapshots import thaw
from shuhari.tasks.tells import EXECUTED
from shuhari.tasks.views import clip_box

WINDOW = 100  # number of finished episodes that the report averages


@register("rollout", "vector")
@dataclass
class VectorRollout:
    """Steps Gymnasium environments side by side, as the vectorised environments of Stable-Baselines3; episodes go on
    across updates.

    `collect` steps `lanes` environments until at least n decisions are made. A schedule of `epsilon` is read once per
    call. With a ring, the lanes are divided into slots of neighbours, and the policy decides for one slot while the
    workers step the others ("SRL: Scaling Distributed Reinforcement Learning to Over Ten Thousand Cores", arXiv
    2306.16688: environment rings).

    Each lane has its own noise and seeds. The collected data are the same bit for bit for any number of workers, also
    if a resumed run has another number. For another `ring` they are the same up to the model's rounding for another
    batch size: bit for bit with models whose rows do not depend on the batch (tables).

    Columns: context, action, logp, mask, version, reward/task, cont, child, episode, lane, id, `resumes` (the row that
    the lane's last fragment left open, now decided), the `info` of the policy's traces, `memory` (that of a recurrent
    policy before the row, zeros at the start of an episode), the numbers of the curriculum's requests (see `Asking`),
    and what the task's environments report (the setting `tells`). If an environment reports that it executed another
    action than the policy's, the row has that action, with an unknown log-probability (NaN), and the column `replaced`
    is 1 (else 0).
    """

    spreads = ("workers", "ring")
    lanes: Lanes = 8
    """Number of environments stepped side by side (SB3's `n_envs`)."""
    role: str = "policy"
    """Role of the policy that acts, a name under `[models]`."""
    random: Count = 0
    """Number of first decisions that are uniformly random (as before SB3's `learning_starts`); the model must support
    `epsilon`."""
    sampling: Sampling | None = None
    """Sampling settings of the actions, such as `epsilon`; None uses the run's."""
    workers: Processes = 0
    """Number of processes that step the environments; 0 steps them in this one. Results do not depend on it."""
    ring: Lanes = 1
    """Number of slots that the lanes are divided into, so that the policy decides for one while workers step the
    others; 1 is no ring."""
    asks: bool = False
    """Let the curriculum choose each episode's start and its largest number of steps."""
    timeout: AtLeast0 = PATIENCE
    """Seconds that a step or a reset of the environments may take before the run ends; 0 sets no limit."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: {"limit": 0})
    unit: ClassVar[Literal["decision"]] = "decision"  # the unit of a call
    stamps = ()
    least_n = 0

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)
        if self.lanes % self.ring:
            fits = max(k for k in range(1, min(self.ring, self.lanes + 1)) if self.lanes % k == 0)
            raise ValueError(f"vector: {self.lanes} lanes cannot be divided into a ring of {self.ring} equal slots"
                             f": expected ring = {fits}, or lanes that are a multiple of {self.ring}")  # fmt: skip
        size = self.lanes // self.ring
        if self.workers > size:
            raise ValueError(f"vector: {self.workers} workers, and a slot of {size} of the {self.lanes} lanes (ring = "
                             f"{self.ring}): expected at most one worker a lane of a slot")  # fmt: skip
        self._slots = [slice(i, i + size) for i in range(0, self.lanes, size)]
        self._actor: Actor | None = None

    def open(self, task: Task, seed: int) -> None:
        """Makes and resets the environments. Raises TypeError for a task that makes none, or none in a worker."""
        make = ability(task, "make")
        found = task.spaces()
        if make is None or found is None:
            raise TypeError(f"the rollout 'vector' steps Gymnasium environments and the task {type(task).__name__} "
                            "makes none: use the rollout 'episode', or a task gym/<id>")  # fmt: skip
        n = self.lanes
        self._space, self._action = found
        self.close()
        inline, k, within = not self.workers, self.workers, self.timeout
        actor: Actor = Inline(make, range(n), within) if inline else Workers(task, n, k, self.ring, within)
        self._actor, self._now = actor, allocate(self._space, n)  # the observation of each lane
        self._layout = find_extras(task)
        if EXECUTED in self._layout:
            self._layout[SENT] = self._layout[EXECUTED]
        actor.start([code(seed, "lane", i) % 2**31 for i in range(n)], self._now)
        self._ended = [RUNNING] * n  # how each lane's episode ended, if it did
        self._open = np.zeros(n, bool)  # whether the lane's last row is open in the previous fragment
        self._first = code("vector", seed) >> 8  # ids and episodes count up from here, apart from those of others
        self._episode, self._count = self._first + np.arange(n), self._first + n
        self._return, self._rows, self._began = np.zeros(n), 0, [0] * n  # rows decided so far; the episodes' first rows
        self._sums = {name: np.zeros(n) for name in self._layout if name.startswith("reward/")}  # of this episode
        self._asking = Asking(n) if self.asks else None
        self._finished: list[tuple[float, ...]] = []  # return, length, and the sums of the extra rewards
        self._decided, self._row = 0, self._first
        self._noise = LaneNoise(keys(seed, "lanes", n=n), self._slots)
        self._memory = LaneMemory(n)

    def close(self) -> None:
        """Closes the environments and ends the workers; `open` starts again."""
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    # ---------------------------------------------------------------- collecting

    @torch.no_grad()
    def collect(self, n: int, ctx: Ctx) -> Batch:
        """Collects at least n decisions. Charges `env_steps`. Closes the lanes if an error leaves them in the middle of
        a step."""
        if self._actor is None:
            raise RuntimeError("the rollout 'vector' is not open: call open(task, seed) first")
        try:
            return self._collect(n, ctx)
        except BaseException:
            if self._actor is not None and self._actor.astray:
                self.close()
            raise

    def _collect(self, n: int, ctx: Ctx) -> Batch:
        policy: Any = role_model(ctx.models, self.role)
        sampling = self._sampling(ctx)
        uniform = replace(sampling, epsilon=1.0, greedy=False) if self._decided < self.random else sampling
        self._memory.begin(policy, self.role)
        self._reset(ctx)
        before, rows = self._decided, -(-n // self.lanes)
        rows += rows // 8 + 1  # resets take steps too
        f = Fragment.of(self._space, rows, self._episode, self._layout)
        write(f.seen, 0, self._now)
        traces, t, noise, slots, memory = list[Traces](), 0, self._noise, self._slots, self._memory
        while self._decided < before + n:
            if t == rows:
                f, rows = f.extend(self._space, self._episode, self._layout), 2 * rows
            settings = uniform if self._decided < self.random else sampling
            now = view_rows(f.seen, t)
            memory.note()
            for noise.slot, slot in enumerate(slots):
                if t:
                    self._receive(slot, t - 1, f, now, ctx)
                memory.put(slot)
                seen = map_parts(torch.from_numpy, now if len(slots) == 1 else view_rows(now, slot))
                trace = policy.sample(memory.show(seen, slot), settings, noise=noise)
                traces.append(trace)
                memory.take(trace, slot)
                self._post(slot, t, f, self._copy_actions(trace), ctx)
            noise.step()
            t, self._rows = t + 1, self._rows + 1
        now, ended = view_rows(f.seen, t), self._ended
        memory.note()
        for slot in slots:
            self._receive(slot, t - 1, f, now, ctx)
            memory.put(slot)
        f.mask[t], f.cont[t] = False, [e != TERMINATED for e in ended]
        batch = self._make_batch(t + 1, f, traces, sampling, ctx)
        self._now, self._open = map_parts(np.copy, now), np.array([e == RUNNING for e in ended])
        del self._finished[:-WINDOW]
        ctx.charge("env_steps", self._decided - before)
        return batch

    def _reset(self, ctx: Ctx) -> None:
        """Resets lanes whose episode has ended; the closing row is at the end of the previous fragment."""
        actor: Any = self._actor
        due = [
            (slot, new)
            for slot in self._slots
            if (new := [i for i in _lanes(slot) if self._ended[i]])
        ]
        fresh = [(slot, self._begin(new, self._rows, ctx)) for slot, new in due]
        if self._asking is not None and not self._rows:  # the first episodes, begun by `open` at the task's start
            asked = self._asking.ask(range(self.lanes), self._episode, ctx)
            first = (
                (slot, {i: asked[i] for i in _lanes(slot) if asked[i] is not None})
                for slot in self._slots
            )
            fresh = [(slot, starts) for slot, starts in first if starts]
        for slot, starts in fresh:
            actor.post(slot, None, starts)
        for slot, _ in fresh:
            actor.poll(slot, self._now, np.empty(self.lanes), {})

    def _post(self, slot: slice, t: int, f: Fragment, taken: Any, ctx: Ctx) -> None:
        """Submits the actions of row t of a slot; lanes whose episode has ended are reset instead."""
        actor: Any = self._actor
        fresh: dict[int, Payload] = {}
        new = [i for i in _lanes(slot) if self._ended[i]] if any(self._ended) else []
        if new:
            f.mask[t, new], f.cont[t, new] = False, [self._ended[i] == TRUNCATED for i in new]
            fresh = self._begin(new, self._rows + 1, ctx)
            f.episode[t + 1 :, new] = self._episode[new]
        self._decided += slot.stop - slot.start - len(new)
        if SENT in f.extras:
            f.extras[SENT][t, slot] = taken
        actor.post(slot, taken, fresh)

    def _receive(self, slot: slice, t: int, f: Fragment, after: Seen, ctx: Ctx) -> None:
        """Receive the results of row t of a slot; its observations go into the next row."""
        actor: Any = self._actor
        extras = {n: x[t] for n, x in f.extras.items() if n != SENT}
        over = actor.poll(slot, after, f.reward[t], extras)
        self._return[slot] += f.reward[t, slot]
        if self._memory.rewarded is not None:
            more = {n.removeprefix("reward/"): extras[n] for n in self._sums}
            self._memory.pay({"task": f.reward[t], **more}, slot, ctx)
        for name, total in self._sums.items():
            total[slot] += extras[name][slot]
        if self._asking is not None:
            over += self._asking.find_over(set(_lanes(slot)) - {i for i, _ in over}, self._rows, self._began)
        for i, how in over:
            self._ended[i] = how
            sums = (s[i] for s in self._sums.values())
            self._finished.append((float(self._return[i]), self._rows - self._began[i], *sums))

    def report(self) -> dict[str, float]:
        """Returns means over the last 100 finished episodes, and the number of finished episodes so far."""
        if self._actor is None:
            return {}
        ended = self._count - self._first - self.lanes + sum(map(bool, self._ended))
        if not self._finished:
            return {"rollout/episodes": float(ended)}
        means = np.array(self._finished).mean(0).tolist()
        names = ("return", "length", *(n.removeprefix("reward/") for n in self._sums))
        return {"rollout/episodes": float(ended), **{f"rollout/{n}": x for n, x in zip(names, means, strict=True)}}

    def _sampling(self, ctx: Ctx) -> Sampling:
        sampling = ctx.sampling if self.sampling is None else self.sampling
        if isinstance(sampling.epsilon, Ramp):
            sampling = replace(sampling, epsilon=ctx.at(sampling.epsilon))
        return sampling

    def _begin(self, lanes: Sequence[int], row: int, ctx: Ctx) -> dict[int, Payload]:
        """Count new episodes of these lanes; the start of each, None where it is the task's own."""
        self._memory.forget(lanes)
        for i in lanes:
            self._ended[i], self._return[i], self._began[i] = RUNNING, 0.0, row
            for total in self._sums.values():
                total[i] = 0.0
            self._episode[i] = self._count
            self._count += 1
        return dict.fromkeys(lanes) if self._asking is None else self._asking.ask(lanes, self._episode, ctx)

    def _copy_actions(self, trace: Traces) -> Any:
        """Returns the actions as the environments take them: copies, since some environments change what they get."""
        taken = trace.action if trace.taken is None else trace.taken
        return taken.tolist() if isinstance(self._action, spaces.Discrete) else clip_box(taken.numpy(), self._action)

    # ---------------------------------------------------------------- columns

    def _make_batch(self, rows: int, f: Fragment, traces: list[Traces], sampling: Sampling, ctx: Ctx) -> Batch:
        N, B = self.lanes, rows * self.lanes
        context, r, decides, worth, episodes, extras = f.tensors(rows)
        logp = join_rows([t.logp for t in traces], N)
        K = logp.shape[1]
        open_rows = torch.zeros(B, dtype=torch.bool)
        open_rows[:N] = torch.from_numpy(self._open)
        spread = decides[:, None].expand(B, K)
        columns = {
            **({f"context/{k}": x for k, x in context.items()} if isinstance(context, dict) else {"context": context}),
            "action": join_rows([t.action for t in traces], N),
            "logp": torch.where(spread, logp, 0.0),
            "mask": spread,
            "version": torch.full((B, K), ctx.version),
            "reward/task": put_on_last(r, K),
            "cont": worth,
            "child": torch.where(decides, torch.arange(N, B + N), -1),
            "episode": episodes,
            "lane": torch.arange(B).remainder_(N),
            "id": torch.arange(self._row, self._row + B),
            "resumes": open_rows,
        }
        self._row += B
        names = {
            n: None
            for t in traces
            for n in t.info
        }
        columns |= {
            n: join_rows([t.info.get(n) for t in traces], N)
            for n in names
        }
        if extras:
            columns |= make_extra_columns(extras, columns, names, role_model(ctx.models, self.role))
        columns |= self._memory.column()
        if self._asking is not None:
            columns |= self._asking.make_columns(episodes, self._episode)
        if sampling.temperature != 1.0:
            columns["temperature"] = torch.from_numpy(sampling.temperatures(K)).expand(B, K)
        return Batch(columns)

    # ---------------------------------------------------------------- memory

    @property
    def state(self) -> dict[str, Any]:
        """The environments, their observations, and every counter; empty before `open`."""
        if self._actor is None:
            return {}
        return {
            "envs": self._actor.snapshots(),
            "now": map_parts(lambda x: torch.from_numpy(x.copy()), self._now),
            "ended": list(self._ended),
            "open": self._open.tolist(),
            "episode": self._episode.tolist(),
            "return": self._return.tolist(),
            "began": list(self._began),
            "finished": [list(f) for f in self._finished],
            **{n: getattr(self, f"_{n}") for n in ("count", "decided", "row", "rows")},
            **({"sums": {n: x.tolist() for n, x in self._sums.items()}} if self._sums else {}),
            **({"asking": self._asking.state} if self._asking is not None else {}),
            **({} if self._memory.now is None else {"memory": self._memory.now.clone()}),
            "noise": self._noise.at,
        }

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        if not saved:
            return
        here = 0 if self._actor is None else self.lanes
        if len(saved["envs"]) != here or self._actor is None:
            raise ValueError(f"the state of {len(saved['envs'])} lanes for a rollout of {here}: expected as many")
        self._actor.restore(saved["envs"])
        self._now = map_parts(lambda x: np.array(thaw(x)), saved["now"])
        self._ended, self._open = list(saved["ended"]), np.array(saved["open"], bool)
        self._episode = np.array(saved["episode"], np.int64)
        self._return, self._began, self._rows = np.array(saved["return"]), list(saved["began"]), saved["rows"]
        self._finished = [tuple(f) for f in saved["finished"]]
        self._sums = {n: np.array(x) for n, x in saved.get("sums", {}).items()}
        self._count, self._decided, self._row = saved["count"], saved["decided"], saved["row"]
        self._noise.at = saved["noise"]
        self._memory.now = saved["memory"].clone() if "memory" in saved else None
        if self._asking is not None:
            self._asking.state = saved["asking"]


def _lanes(slot: slice) -> range:
    return range(slot.start, slot.stop)
