"""Starts episodes at states of a teacher: snapshots along its episodes, drawn by classes of its value.

Source: "Snapshot Reinforcement Learning: Leveraging Prior Trajectories for Efficiency" (Zhao et al. 2024), S3RL: status
classification and student trajectory truncation. Differences: the classes are optimal (exactly computable in one
dimension), where the release has a local optimum; and the last episode from a snapshot is played to its end. Left out:
choosing among the teacher's episodes, forgetting replayed snapshots.

Axes: `S` snapshots, `k` classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Count, Length, check
from shuhari.data import Array, Payload, Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.objectives.td import member_values
from shuhari.ports import Ctx, ability
from shuhari.store.codec import dumps, loads
from shuhari.tasks.snapshots import thaw


@register("curriculum", "snapshot_starts")
@dataclass
class Starts:
    """Starts early episodes at states that a teacher has visited, and shortens them; later ones begin as in the task.

    For the first `until` environment steps after its first call, an episode begins at a snapshot of the simulator, and
    is truncated after `limit` steps. Snapshots come from `episodes` episodes that the role `teacher` plays without
    noise. They are partitioned by f = Q(s, pi(s)) of the teacher's `critic` (the first of several members) into
    `classes` classes with the least squared distance from the class means; a start is uniform in a uniformly drawn
    class. For lanes that request starts (`rollout.asks`).

    The teacher's steps are charged as `starts/env_steps`. Reports `curriculum/snapshots`, the share of episodes since
    the last report that began at a snapshot. Raises TypeError for a task whose environments have no snapshots.
    """

    episodes: Length = 10
    """Number of teacher episodes, played once, from which snapshots are taken."""
    every: Length = 10
    """Number of episode steps between two snapshots, the first one at its beginning."""
    classes: Length = 6
    """Number of classes by value from which starts are drawn equally often, easy and hard ones; 1 draws from all
    snapshots uniformly."""
    limit: Count = 100
    """Number of steps after which an episode that began at a snapshot is truncated; 0 keeps the task's own limit."""
    until: Count = 10_000
    """Number of environment steps of the phase with snapshots; 0 leaves it out. The paper takes a tenth of the
    budget."""
    teacher: str = "teacher"
    """Role of the policy that plays the episodes."""
    critic: str = "teacher_critic"
    """Role of the teacher's critic Q(s, a), which partitions the snapshots."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"asked": 0, "began": None, "starts": None, "f": []}
    )
    stamps = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return self.teacher, self.critic

    def __post_init__(self) -> None:
        check(self)
        self._found: tuple[Any, list[Payload], list[Array]] | None = None
        self._since = [0, 0]  # episodes since the last report, and how many of them from snapshots

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        mine, spent = self.state, ctx.ledger.get("env_steps", 0.0)
        first, mine["asked"] = mine["asked"], mine["asked"] + n
        mine["began"] = spent if mine["began"] is None else mine["began"]
        source = ctx.task.problems("train")
        problems = [source[i] for i in range(first, first + n)]
        early = spent - mine["began"] < self.until
        self._since = [self._since[0] + n, self._since[1] + n * early]
        return (
            [self._from_snapshot(p, ctx) for p in problems]
            if early
            else [Request(p) for p in problems]
        )

    def report(self) -> dict[str, float]:
        (n, early), self._since = self._since, [0, 0]
        return {"curriculum/snapshots": early / n} if n else {}

    def _from_snapshot(self, problem: Problem, ctx: Ctx) -> Request:
        """Returns a request that begins at a uniform snapshot of a uniform class."""
        starts, classes = self._snapshots(ctx)
        rng = ctx.rng("start", problem.id)
        members = classes[int(torch.randint(len(classes), (), generator=rng))]
        start = starts[int(members[int(torch.randint(len(members), (), generator=rng))])]
        here = Problem(problem.task, problem.id, problem.prompt, problem.answer, start=start)
        return Request(here, settings={"limit": self.limit})

    def _snapshots(self, ctx: Ctx) -> tuple[list[Payload], list[Array]]:
        mine = self.state
        if mine["starts"] is None:
            starts, mine["f"] = self._play(ctx)
            mine["starts"] = torch.frombuffer(bytearray(dumps(starts)), dtype=torch.uint8)
        if self._found is None or self._found[0] is not mine["starts"]:
            starts = loads(mine["starts"].numpy().tobytes())
            self._found = mine["starts"], starts, classify(np.array(mine["f"]), self.classes)
        return self._found[1:]

    @torch.no_grad()
    def _play(self, ctx: Ctx) -> tuple[list[Payload], list[float]]:
        """Returns snapshots along the teacher's episodes, and f of each."""
        policy: Any = role_model(ctx.models, self.teacher)
        critic: Any = role_model(ctx.models, self.critic)
        found, steps, source, mode = list[Payload](), list[Step](), ctx.task.problems("train"), Sampling(greedy=True)
        for i in range(self.episodes):
            problem = source[i]
            env: Any = ctx.task.environment(problem)
            if ability(env, "snapshot") is None:
                raise TypeError(f"starts: the environments of {type(ctx.task).__name__} have no snapshots")
            try:
                seen, status, taken = env.reset(problem), None, 0
                while status is None:
                    context = {k: _row(x) for k, x in seen.items()} if isinstance(seen, dict) else _row(seen)
                    trace = policy.sample(context, mode, noise=CounterNoise(keys(0, "starts", problem.id, taken, n=1)))
                    if taken % self.every == 0:
                        found.append(thaw(env.snapshot()))
                        steps.append(Step.of(seen, trace.action[0].numpy()))
                    action = trace.action if trace.taken is None else trace.taken
                    seen, _, status = env.step(action[0].numpy())
                    taken += 1
            finally:
                ability(env, "close")()
            ctx.charge("starts/env_steps", taken)
        value = critic(pack([Trajectory(Request(source[0]), (s,)) for s in steps])).value()
        return found, member_values(value)[:, 0].tolist()


def classify(f: Array, k: int) -> list[Array]:
    """Partitions the numbers f [S] into at most k classes of neighbours with the least sum of squared distances from
    their means (exact one-dimensional k-means, by dynamic programming); returns the indices of each. Equal numbers
    share a class."""
    values, where, count = np.unique(f, return_inverse=True, return_counts=True)
    V, sums = len(values), np.zeros((3, len(values) + 1))  # counts, sums and squares of the first values
    sums[:, 1:] = np.cumsum([count, count * values, count * values**2], axis=1)
    m, s, q = (x[None, :] - x[:, None] for x in sums)  # [i, j]: of the values i to j - 1
    cost = np.where(m > 0, q - s**2 / np.maximum(m, 1), np.inf)
    best, begins = np.where(np.arange(V + 1) == 0, 0.0, np.inf), list[Array]()
    for _ in range(min(k, V)):
        total = best[:, None] + cost
        begins.append(total.argmin(0))
        best = total.min(0)
    label, end = np.empty(V, np.int64), V
    for c, begin in reversed(list(enumerate(begins))):
        label[begin[end] : end], end = c, int(begin[end])
    return [np.flatnonzero(label[where] == c) for c in range(len(begins))]


def _row(x: Any) -> Any:
    return torch.as_tensor(np.asarray(x))[None]
