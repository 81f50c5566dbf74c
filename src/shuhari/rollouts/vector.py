"""Lanes of Gymnasium environments, stepped side by side in this process; columns are written directly.

A fragment is a rectangle of T + 1 rows by N lanes. A row either decides (its successor is the row below in its lane)
or closes: the final observation of an episode, with `cont` 0 after termination and 1 after a time limit, or the last
row of a fragment that goes on (`cont` 1). The step that resets a lane is no transition: it leaves the closing row.
Of a Dict of observations each part is an array of its own. Left out: environments in other processes, and what their
`info` says (but for masks of actions, which the task makes part of the observation).

Axes: `N` lanes, `T` steps of a fragment, `B` = (T + 1) * N rows, `K` positions of a decision (1 but for chains).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Array, Ramp, Sampling, code
from shuhari.needs import Traces, role_model
from shuhari.noise import CounterNoise, keys
from shuhari.ports import Ctx, Task
from shuhari.registry import register
from shuhari.tasks.snapshots import restore, snapshot, thawed
from shuhari.tasks.views import held, stored

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
WINDOW = 100  # finished episodes that the report averages
BLOCK = 64  # steps whose noise is drawn at once


Seen = Any  # an array of observations, or a dict of arrays by key


class _Fragment(NamedTuple):
    """[T + 1, N], to write in; longer than what is used."""

    seen: Seen  # [T + 1, N, ...] observations
    reward: Array
    mask: Array
    cont: Array
    episode: Array


@register("rollout", "vector")
@dataclass
class VectorRollout:
    """`collect` steps `lanes` environments until at least n decisions are made; lanes live on across calls.

    role: the policy that acts. random: this many decisions at the start are uniform over the action space (`epsilon`
    1 of the sampling settings, which the model must honour). sampling: None takes the run's; a schedule of `epsilon`
    is read once a call. Columns: context, action, logp, mask, version, reward/task, cont, child, episode, lane, id,
    `resumes` (the row that the lane's last fragment left open, now decided), and what the policy's traces say.
    """

    lanes: int = 8
    role: str = "policy"
    random: int = 0
    sampling: Sampling | None = None
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"vector: lanes is {self.lanes}: expected at least 1")
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def open(self, task: Task, seed: int) -> None:
        """Make and reset the environments. TypeError for a task that makes none."""
        make = getattr(task, "make", None)
        found = task.spaces()
        if make is None or found is None:
            raise TypeError(
                f"the rollout 'vector' steps Gymnasium environments and the task {type(task).__name__} makes none: "
                "use the rollout 'episode', or a task gym/<id>"
            )
        n = self.lanes
        self._space, self._action = found
        self._envs = [make() for _ in range(n)]
        self._now = _each(lambda x: x[0], self._rows(1))  # [N, ...] what each lane sees
        for i, env in enumerate(self._envs):
            _write(self._now, i, env.reset(seed=code(seed, "lane", i) % 2**31)[0])
        self._ended = [RUNNING] * n  # how each lane's episode ended, if it did
        self._open = np.zeros(n, bool)  # whether the lane's last row stands open in the fragment before
        self._first = code("vector", seed) >> 8  # ids and episodes count up from here, apart from others'
        self._episode, self._count = self._first + np.arange(n), self._first + n
        self._return, self._length = [0.0] * n, [0] * n
        self._finished: list[tuple[float, int]] = []
        self._decided, self._row = 0, self._first
        self._noise = _Lanes(keys(seed, "lanes", n=n))

    # ---------------------------------------------------------------- collecting

    @torch.no_grad()
    def collect(self, n: int, ctx: Ctx) -> Batch:
        """At least n decisions. Charges `env_steps`."""
        if not self._envs:
            raise RuntimeError("the rollout 'vector' is not open: call open(task, seed) first")
        policy: Any = role_model(ctx.models, self.role)
        sampling = self._sampling(ctx)
        uniform = replace(sampling, epsilon=1.0, greedy=False)
        envs, ended, earned, length = self._envs, self._ended, self._return, self._length
        for i in range(self.lanes):
            if ended[i]:  # its closing row stands at the end of the fragment before
                self._reset(i, self._now)
        before, rows = self._decided, -(-n // self.lanes)
        rows += rows // 8 + 1  # resets take steps too
        f = self._fragment(rows)
        _write(f.seen, 0, self._now)
        traces, t, now = list[Traces](), 0, _at(f.seen, 0)
        while self._decided < before + n:
            if t == rows:
                f, rows = self._longer(f), 2 * rows
            settings = uniform if self._decided < self.random else sampling
            trace = policy.sample(_each(torch.from_numpy, now), settings, noise=self._noise)
            self._noise.step()
            traces.append(trace)
            taken = self._taken(trace)
            f.episode[t], after, reward = self._episode, _at(f.seen, t + 1), f.reward[t]
            for i, env in enumerate(envs):
                if ended[i]:
                    f.mask[t, i], f.cont[t, i] = False, ended[i] == TRUNCATED
                    self._reset(i, after)
                    continue
                seen, r, terminated, truncated, _ = env.step(taken[i])
                _write(after, i, seen)
                reward[i] = r
                earned[i] += float(r)
                length[i] += 1
                self._decided += 1
                if terminated or truncated:
                    ended[i] = TERMINATED if terminated else TRUNCATED
                    self._finished.append((earned[i], length[i]))
            t, now = t + 1, after
        f.episode[t], f.mask[t], f.cont[t] = self._episode, False, [e != TERMINATED for e in ended]
        batch = self._batch(t + 1, f, traces, sampling, ctx)
        self._now, self._open = _each(np.copy, now), np.array([e == RUNNING for e in ended])
        del self._finished[:-WINDOW]
        ctx.charge("env_steps", self._decided - before)
        return batch

    def report(self) -> dict[str, float]:
        """Means over the last 100 episodes that ended, and how many have ended so far."""
        if not self._envs:
            return {}
        ended = self._count - self._first - self.lanes + sum(map(bool, self._ended))
        if not self._finished:
            return {"rollout/episodes": float(ended)}
        returns, lengths = np.array(self._finished).mean(0).tolist()
        return {"rollout/episodes": float(ended), "rollout/return": returns, "rollout/length": lengths}

    def _sampling(self, ctx: Ctx) -> Sampling:
        own = getattr(ctx, "sampling", Sampling()) if self.sampling is None else self.sampling
        sampling: Sampling = own
        if isinstance(sampling.epsilon, Ramp):
            sampling = replace(sampling, epsilon=ctx.at(sampling.epsilon))
        return sampling

    def _reset(self, i: int, into: Seen) -> None:
        _write(into, i, self._envs[i].reset()[0])
        self._ended[i], self._return[i], self._length[i] = RUNNING, 0.0, 0
        self._episode[i] = self._count
        self._count += 1

    def _taken(self, trace: Traces) -> Any:
        """[N] the actions as the environments take them: copies, since some environments change what they get."""
        taken = trace.info.get("environment", trace.action)
        return taken.tolist() if isinstance(self._action, spaces.Discrete) else held(taken.numpy(), self._action)

    # ---------------------------------------------------------------- columns

    def _rows(self, rows: int) -> Seen:
        """[rows, N, ...] to write observations in."""
        parts = dict(self._space) if isinstance(self._space, spaces.Dict) else self._space
        return _each(lambda s: np.empty((rows, self.lanes, *(s.shape or ())), stored(s)), parts)

    def _fragment(self, rows: int) -> _Fragment:
        shape = (rows + 1, self.lanes)
        numbers = np.zeros(shape, np.float32), np.ones(shape, bool), np.ones(shape, np.float32)
        return _Fragment(self._rows(rows + 1), *numbers, np.empty(shape, np.int64))

    def _longer(self, f: _Fragment) -> _Fragment:
        new, old = self._fragment(2 * len(f.mask) - 2), slice(len(f.mask))
        for to, x in zip(new, f, strict=True):
            _write(to, old, x)
        return new

    def _batch(self, rows: int, f: _Fragment, traces: list[Traces], sampling: Sampling, ctx: Ctx) -> Batch:
        N, B = self.lanes, rows * self.lanes
        flat = [_each(lambda x: torch.from_numpy(x[:rows].reshape(B, *x.shape[2:])), x) for x in f]
        context, r, decides, worth, episodes = flat
        logp = _closed([t.logp for t in traces])
        K = logp.shape[1]
        open_rows = torch.zeros(B, dtype=torch.bool)
        open_rows[:N] = torch.from_numpy(self._open)
        spread = decides[:, None].expand(B, K)
        columns = {
            **({f"context/{k}": x for k, x in context.items()} if isinstance(context, dict) else {"context": context}),
            "action": _closed([t.action for t in traces]),
            "logp": torch.where(spread, logp, 0.0),
            "mask": spread,
            "version": torch.full((B, K), ctx.version),
            "reward/task": r[:, None] if K == 1 else torch.cat([r.new_zeros(B, K - 1), r[:, None]], 1),
            "cont": worth,
            "child": torch.where(decides, torch.arange(N, B + N), -1),
            "episode": episodes,
            "lane": torch.arange(N).repeat(rows),
            "id": torch.arange(self._row, self._row + B),
            "resumes": open_rows,
        }
        self._row += B
        names = {n: None for t in traces for n in t.info if n != "environment"}
        columns |= {n: _closed([t.info.get(n) for t in traces]) for n in names}
        if sampling.temperature != 1.0:
            columns["temperature"] = torch.from_numpy(sampling.temperatures(K)).expand(B, K)
        return Batch(columns)

    # ---------------------------------------------------------------- memory

    @property
    def state(self) -> dict[str, Any]:
        """Environments, what they show, and every counter; empty before `open`."""
        if not self._envs:
            return {}
        return {
            "envs": [snapshot(e) for e in self._envs],
            "now": _each(lambda x: torch.from_numpy(x.copy()), self._now),
            "ended": list(self._ended),
            "open": self._open.tolist(),
            "episode": self._episode.tolist(),
            "return": list(self._return),
            "length": list(self._length),
            "finished": [list(f) for f in self._finished],
            **{n: getattr(self, f"_{n}") for n in ("count", "decided", "row")},
            "noise": self._noise.at,
        }

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        if not saved:
            return
        if len(saved["envs"]) != len(self._envs):
            raise ValueError(f"the state of {len(saved['envs'])} lanes for a rollout of {len(self._envs)} open ones")
        for env, s in zip(self._envs, saved["envs"], strict=True):
            restore(env, s)
        self._now = _each(lambda x: np.array(thawed(x)), saved["now"])
        self._ended, self._open = list(saved["ended"]), np.array(saved["open"], bool)
        self._episode = np.array(saved["episode"], np.int64)
        self._return, self._length = list(saved["return"]), list(saved["length"])
        self._finished = [(f[0], f[1]) for f in saved["finished"]]
        self._count, self._decided, self._row = saved["count"], saved["decided"], saved["row"]
        self._noise.at = saved["noise"]


class _Lanes:
    """The lanes' noise as a policy sees it: index 0 at every step, while the counter below counts up."""

    def __init__(self, row_keys: Array) -> None:
        self.below, self.at, self.used = CounterNoise(row_keys, BLOCK), 0, 1

    def uniform(self, index: int, *shape: int) -> Tensor:
        self.used = max(self.used, index + 1)
        return self.below.uniform(self.at + index, *shape)

    def normal(self, index: int, *shape: int) -> Tensor:
        self.used = max(self.used, index + 1)
        return self.below.normal(self.at + index, *shape)

    def step(self) -> None:
        self.at, self.used = self.at + self.used, 1


def _each(f: Callable[[Any], Any], x: Any) -> Any:
    """f of an array, or of each in a mapping."""
    return {k: f(v) for k, v in x.items()} if isinstance(x, Mapping) else f(x)


def _at(seen: Seen, t: int) -> Seen:
    """The views of row t."""
    return {k: x[t] for k, x in seen.items()} if isinstance(seen, dict) else seen[t]


def _write(into: Seen, i: int | slice, observation: Any) -> None:
    if isinstance(into, dict):
        for k, x in into.items():
            x[i] = observation[k]
    else:
        into[i] = observation


def _closed(pieces: list[Tensor | None]) -> Tensor:
    """[T][N, ...] -> [(T + 1) * N, ...]: rows of steps that do not say are NaN (-1 of integers), closing rows are 0."""
    like = next(p for p in pieces if p is not None)
    fill = torch.full_like(like, torch.nan if like.is_floating_point() else -1)
    return torch.cat([*(fill if p is None else p for p in pieces), torch.zeros_like(like)])
