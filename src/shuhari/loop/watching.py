"""Held-out episodes of a stored controller, step by step: observations, actions, rewards and pictures.

They are the first episodes of evaluation, played greedily with the weights of a checkpoint, under the same random
streams. Nothing is stored. Left out: text, whose runs keep their rollouts. Axes: `T` decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.evaluation import Evaluation
from shuhari.data import EMPTY, Array, Payload, Problem, Request, Status, Step, Trajectory, read_first
from shuhari.loop.collect import collect_group
from shuhari.loop.evaluation import find_held_out
from shuhari.loop.opening import open_checkpoint
from shuhari.ports import ability


@dataclass(frozen=True, eq=False)
class Watched:
    """An episode: observations [T + 1] and actions [T] as the environment has them, rewards [T] by name, `total`, their
    sums with the grades, and pictures [T + 1], or none. `step`: of the checkpoint. `scene`: the surroundings of a place
    in the observations (`tasks.scene.Scene`), None if there are none."""

    problem: Problem
    step: int
    status: Status
    observations: Sequence[Payload]
    actions: Sequence[Payload]
    rewards: Sequence[Mapping[str, float]]
    total: Mapping[str, float]
    frames: Sequence[Array] = field(default=(), repr=False)
    scene: Any = field(default=None, repr=False)


def watch(path: Path, step: int | None = None, n: int = 1, first: int = 0, film: bool = False) -> list[Watched]:
    """Play the held-out episodes from `first` on, of a run's checkpoint (None: the last). film: with pictures, if the
    environment draws any. Raises StoreError if there is no checkpoint, TypeError for a run of text, ValueError if there
    are no such episodes."""
    with open_checkpoint(path, step) as opened:
        if opened.ctx.task.spaces() is None:
            raise TypeError(f"{path}: its policy writes text, so that there is nothing to watch: see show --rollouts")
        ctx, stage = opened.ctx, opened.stage
        evaluation = stage.evaluate or Evaluation()
        task = evaluation.task or ctx.task
        source = find_held_out(task, evaluation)
        problems = read_first(source, n, first)
        if not problems:
            raise ValueError(f"{path}: there is no held-out episode {first}: expected 0..{(source.size() or 1) - 1}")
        filmed = ability(task, "filmed") if film else None
        stand = Stand(task if filmed is None else filmed(), film=film)
        beside = ctx.fork("evaluate", rollout=stage.evaluation_rollout, task=stand)
        beside.models, beside.ledger = ctx.models, {}
        greedy = replace(evaluation.sampling or ctx.now(ctx.sampling), greedy=True, epsilon=0.0)
        out = list[Watched]()
        for problem in problems:
            beside.next_ticket = first + len(out)  # as evaluation counts them
            request = beside.stamp_request(Request(problem, 1, greedy, settings=evaluation.settings), "evaluate")
            group = beside.wait(collect_group(request, stage.evaluation_rollout, beside))
            if not group:
                raise RuntimeError(f"{path}: the episode {problem.id} failed; {'; '.join(beside.problems)}")
            out.append(stand.describe(group[0], ctx.step))
        return out


def sum_rewards(steps: Iterable[Step]) -> dict[str, float]:
    """Return name -> the sum of a reward over all steps."""
    totals: dict[str, float] = {}
    for step in steps:
        for name, value in step.reward.items():
            totals[name] = totals.get(name, 0.0) + float(np.sum(value))
    return totals


def mean_rewards(episode: Trajectory) -> dict[str, float]:
    """Return name -> the sum of a reward in an episode; for a tree the mean over the paths to its leaves that have it.
    """
    found: dict[str, list[float]] = {}
    for path in episode.paths():
        for name, value in sum_rewards(episode.steps[i] for i in path).items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


class Stand:
    """A task whose environments are recorded as they are played; everything else is as in `task`."""

    def __init__(self, task: Any, *, film: bool) -> None:
        self.task, self.film = task, film
        self.seen: Camera | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def environment(self, problem: Problem) -> Any:
        env = self.task.environment(problem)
        self.seen = None if env is None else Camera(env, self.film)
        return self.seen

    def describe(self, episode: Trajectory, step: int) -> Watched:
        """Return the record of the episode that was played last; without an environment, its steps."""
        acts: list[Step] = [s for s in episode.steps if s.action is not None]
        scene = ability(self.task, "scene")
        totals, given = mean_rewards(episode), (episode.request.problem, step, episode.status)
        if self.seen is None:
            rewards = [sum_rewards([s]) for s in acts]
            return Watched(
                *given,
                [s.context for s in acts],
                [s.action for s in acts],
                rewards,
                totals,
                scene=scene,
            )
        seen = self.seen
        return Watched(*given, seen.observations, seen.actions, seen.rewards, totals, seen.frames, scene)


class Camera:
    """An environment of an episode that records what passes, and with `film` a picture of each moment."""

    def __init__(self, env: Any, film: bool) -> None:
        self.env, self.film = env, film
        self.observations: list[Payload] = []
        self.actions: list[Payload] = []
        self.rewards: list[Mapping[str, float]] = []
        self.frames: list[Array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, problem: Problem) -> Payload:
        observation: Payload = self.env.reset(problem)
        self._look(observation)
        return observation

    def step(self, action: Any) -> tuple[Payload, Mapping[str, float], Status | None]:
        observation, reward, status = self.env.step(action)
        self.actions.append(np.array(action).tolist())
        self.rewards.append({k: float(x) for k, x in dict(reward or EMPTY).items()})
        self._look(observation)
        return observation, reward, status

    def _look(self, observation: Payload) -> None:
        self.observations.append(observation)
        picture = ability(self.env, "draw")() if self.film else None
        if picture is not None:
            self.frames.append(picture)
