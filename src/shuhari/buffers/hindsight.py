"""Hindsight experience replay: stored decisions are trained on as if their outcome had been the goal.

An environment with goals has observations of `observation`, `achieved_goal` and `desired_goal` (a Dict), and its
`compute_reward` gives the reward of an achieved goal for a desired one. Drawn rows get a goal that was achieved in
their episode, on themselves and on what follows them, and the reward that the environment computes for it.

Left out: `info` for `compute_reward`, which gets none; new goals for rows that several policies share by a group.
Axes: `B` drawn rows, `C` capacity, `A` decisions that come along behind a row.

Source: Andrychowicz et al. 2017, "Hindsight Experience Replay", algorithm 1 and section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, check
from shuhari.data import Array
from shuhari.ports import Ctx, Task, ability
from shuhari.store.ring import Ring

KEYS = ("observation", "achieved_goal", "desired_goal")  # of a Dict observation, as Gymnasium-Robotics has them
ACHIEVED, DESIRED = "context/achieved_goal", "context/desired_goal"


@dataclass
class Hindsight:
    """Goals in hindsight for an environment with goals (HER), a setting of `replay`.

    A share goals / (goals + 1) of the drawn rows gets another goal: what was achieved in the same episode, `future`:
    after the decision (its own outcome counts), `final`: at the end, `episode`: by any decision. If an episode goes on,
    its end is what it has reached so far. The reward `reward` is what the environment's `compute_reward(achieved,
    desired, info)` gives for arrays of all rows and a list of empty infos, or row by row if it takes one goal alone.
    If the environment has `compute_terminated` too (as Gymnasium-Robotics), a decision that reaches the new goal ends
    its episode if that is true, and one that reached only the old goal does not; else ends stay as they were
    recorded, as in Stable-Baselines3.

    ValueError for a task without such goals, and for a trained reward that is not the weighted sum of the stored ones.
    """

    strategy: Literal["future", "final", "episode"] = "future"
    """Where in the episode new goals come from: `future`, what was achieved after the decision, `final`, at the end, or
    `episode`, at any time."""
    goals: AtLeast0 = 4.0
    """New goals for each recorded one (`n_sampled_goal` in Stable-Baselines3): goals / (goals + 1) of the rows get
    one."""
    reward: str = "task"
    """Name of the reward that depends on the goal, of column `reward/<name>`."""
    ahead: Length = 1
    """Decisions after each row that get its goal too; set it to n for n-step targets."""

    def __post_init__(self) -> None:
        check(self)
        self._order = Order()
        self._task: Task | None = None  # that was looked at

    def check_task(self, task: Task) -> None:
        """Raises ValueError if a task has no goals of this kind."""
        if task is self._task:
            return
        from gymnasium.spaces import Dict

        found = task.spaces()
        parts = dict(found[0].items()) if found is not None and isinstance(found[0], Dict) else {}
        if lost := [key for key in KEYS if key not in parts]:
            seen = ", ".join(parts) or "no Dict"
            raise ValueError(f"hindsight: the task's observations are {seen}: expected a Dict of {', '.join(KEYS)}; "
                             f"{lost[0]!r} is missing")  # fmt: skip
        if parts["achieved_goal"].shape != parts["desired_goal"].shape:
            raise ValueError(f"hindsight: achieved_goal is {parts['achieved_goal']}, and desired_goal "
                             f"{parts['desired_goal']}: expected one shape")  # fmt: skip
        if ability(task, "compute_reward") is None:
            raise ValueError("hindsight: the environment has no compute_reward(achieved_goal, desired_goal, info), or "
                             "task.wrappers hide it: expected an environment with it and no wrappers")  # fmt: skip
        self._task = task

    def relabel(self, batch: Batch, ring: Ring, rng: torch.Generator, ctx: Ctx) -> Batch:
        """Returns the drawn rows, some with a goal in hindsight; those and their successors are copies."""
        B, A, whole = len(batch), self.ahead, ring.columns
        assert batch.rows is not None
        self._order.follow(ring)
        chance = torch.rand(2, B, generator=rng, dtype=torch.float64).numpy()
        goal = self._order.find(batch.rows.numpy(), chance[1], self.strategy)
        goal = np.where(chance[0] < self.goals / (self.goals + 1), goal, -1)
        path, child = self._walk(batch.rows, whole["child"])
        columns = {name: x[path.reshape(-1)] for name, x in whole.items()} | {"child": child.reshape(-1)}
        columns["cut"] = torch.cat([torch.zeros(A * B, dtype=torch.bool), whole["child"][path[A]] >= 0])
        new = np.flatnonzero(goal >= 0)
        if len(new):
            self._put_goals(columns, new, whole[ACHIEVED][torch.from_numpy(goal[new])], ctx)
        full = bool(columns["mask"].shape[1] == 1) or None
        return Batch(columns, torch.arange(B), batch.own, stream=batch.stream, full=full)

    def _walk(self, rows: Tensor, child: Tensor) -> tuple[Tensor, Tensor]:
        """([A + 1, B] each row and those behind it, an end repeated; [A + 1, B] the place of the next in the copy, -1
        if there is none)."""
        B = len(rows)
        path, next_ = [rows], list[Tensor]()
        on = torch.ones(B, dtype=torch.bool)
        for k in range(self.ahead):
            after = child[path[-1]]
            on = on & (after >= 0)
            next_.append(torch.where(on, (k + 1) * B + torch.arange(B), -1))
            path.append(torch.where(on, after, path[-1]))
        return torch.stack(path), torch.stack([*next_, torch.full((B,), -1)])

    def _put_goals(self, columns: dict[str, Tensor], new: Array, goal: Tensor, ctx: Ctx) -> None:
        """Write the goals [n, ...] of the rows `new` [n], with what follows from them, into the copy [(A + 1) B]."""
        B = len(columns["mask"]) // (self.ahead + 1)
        priced, changed = self._check_rewards(columns, ctx), list[Tensor]()
        for k in range(self.ahead + 1):
            here = torch.from_numpy(new + k * B)
            columns[DESIRED][here] = goal.to(columns[DESIRED].dtype)
            on = columns["child"][here] >= 0
            here, wanted = here[on], goal[on]
            if not len(here):
                continue
            after = columns["child"][here]
            achieved = columns[ACHIEVED][after]
            reward = self._ask("compute_reward", achieved, wanted, ctx)
            columns[f"reward/{self.reward}"][here, -1] = reward.float()
            changed.append(here)
            if ability(ctx.task, "compute_terminated") is not None:
                columns["cont"][after] = 1.0 - self._ask("compute_terminated", achieved, wanted, ctx).float()
        if priced and changed:
            rows = torch.cat(changed)
            paid = {name: x[rows] for name, x in columns.items() if name.partition("/")[0] == "reward"}
            columns["reward"][rows] = _sum_rewards(paid, ctx)

    def _check_rewards(self, columns: dict[str, Tensor], ctx: Ctx) -> bool:
        """Whether there is a trained reward, which has to be computed again. Raises ValueError if it is not the
        weighted sum of the stored ones."""
        if f"reward/{self.reward}" not in columns:
            known = ", ".join(name.removeprefix("reward/") for name in columns if name.startswith("reward/"))
            raise ValueError(f"hindsight: reward is {self.reward!r}, and the stored ones are {known or 'none'}")
        if "reward" not in columns:
            return False
        is_, sum_ = columns["reward"], _sum_rewards(columns, ctx)
        if not torch.allclose(is_, sum_, 1e-4, 1e-5, equal_nan=True):
            at = int((is_ - sum_).abs().sum(1).argmax())
            told = f"of a stored row is {is_[at].tolist()}, and [reward.weights] give {sum_[at].tolist()}"
            raise ValueError(f"hindsight: the trained reward {told}: a transform under [collect] or a schedule "
                             "has changed it; leave that out: rewards of new goals would lack it")  # fmt: skip
        return True

    def _ask(
        self, name: Literal["compute_reward", "compute_terminated"], achieved: Tensor, goal: Tensor, ctx: Ctx
    ) -> Tensor:
        """[n] what the environment's function gives for goals [n, ...]."""
        function: Any = ability(ctx.task, name)
        space: Any = ctx.task.spaces()[0]["achieved_goal"]  # type: ignore[index]
        given = achieved.numpy().astype(space.dtype), goal.numpy().astype(space.dtype)
        return torch.from_numpy(ask_rows(function, *given, name))


def ask_rows(function: Callable[..., Any], achieved: Array, goal: Array, name: str) -> Array:
    """[n] what `function(achieved, goal, info)` gives for goals [n, ...]: called with all at once, or row by row if it
    does not give a number for each. ValueError for what is no finite number."""
    n = len(achieved)
    try:
        out = np.asarray(function(achieved, goal, [{} for _ in range(n)]), np.float64)
    except Exception:  # it is made for one goal
        out = np.zeros(())
    if out.shape not in ((n,), (n, 1)):
        try:
            each = [function(a, g, {}) for a, g in zip(achieved, goal, strict=True)]
            out = np.array([np.asarray(x, np.float64).item() for x in each])
        except Exception as error:
            error.add_note(f"raised by the environment's {name}, asked for goals in hindsight with an empty info")
            raise
    if not np.isfinite(out).all():
        raise ValueError(f"hindsight: {name} gave {out[~np.isfinite(out)][0]}: expected finite numbers")
    return out.reshape(n)


def _sum_rewards(columns: dict[str, Tensor], ctx: Ctx) -> Tensor:
    """[N, K] the trained reward, by the run's weights at this step."""
    total = torch.zeros_like(columns["reward"])
    for name, weight in ctx.weights.items():
        if f"reward/{name}" in columns and ctx.at(weight):
            total += ctx.at(weight) * columns[f"reward/{name}"]
    return total


class Order:
    """Which rows of a ring are of one episode, in order. It follows from the ring alone, so a run that is resumed finds
    the same."""

    def __init__(self) -> None:
        self.ring: Ring | None = None
        self.written = 0
        self.place: list[int] = []  # [C] of the row in its episode; -1: nothing is there yet
        self.episode: list[int] = []  # [C]
        self.rows: dict[int, tuple[int, list[int]]] = {}  # episode -> (how many of its first rows are gone, all)

    def follow(self, ring: Ring) -> None:
        """Takes in the rows that the ring has got since the last call, in the place of the oldest."""
        C = ring.capacity
        if "episode" not in ring.columns:
            raise ValueError("hindsight: the rows have no column 'episode': expected those of environments")
        if ring is not self.ring:
            self.ring, self.written, self.place, self.episode, self.rows = ring, 0, [-1] * C, [0] * C, {}
        slots = np.arange(max(self.written, ring.written - C), ring.written) % C
        for slot, episode in zip(slots.tolist(), ring.arrays["episode"][slots].tolist(), strict=True):
            if self.place[slot] >= 0:
                self._leave_out(slot)
            rows = self.rows.setdefault(episode, (0, []))[1]
            self.place[slot], self.episode[slot] = len(rows), episode
            rows.append(slot)
        self.written = ring.written

    def _leave_out(self, slot: int) -> None:
        rows = self.rows[self.episode[slot]][1]
        gone = self.place[slot] + 1
        if gone == len(rows):
            del self.rows[self.episode[slot]]
        else:
            self.rows[self.episode[slot]] = gone, rows

    def find(self, rows: Array, chance: Array, strategy: str) -> Array:
        """Returns [B] the row whose achieved goal each of `rows` [B] gets, by `chance` [B] in [0, 1); -1 if no later
        row of its episode is stored."""
        out = np.full(len(rows), -1)
        for i, (row, u) in enumerate(zip(rows.tolist(), chance.tolist(), strict=True)):
            gone, of = self.rows[self.episode[row]]
            first = self.place[row] + 1 if strategy == "future" else gone + 1
            if self.place[row] + 1 < len(of):
                out[i] = of[-1] if strategy == "final" else of[first + int(u * (len(of) - first))]
        return out
